"""Rounds of a run as one run, and what is made of their shares."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from modelyard.loadtests import Limits, Measured
from modelyard.loadtests.generate import Log, Outcome, Run, Split
from modelyard.loadtests.options import check_limits
from modelyard.loadtests.scenarios._overload import _whole, joined

ROW = Measured(
    name="a", requests=10, failures=0, refused=0, p50_ms=1, p95_ms=1, p99_ms=1, known=10, matches=10, seconds=1
)


def run(kinds: str, *, seconds: float) -> Run:
    names = tuple(dict.fromkeys(kinds))
    due = np.array([index * 0.1 for index in range(len(kinds))], np.float64)
    log = Log(
        kinds=names,
        kind=np.array([names.index(kind) for kind in kinds], np.uint16),
        intended=due,
        sent=due + 0.01,
        done=due + 0.05,
        outcome=np.array([Outcome.REFUSED if kind == "x" else Outcome.OK for kind in kinds], np.uint8),
        rows=np.ones(len(kinds), np.int64),
        matches=np.ones(len(kinds), np.int64),
        seconds=seconds,
        reasons={"x: full": kinds.count("x")} if "x" in kinds else {},
    )
    split = Split(begin_s=0, end_s=1, requests=1, total_ms=1, compute_ms=1, queue_ms=0, rest_ms=0)
    return Run(log=log, server=(split,), events=((0.5, "!"),), generator_cpu=seconds / 10)


def test_rounds_follow_each_other() -> None:
    together = joined([run("ab", seconds=1.0), run("bxa", seconds=3.0)])
    log = together.log
    assert [log.kinds[index] for index in log.kind] == ["a", "b", "b", "x", "a"]
    assert log.intended == pytest.approx([0, 0.1, 1, 1.1, 1.2])
    assert log.latency_ms == pytest.approx([50.0] * 5)
    assert log.late_ms == pytest.approx([10.0] * 5)
    assert (log.seconds, log.reasons) == (4.0, {"x: full": 1})
    assert np.flatnonzero(~log.ok).tolist() == [3]
    assert [(row.name, row.requests, row.refused) for row in log.by_kind()] == [("a", 2, 0), ("b", 2, 0), ("x", 1, 1)]
    assert [(split.begin_s, split.end_s) for split in together.server] == [(0, 1), (1, 2)]
    assert together.events == ((0.5, "!"), (1.5, "!"))
    # Each counts by its length.
    assert together.generator_cpu == pytest.approx((0.1 * 1 + 0.3 * 3) / 4)


def test_a_backlog_counts_as_time() -> None:
    """Ten requests within a second, of which the last is answered after two: five per second, not ten."""
    log = run("a" * 10, seconds=1.0).log
    late = dataclasses.replace(log, done=np.linspace(0.2, 2.0, 10))
    assert _whole(Run(log=late)).log.measured().answered_per_s == pytest.approx(5)
    # What fails is no work, however long it takes.
    failed = dataclasses.replace(late, outcome=np.array([Outcome.OK] * 5 + [Outcome.TIMEOUT] * 5, np.uint8))
    assert _whole(Run(log=failed)).log.seconds == 1.0
    assert _whole(Run(log=log)).log.seconds == 1.0


@pytest.mark.parametrize(
    ("goodput", "kept", "text"),
    [
        ((0.95, 0.2, 0.92), True, "of what the server can do, the median of 95%, 20%, 92%; expected at least 0.9"),
        ((0.85,), False, "at 85.0% of what the server can do; expected at least 0.9"),
        ((), False, "it was not measured what the server can do; expected at least 0.9"),
    ],
)  # fmt: skip
def test_one_bad_round_does_not_decide(goodput: tuple[float, ...], kept: bool, text: str) -> None:
    checks = check_limits(Limits(min_goodput=0.9), [ROW], total=ROW, goodput=goodput)
    (check,) = (each for each in checks if each.name == "min_goodput")
    assert check.kept is kept
    assert check.text.endswith(text)
