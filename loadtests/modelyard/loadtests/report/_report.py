"""What a run leaves on disk: JSON, CSV, JUnit XML and a page; and the tables on the terminal."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

from modelyard.console import printable
from modelyard.errors import LoadTestError
from modelyard.loadtests.generate import Run, percentiles
from modelyard.loadtests.options import Check, Measured
from modelyard.loadtests.report._html import EXTRA, MEASURED_HEADER, curve_chart, measured_cells, page
from modelyard.loadtests.report._results import Report, Window, windows
from modelyard.reports import chart_file

#: The generator counts as part of what was measured where it is later than this.
LATE_MS = 5.0


def generator_notes(run: Run) -> list[str]:
    """Whether the generator itself was late, which is part of the latencies."""
    if not len(run.log.late_ms):
        return []
    p50, p99 = percentiles(run.log.late_ms, (50, 99))
    text = (
        f"The generator took {run.generator_cpu:.0%} of a core and sent requests {p50:.2f} ms late (p99 {p99:.2f} ms)."
    )
    if p99 > LATE_MS:
        text += (
            " That is a part of the latencies here: run it on a machine of its own, at a lower rate, "
            "or use the generator h2load."
        )
    return [text]


def table(measured: Sequence[Measured]) -> str:
    """The kinds of request, for the terminal."""
    return _grid(MEASURED_HEADER, [measured_cells(row) for row in measured])


def metrics_table(metrics: Sequence[Mapping[str, str]]) -> str:
    """What was compared, for the terminal."""
    return _grid(tuple(metrics[0]), [tuple(row.values()) for row in metrics], left=1)


def checks_table(checks: Sequence[Check]) -> str:
    """Limits for the terminal, broken ones first."""
    rows = [
        ("ok" if check.kept else "BROKEN", check.subject, check.name, f"{check.limit:g}", _short(check.value))
        for check in sorted(checks, key=lambda each: each.kept)
    ]
    return _grid(("", "of", "limit", "is", "measured"), rows)


def write_broken(checks: Sequence[Check]) -> None:
    """Says on the standard error which limits are broken; names in it are the server's."""
    for check in checks:
        if not check.kept:
            sys.stderr.write(printable(f"load test: LIMIT BROKEN: {check.subject}: {check.text}") + "\n")


def _short(value: float) -> str:
    """Four digits, or as many as there are before the point and one behind it, as the other tables have it."""
    if abs(value) < 1000:
        return f"{value:.4g}"
    return f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 2) -> str:
    widths = [max(len(row[index]) for row in (head, *rows)) for index in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines)


def write_junit(checks: Sequence[Check], title: str, path: Path) -> None:
    """Writes the limits as JUnit XML: a test case for each."""
    failures = sum(not check.kept for check in checks)
    suite = ElementTree.Element("testsuite", name=title, tests=str(len(checks)), failures=str(failures), errors="0")
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname=f"{title}.{check.subject}", name=check.name)
        if not check.kept:
            ElementTree.SubElement(case, "failure", message=check.text).text = check.text
    _write(path, ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n")


def write_report(report: Report, folder: Path) -> list[Path]:
    """Writes ``report.json``, ``timeline.csv``, ``summary.csv``, ``junit.xml`` and ``report.html``.

    Of a capacity also ``curve.csv`` and ``curve.svg``.
    """
    over_time = windows(report.run) if report.run else []
    files = {
        "report.json": json.dumps(_plain(to_json(report, over_time)), indent=1, allow_nan=False) + "\n",
        "summary.csv": _csv(
            [{**dataclasses.asdict(row), "answered_per_s": row.answered_per_s} for row in report.measured]
        ),
        "report.html": page(report, over_time),
    }
    if over_time:
        files["timeline.csv"] = _csv([dataclasses.asdict(each) for each in over_time])
    if report.curve:
        files["curve.csv"] = _csv([dataclasses.asdict(each) for each in report.curve])
        chart = curve_chart(report)
        if chart is not None:
            files["curve.svg"] = chart_file(chart, extra=EXTRA)
    for name, text in files.items():
        _write(folder / name, text)
    write_junit(report.checks, report.title, folder / "junit.xml")
    return [*(folder / name for name in files), folder / "junit.xml"]


def to_json(report: Report, over_time: Sequence[Window]) -> dict[str, object]:
    """The report as plain values."""
    run = report.run
    return {
        "title": report.title,
        "when": report.when,
        "passed": report.passed,
        "verdict": report.verdict,
        "metrics": [dict(row) for row in report.metrics],
        "plan": dict(report.plan),
        "measured": [{**dataclasses.asdict(row), "answered_per_s": row.answered_per_s} for row in report.measured],
        "checks": [dataclasses.asdict(check) for check in report.checks],
        "curve": [dataclasses.asdict(point) for point in report.curve],
        "timeline": [dataclasses.asdict(window) for window in over_time],
        "server": [dataclasses.asdict(split) for split in (run.server if run else ())],
        "events": [{"at_s": at, "text": text} for at, text in (run.events if run else ())],
        "failures": dict(run.log.reasons) if run else {},
        "notes": list(report.notes),
        "machine": dict(report.machine),
        "versions": dict(report.versions),
    }


def _plain(value: object) -> object:
    """JSON knows no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(rows: Sequence[Mapping[str, object]]) -> str:
    import io

    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as exc:
        raise LoadTestError(f"Cannot write {path}: {exc.strerror}.") from exc
