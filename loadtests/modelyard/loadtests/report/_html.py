"""The report as one self-contained page."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from modelyard.loadtests.generate import Run, percentiles
from modelyard.loadtests.report._charts import LINES, Series, line_chart, picture
from modelyard.loadtests.report._results import Point, Report, Window

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 860px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
.verdict { display: inline-block; padding: .1rem .7rem; border-radius: 3px; font-weight: 600; color: #fff; }
.passed { background: #00735c; } .broken { background: #b3261e; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid #e2e2e2; }
th:first-child, td:first-child, .plain td, .plain th { text-align: left; }
.plain td:first-child { white-space: nowrap; color: #555; width: 14rem; }
.chart svg { width: 100%; height: auto; } .chart text { font: 11px system-ui, sans-serif; fill: #444; }
@LINES@
.legend span { margin-right: 1rem; font-size: .85rem; } .legend i { display: inline-block; width: .8rem;
  height: .8rem; margin-right: .3rem; vertical-align: -1px; border-radius: 2px; }
.when, .empty { color: #666; } .bad { color: #b3261e; font-weight: 600; }
""".replace("@LINES@", LINES)


def page(report: Report, over_time: Sequence[Window]) -> str:
    """Draws the page.

    Args:
        report: The report.
        over_time: Its windows.
    """
    colour = "passed" if report.passed and not report.worse else "broken"
    parts = [
        f"<h1>{html.escape(report.title)}</h1>",
        f'<p class="when">{html.escape(report.when)} <span class="verdict {colour}">{report.badge}</span></p>',
        f"<p>{html.escape(report.verdict)}</p>" if report.verdict else "",
        _heading("Result"),
        _rows(tuple(report.metrics[0]), [tuple(row.values()) for row in report.metrics]) if report.metrics else "",
        _rows(
            ("kind", "requests", "failed", "refused", "right/s", "p50 ms", "p95 ms", "p99 ms", "agree"),
            [
                (
                    row.name, str(row.requests), str(row.failures), str(row.refused), f"{row.answered_per_s:.1f}",
                    f"{row.p50_ms:.2f}", f"{row.p95_ms:.2f}", f"{row.p99_ms:.2f}",
                    f"{row.hits / row.known:.2%}" if row.known else "–",
                )
                for row in report.measured
            ],
        ),
    ]  # fmt: skip
    if report.checks:
        parts += [_heading("Limits"), _checks(report)]
    if report.curve:
        parts += [_heading("Latency by throughput"), _curve(report.curve, _limit(report))]
    if report.run is not None and over_time:
        parts += _over_time(report.run, over_time, _limit(report))
    parts += [f"<p>{html.escape(note)}</p>" for note in report.notes]
    parts += [
        _heading("Plan"), _plain(report.plan), _heading("Machine"), _plain(report.machine),
        _heading("Versions"), _plain(report.versions),
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(report.title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _over_time(run: Run, over_time: Sequence[Window], limit: float | None) -> list[str]:
    x = [window.begin_s for window in over_time]
    throughput = [
        Series(name="due", x=x, y=[window.due_per_s for window in over_time]),
        Series(name="right answers", x=x, y=[window.ok_per_s for window in over_time]),
    ]
    if any(window.failed_per_s for window in over_time):
        throughput.append(Series(name="failed or refused", x=x, y=[window.failed_per_s for window in over_time]))
    latency = [
        Series(name=name, x=x, y=[getattr(window, f"{name}_ms") for window in over_time])
        for name in ("p50", "p95", "p99")
    ]
    parts = [
        _heading("Throughput over time"),
        line_chart(throughput, x_label="seconds", y_label="per second", marks=run.events),
        _heading("Latency over time"),
        line_chart(latency, x_label="seconds", y_label="ms", marks=run.events, level=limit, log_y=True),
    ]
    if run.events:
        parts.append(_plain({f"{at:.1f} s": text for at, text in run.events}))
    parts += [_heading("Percentiles"), _percentiles(run)]
    if run.server:
        x = [split.end_s for split in run.server]
        areas = [
            Series(name=name, x=x, y=[getattr(split, field) for split in run.server])
            for name, field in (
                ("runtime", "compute_ms"),
                ("batch queue", "queue_ms"),
                ("other queues and codec", "rest_ms"),
            )
        ]
        parts += [
            _heading("Time inside the server, by its own metrics"),
            line_chart(areas, x_label="seconds", y_label="ms for each request", marks=run.events, stacked=True),
        ]
    if run.log.reasons:
        counts = {text[:200]: str(count) for text, count in list(run.log.reasons.items())[:10]}
        parts += [_heading("Failures"), _rows(("reason", "requests"), list(counts.items()))]
    return parts


def _percentiles(run: Run) -> str:
    """Latency by percentile: the tail gets as much room as the body."""
    log = run.log
    shares = [
        *range(0, 90, 5),
        *(90 + each * 0.5 for each in range(18)),
        *(99 + each * 0.05 for each in range(20)),
        99.99,
    ]
    series = []
    for index, kind in enumerate(log.kinds):
        values = log.latency_ms[log.ok & (log.kind == index)]
        if len(values):
            series.append(
                Series(name=kind, x=[-math.log10(1 - share / 100) for share in shares], y=percentiles(values, shares))
            )
    return line_chart(series, x_label="nines: 1 is p90, 2 is p99, 3 is p99.9", y_label="ms", log_y=True)


def _curve(curve: Sequence[Point], limit: float | None) -> str:
    rows = [
        (f"{point.rate:.1f}", f"{point.answered_per_s:.1f}", f"{point.p50_ms:.2f}", f"{point.p95_ms:.2f}",
         f"{point.p99_ms:.2f}", "yes" if point.kept else "no")
        for point in sorted(curve, key=lambda point: point.rate)
    ]  # fmt: skip
    head = ("due/s", "right/s", "p50 ms", "p95 ms", "p99 ms", "within limits")
    return _curve_chart(_curve_series(curve), limit) + _rows(head, rows)


def _curve_series(curve: Sequence[Point]) -> list[Series]:
    """A line for each percentile; of a rate that was tried several times the median."""
    rates = sorted({point.rate for point in curve})
    return [
        Series(
            name=name,
            x=rates,
            y=[statistics.median(getattr(each, f"{name}_ms") for each in curve if each.rate == rate) for rate in rates],
            points=True,
        )
        for name in ("p50", "p95", "p99")
    ]


def _curve_chart(series: Sequence[Series], limit: float | None) -> str:
    return line_chart(series, x_label="requests per second that were due", y_label="ms", level=limit, log_y=True)


def curve_picture(report: Report) -> str:
    """Latency by throughput as an SVG file of its own.

    Args:
        report: A report with a curve.
    """
    series = _curve_series(report.curve)
    return picture(series, _curve_chart(series, _limit(report)))


def _limit(report: Report) -> float | None:
    limits = [check.limit for check in report.checks if check.name == "max_p99_ms"]
    return limits[0] if limits else None


def _checks(report: Report) -> str:
    body = "".join(
        f"<tr><td>{html.escape(check.subject)}</td><td>{html.escape(check.name)}</td>"
        f"<td{'' if check.kept else ' class=bad'}>{'kept' if check.kept else 'BROKEN'}</td>"
        f"<td>{html.escape(check.text)}</td></tr>"
        for check in sorted(report.checks, key=lambda each: each.kept)
    )
    return f'<table class="plain">{body}</table>'


def _heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def _plain(values: Mapping[str, str]) -> str:
    body = "".join(f"<tr><td>{html.escape(key)}</td><td>{html.escape(text)}</td></tr>" for key, text in values.items())
    return f'<table class="plain">{body}</table>'


def _rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"
