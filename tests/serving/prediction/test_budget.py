"""Bytes that requests take beyond what was sent."""

from __future__ import annotations

import pytest

from modelyard.errors import OverloadedError, RequestTooLargeError
from modelyard.serving.prediction._budget import Budget


def test_requests_share_the_budget_and_give_it_back() -> None:
    refused: list[int] = []
    budget = Budget(100, lambda: refused.append(budget.used))
    first, second = budget.charge(), budget.charge()
    first.take(-5)
    first.take(60)
    second.take(30)
    with pytest.raises(OverloadedError, match="hold 90 bytes already, of --max_inflight_bytes=100; ask again") as info:
        second.take(11)
    assert (info.value.retry_after_s, refused, budget.used) == (1.0, [90], 90)
    with pytest.raises(RequestTooLargeError, match="becomes 101 bytes more .* expected at most 100"):
        second.take(101)
    with first:
        pass
    assert budget.used == 30
    # Its caller has gone, and a thread still works on it.
    first.take(50)
    assert budget.used == 30
    second.release()
    second.release()
    assert budget.used == 0


def test_no_limit_takes_anything() -> None:
    budget = Budget(0, lambda: pytest.fail("nothing is refused"))
    with budget.charge() as charge:
        charge.take(1 << 50)
        assert budget.used == 1 << 50
    assert budget.used == 0
