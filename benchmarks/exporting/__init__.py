"""Exports the kinds of the zoo, by this package and by the plain converters, and compares what comes out.

python -m benchmarks.exporting [--only NAME ...] [--write]
"""
