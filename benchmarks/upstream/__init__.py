"""Faults of converters, as minimal cases."""
