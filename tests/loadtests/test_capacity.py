"""What is found out about servers of which it is known what they can do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from modelyard.errors import LoadTestError
from modelyard.loadtests import Limits
from modelyard.loadtests.compare import (
    Capacity,
    CapacityOptions,
    CompareOptions,
    Comparison,
    Interval,
    compare,
    find_capacity,
)
from modelyard.loadtests.generate import Log, Outcome, Run, Session, run_precisely
from modelyard.loadtests.options import Shape

METRICS = ("throughput", "p50", "p95", "p99")


def log_of(due: Any, done: Any, *, seconds: float, outcome: Outcome = Outcome.OK) -> Log:
    count = len(due)
    return Log(
        kinds=("grpc x",),
        kind=np.zeros(count, np.uint16),
        intended=np.asarray(due),
        sent=np.asarray(due),
        done=np.asarray(done),
        outcome=np.full(count, outcome, np.uint8),
        rows=np.ones(count, np.int64),
        matches=np.ones(count, np.int64),
        seconds=seconds,
    )


class Server:
    """In place of a session: one that answers so many per second, each after so many seconds at least."""

    def __init__(
        self, per_s: float, *, least_s: float = 0.0, slow: Callable[[float, int], bool] = lambda rate, run: False
    ) -> None:
        self.per_s, self.least_s, self._slow = per_s, least_s, slow
        self.outcome = Outcome.OK
        self.runs: Counter[float] = Counter()
        self.generator = self

    async def closed(self, requests: Sequence[Any], *, in_flight: int, seconds: float, seed: int = 0) -> Log:
        due = np.arange(round(self.per_s * seconds)) / self.per_s
        return log_of(due, due, seconds=seconds, outcome=self.outcome)

    async def open(self, shape: Shape, requests: Sequence[Any], *, seed: int = 0) -> Run:
        rate = shape.rate(0)
        self.runs[rate] += 1
        due = np.concatenate(list(shape.arrivals(poisson=True, seed=seed)))
        # One after the other, in a queue: each is done when those before it are, and itself.
        number = np.arange(1, len(due) + 1)
        done = (np.maximum.accumulate(due - (number - 1) / self.per_s)) + number / self.per_s
        more = self.least_s + (1.0 if self._slow(rate, self.runs[rate]) else 0.0)
        return Run(log=log_of(due, done + more, seconds=shape.seconds, outcome=self.outcome))


def found(server: Server, limits: Limits, **options: Any) -> Capacity:
    async def main() -> Capacity:
        looking = CapacityOptions(limits=limits, **options)
        return await find_capacity(cast(Session, server), (), looking, tell=lambda text: None)

    return run_precisely(main())


@pytest.mark.parametrize("per_s", [200, 800])
def test_the_capacity_is_the_rate_at_which_the_queue_is_as_long_as_allowed(per_s: float) -> None:
    """One request in a hundred waits longer than ln(100 u) u / (2 (1 - u)) others take, at a utilization u."""
    capacity = found(Server(per_s), Limits(max_p99_ms=20_000 / per_s))
    assert capacity.rate == pytest.approx(0.893 * per_s, rel=0.08)
    assert capacity.per_s == pytest.approx(capacity.rate, rel=0.05)
    assert capacity.closed == per_s
    assert capacity.broken_at is not None and capacity.rate < capacity.broken_at < 1.2 * capacity.rate
    # With a shorter queue it can do less.
    shorter = found(Server(per_s), Limits(max_p99_ms=5_000 / per_s))
    assert shorter.rate == pytest.approx(0.62 * per_s, rel=0.12)


def test_a_queue_that_grows_is_no_capacity_whatever_the_latency_may_be() -> None:
    capacity = found(Server(500), Limits())
    assert 0.9 * 500 < capacity.rate < 1.05 * 500
    rates = {kept: [point.rate for point in capacity.points if point.kept is kept] for kept in (True, False)}
    assert max(rates[True]) < 1.1 * 500 and min(rates[False]) > 0.95 * 500


def test_a_server_that_is_always_too_slow_has_none() -> None:
    capacity = found(Server(500, least_s=0.05), Limits(max_p99_ms=20))
    assert (capacity.per_s, capacity.confirmations[0].kept) == (0.0, False)
    assert capacity.verdict().startswith("no capacity: even at 1.0 requests per second only 0 of 3 runs")
    refused = Server(500)
    refused.outcome = Outcome.REFUSED
    with pytest.raises(LoadTestError, match="gave no right answer"):
        found(refused, Limits(max_p99_ms=20))


def test_a_rate_that_two_of_three_runs_do_not_bear_is_not_the_capacity() -> None:
    """The run of the search keeps the limits, and so does the second at the same rate; the next two break them."""
    capacity = found(Server(5000, slow=lambda rate, run: rate > 2000 or run in (3, 4)), Limits(max_p99_ms=20))
    assert capacity.broken_at == pytest.approx(capacity.rate / 0.92)
    assert [trial.kept for trial in capacity.confirmations] == [True, True, False]
    assert "2 of 3 runs at that rate kept every limit" in capacity.verdict()


def compared(first: Server, second: Server, **options: Any) -> Comparison:
    async def main() -> Comparison:
        looking = CompareOptions(round_s=1.0, **options)
        sessions = cast(Session, first), cast(Session, second)
        return await compare(*sessions, ((), ()), looking, tell=lambda text: None)

    return run_precisely(main())


def test_the_slower_of_two_servers_is_the_worse_one() -> None:
    fast, slow = Server(1000, least_s=0.1), Server(500, least_s=0.2)
    comparison = compared(fast, slow)
    # Half of what the slower one can do.
    assert comparison.rate == 250
    assert comparison.ratios["throughput"].value == pytest.approx(0.5)
    assert comparison.values["throughput"] == pytest.approx((1000, 500))
    for name in METRICS[1:]:
        assert comparison.ratios[name].value == pytest.approx(2, rel=0.1)
        assert comparison.values[name] == pytest.approx((100, 200), rel=0.1)
    assert comparison.text().startswith("B is worse: throughput, p50, p95, p99 (6 pairs")
    assert compared(slow, fast).text().startswith("B is better: throughput, p50, p95, p99 (6 pairs")
    order = [(each["round"], each["server"]) for each in comparison.rounds[:4]]
    assert order == [(1, "A"), (1, "B"), (2, "B"), (2, "A")]
    for row, p99 in zip(comparison.measured, (100, 200), strict=True):
        assert row.requests == pytest.approx(6 * 250, rel=0.1)
        assert row.p99_ms == pytest.approx(p99, rel=0.1)
    assert "no difference between A and B" in compared(Server(500), Server(500)).text()


def test_a_server_without_a_right_answer_is_not_compared() -> None:
    refusing = Server(500)
    refusing.outcome = Outcome.REFUSED
    with pytest.raises(LoadTestError, match="B gave no right answer in a whole round"):
        compared(Server(500), refusing)


@pytest.mark.parametrize(
    ("limits", "broken"),
    [
        ({"min_throughput_ratio": 0.79}, []),
        ({"min_throughput_ratio": 0.8}, []),
        # Only where the whole interval is beyond it.
        ({"min_throughput_ratio": 1.0}, []),
        ({"min_throughput_ratio": 1.01}, ["throughput_ratio"]),
        ({"max_latency_ratio": 2.1}, []),
        ({"max_latency_ratio": 1.5}, []),
        ({"max_latency_ratio": 1.4}, ["p50_ratio", "p95_ratio", "p99_ratio"]),
        ({}, []),
    ],
)
def test_limits_of_a_comparison(limits: dict[str, float], broken: list[str]) -> None:
    ratios = {name: Interval(value=1.75, low=1.5, high=2.0) for name in METRICS}
    ratios["throughput"] = Interval(value=math.sqrt(0.8), low=0.8, high=1.0)
    comparison = Comparison(
        ratios=ratios, values={}, rate=1, rounds=(), measured=compared(Server(500), Server(500), rounds=2).measured
    )  # fmt: skip
    given = {"min_throughput_ratio": None, "max_latency_ratio": None, **limits}
    checks = comparison.checks(**given)
    assert len(checks) == ("min_throughput_ratio" in limits) + 3 * ("max_latency_ratio" in limits)
    assert [check.name for check in checks if not check.kept] == broken
