"""What a comparison says, and that nothing says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.loadtests import Measured
from modelyard.loadtests.compare import Comparison, Interval
from modelyard.loadtests.options import Check
from modelyard.loadtests.report import Report, write_report

METRICS = ("throughput", "p50", "p95", "p99")
ROW = Measured(name="A", requests=9, failures=0, p50_ms=1, p95_ms=2, p99_ms=3, known=0, matches=0, seconds=1)
KEPT = Check(subject="A", name="max_error_rate", limit=0, value=0, kept=True, text="0 of 9 requests failed")


def comparison(**ratios: tuple[float, float]) -> Comparison:
    """Of metrics that are not named no difference is shown."""
    found = {name: Interval(value=1.0, low=0.5, high=2.0) for name in METRICS}
    found |= {name: Interval(value=(low + high) / 2, low=low, high=high) for name, (low, high) in ratios.items()}
    return Comparison(
        ratios=found, values=dict.fromkeys(METRICS, (10.0, 20.0)), rate=50, rounds=({},) * 8, measured=(ROW, ROW)
    )


def report(found: Comparison, checks: list[Check]) -> Report:
    return Report(
        title="t", plan={}, measured=[ROW], checks=checks, verdict=found.text(), worse=found.worse,
        metrics=found.table(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ratios", "text", "worse"),
    [
        ({}, "no difference between A and B is shown (4 pairs", ""),
        ({"throughput": (1.1, 1.3)}, "B is better: throughput (4", ""),
        ({"throughput": (0.7, 0.9)}, "B is worse: throughput (4", "B is worse"),
        ({"p99": (1.1, 1.3), "p50": (0.7, 0.9)}, "B is worse: p99; B is better: p50 (4", "B is worse"),
        ({"p95": (0.7, 1.0)}, "no difference", ""),
    ],
)
def test_the_verdict(ratios: dict[str, tuple[float, float]], text: str, worse: str) -> None:
    found = comparison(**ratios)
    assert found.text().startswith(text)
    assert found.worse == worse
    verdicts = {row["metric"].split()[0]: row["verdict"] for row in found.table()}
    assert [name for name, verdict in verdicts.items() if verdict != "no difference shown"] == [
        name for name in METRICS if name in ratios and not ratios[name][0] <= 1 <= ratios[name][1]
    ]


def test_a_worse_server_is_not_called_fine(tmp_path: Path) -> None:
    def page(found: Report) -> str:
        write_report(found, tmp_path)
        return (tmp_path / "report.html").read_text("utf-8")

    worse = page(report(comparison(p99=(1.1, 1.3)), [KEPT]))
    assert "all limits kept" not in worse
    assert '<span class="badge failed">B is worse</span>' in worse
    assert "1.1 to 1.3" in worse
    assert '<span class="badge">all limits kept</span>' in page(report(comparison(), [KEPT]))
    broken = Check(subject="B / A", name="p99_ratio", limit=1, value=1.2, kept=False, text="1.2")
    assert '<span class="badge failed">limits broken</span>' in page(report(comparison(), [KEPT, broken]))
