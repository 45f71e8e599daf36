"""What a run leaves on disk, and shows."""

from modelyard.loadtests.report._report import (
    checks_table,
    generator_notes,
    metrics_table,
    table,
    write_broken,
    write_junit,
    write_report,
)
from modelyard.loadtests.report._results import Point, Report

__all__ = [
    "Point",
    "Report",
    "checks_table",
    "generator_notes",
    "metrics_table",
    "table",
    "write_broken",
    "write_junit",
    "write_report",
]
