"""Quotas by a clock of the test's own."""

from __future__ import annotations

import pytest

from modelyard.errors import OverloadedError
from modelyard.serving.access._quotas import Limits, Quota


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def enter(quota: Quota, rows: int = 0) -> float:
    """Lets a request in, and out; the seconds that it is asked to wait, 0 where it is not."""
    try:
        quota.enter()
    except OverloadedError as exc:
        assert exc.retry_after_s is not None
        return exc.retry_after_s
    quota.charge(rows)
    quota.leave()
    return 0.0


def test_a_second_s_worth_may_come_at_once() -> None:
    clock = Clock()
    quota = Quota("a", Limits(requests_per_second=4), clock)
    assert [enter(quota) for _ in range(5)] == [0, 0, 0, 0, 0.25]
    clock.now += 0.2
    assert enter(quota) == pytest.approx(0.05)
    clock.now += 0.05
    assert enter(quota) == 0
    clock.now += 3600
    assert [enter(quota) for _ in range(5)] == [0, 0, 0, 0, 0.25]


def test_less_than_one_in_a_second() -> None:
    clock = Clock()
    quota = Quota("a", Limits(requests_per_second=0.1), clock)
    assert [enter(quota), enter(quota)] == [0, pytest.approx(10)]
    clock.now += 10
    assert enter(quota) == 0


def test_more_rows_than_there_are_are_paid_back() -> None:
    clock = Clock()
    quota = Quota("a", Limits(rows_per_second=10), clock)
    assert enter(quota, rows=30) == 0
    assert enter(quota) == pytest.approx(2.1)
    clock.now += 2.2
    assert enter(quota, rows=1) == 0


def test_what_is_undone_does_not_count() -> None:
    quota = Quota("a", Limits(requests_per_second=1, max_in_flight=1), Clock())
    for _ in range(3):
        quota.enter()
        quota.leave(undo=True)
    quota.enter()
    with pytest.raises(OverloadedError, match="max_in_flight = 1"):
        quota.enter()
    quota.leave()
    with pytest.raises(OverloadedError, match="requests_per_second = 1"):
        quota.enter()
