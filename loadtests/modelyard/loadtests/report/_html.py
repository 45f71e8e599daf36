"""What the page shows; ``templates/report.html`` lays it out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from modelyard.loadtests.generate import Run, percentiles
from modelyard.loadtests.options import Measured
from modelyard.loadtests.report._results import Report, Window
from modelyard.reports import Chart, Series, line_chart, render_page

EXTRA = "loadtests"
MEASURED_HEADER = ("kind", "requests", "failed", "refused", "right/s", "p50 ms", "p95 ms", "p99 ms", "agree")
_PERCENTILES = ("p50", "p95", "p99")
#: From 0 to 99.99: the tail gets as many as the body.
_SHARES = (*range(0, 90, 5), *np.arange(90, 99, 0.5).tolist(), *np.arange(99, 99.99, 0.05).tolist(), 99.99)


def page(report: Report, over_time: Sequence[Window]) -> str:
    """The report as one self-contained page."""
    run = report.run
    return render_page(
        "modelyard.loadtests.report",
        "report.html",
        extra=EXTRA,
        report=report,
        metrics=[row.values() for row in report.metrics],
        measured_header=MEASURED_HEADER,
        measured_rows=[measured_cells(row) for row in report.measured],
        curve=curve_chart(report) if report.curve else None,
        curve_rows=[
            (
                f"{point.rate:.1f}", f"{point.answered_per_s:.1f}", f"{point.p50_ms:.2f}", f"{point.p95_ms:.2f}",
                f"{point.p99_ms:.2f}", "yes" if point.kept else "no",
            )
            for point in sorted(report.curve, key=lambda point: point.rate)
        ],
        charts=_charts(run, over_time, _limit(report)) if run and over_time else {},
        events=[(f"{at:.1f} s", text) for at, text in run.events] if run else [],
        failures=[(text[:200], count) for text, count in list(run.log.reasons.items())[:10]] if run else [],
    )  # fmt: skip


def measured_cells(row: Measured) -> tuple[str, ...]:
    """One row of :data:`MEASURED_HEADER`."""
    return (
        row.name, str(row.requests), str(row.failures), str(row.refused), f"{row.answered_per_s:.1f}",
        f"{row.p50_ms:.2f}", f"{row.p95_ms:.2f}", f"{row.p99_ms:.2f}",
        f"{row.matches / row.known:.2%}" if row.known else "-",
    )  # fmt: skip


def _charts(run: Run, over_time: Sequence[Window], limit: float | None) -> dict[str, Chart | None]:
    x = [window.begin_s for window in over_time]
    throughput = [
        Series(name="due", x=x, y=[window.due_per_s for window in over_time]),
        Series(name="right answers", x=x, y=[window.ok_per_s for window in over_time]),
    ]
    if any(window.failed_per_s for window in over_time):
        throughput.append(Series(name="failed or refused", x=x, y=[window.failed_per_s for window in over_time]))
    latency = [
        Series(name=name, x=x, y=[getattr(window, f"{name}_ms") for window in over_time]) for name in _PERCENTILES
    ]
    marks = run.events
    found = {
        "Throughput over time": line_chart(throughput, x_label="seconds", y_label="per second", marks=marks),
        "Latency over time": line_chart(latency, x_label="seconds", y_label="ms", marks=marks, level=limit, log_y=True),
        "Percentiles": _percentiles(run),
    }
    if run.server:
        ends = [split.end_s for split in run.server]
        areas = [
            Series(name="runtime", x=ends, y=[split.compute_ms for split in run.server]),
            Series(name="batch queue", x=ends, y=[split.queue_ms for split in run.server]),
            Series(name="other queues and codec", x=ends, y=[split.rest_ms for split in run.server]),
        ]
        found["Time inside the server, by its own metrics"] = line_chart(
            areas, x_label="seconds", y_label="ms for each request", marks=marks, stacked=True
        )
    return found


def _percentiles(run: Run) -> Chart | None:
    log = run.log
    nines = [-math.log10(1 - share / 100) for share in _SHARES]
    series = []
    for index, kind in enumerate(log.kinds):
        values = log.latency_ms[log.ok & (log.kind == index)]
        if len(values):
            series.append(Series(name=kind, x=nines, y=percentiles(values, _SHARES)))
    return line_chart(series, x_label="nines: 1 is p90, 2 is p99, 3 is p99.9", y_label="ms", log_y=True)


def curve_chart(report: Report) -> Chart | None:
    """Latency by throughput: of a rate that was tried several times the median."""
    rates = sorted({point.rate for point in report.curve})
    series = [
        Series(
            name=name,
            x=rates,
            y=[
                statistics.median(getattr(each, f"{name}_ms") for each in report.curve if each.rate == rate)
                for rate in rates
            ],
        )
        for name in _PERCENTILES
    ]
    return line_chart(
        series, x_label="requests per second that were due", y_label="ms", level=_limit(report), log_y=True, points=True
    )


def _limit(report: Report) -> float | None:
    return next((check.limit for check in report.checks if check.name == "max_p99_ms"), None)
