"""What work is expected to take, and what those are told that may not wait for it."""

from __future__ import annotations

import time

import pytest

from modelyard.errors import OverloadedError
from modelyard.serving.batching import ModelThreads
from modelyard.serving.batching._admission import Cost
from modelyard.serving.requests import Caller


def test_a_pause_of_the_machine_counts_as_four_times_the_usual() -> None:
    cost = Cost()
    cost.learn(2.0, 1)
    cost.learn(100.0, 1)
    assert cost.seconds == pytest.approx(2.0 + 0.2 * (4 * 2.0 - 2.0))


def test_half_the_size_takes_half_the_time() -> None:
    cost = Cost()
    cost.learn(2.0, 100)
    assert [cost.of(size) for size in (50, 100, 0)] == [1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("backlog_s", "retry_after_s"), [(1.001, 0.05), (1.049, 0.05), (1.051, 0.1), (1.62, 0.65), (500.0, 10.0)]
)
def test_who_is_refused_is_told_when_to_try_again(backlog_s: float, retry_after_s: float) -> None:
    threads = ModelThreads(threads=1, workers=1, max_delay_s=1.0)
    threads.enter(None, backlog_s)
    with pytest.raises(OverloadedError, match=rf"about {backlog_s:.2f} s, longer than the 1.00 s there are") as caught:
        threads.enter(None, 0.0)
    assert caught.value.retry_after_s == pytest.approx(retry_after_s)
    threads.leave(backlog_s)
    threads.close()


def test_a_deadline_that_has_passed_leaves_no_time() -> None:
    threads = ModelThreads(threads=1, workers=1)
    threads.enter(None, 1.0)
    with pytest.raises(OverloadedError, match=r"longer than the 0\.00 s there are"):
        threads.enter(Caller(deadline=time.monotonic() - 5.0), 0.0)
    threads.leave(1.0)
    threads.close()


def test_who_was_let_in_keeps_the_place_between_two_steps() -> None:
    threads = ModelThreads(threads=1, workers=1, max_waiting=1)
    first, second = Caller(), Caller()
    threads.enter(first, 0.0)
    # Decoded; another comes before it is queued to be computed.
    threads.leave(0.0)
    threads.enter(second, 0.0)
    threads.enter(first, 0.0)
    with pytest.raises(OverloadedError, match="2 requests wait, the most that --max_queued_requests allows"):
        threads.enter(Caller(), 0.0)
    threads.leave(0.0)
    threads.leave(0.0)
    threads.close()
