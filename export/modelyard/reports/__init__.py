"""Self-contained HTML pages with charts: the reports of exports and of load tests."""

from modelyard.reports._charts import Chart, Series, chart_file, line_chart
from modelyard.reports._pages import render_page

__all__ = ["Chart", "Series", "chart_file", "line_chart", "render_page"]
