"""``report.html``: one self-contained page that shows what was checked before a version was published."""

from modelyard.export.report._latency import describe_choice
from modelyard.export.report._page import REPORT_NAME, ReportContent, render_report

__all__ = ["REPORT_NAME", "ReportContent", "describe_choice", "render_report"]
