"""Exports in code that a page shows, as a reader runs it, in a process of its own."""

from __future__ import annotations

#: Before such code: the runtimes are measured for a second, not for twenty; tests/conftest.py does so in this process.
MEASURE_BRIEFLY = """\
from modelyard.export import ExportOptions
ExportOptions.__init__.__kwdefaults__.update(measure_seconds=1.0)
"""
