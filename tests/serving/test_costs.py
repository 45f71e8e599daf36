"""What a request will cost is guessed from those before it."""

from __future__ import annotations

import random

import pytest

from modelyard.serving._costs import RequestCost


def test_nothing_is_known_of_the_first_one() -> None:
    assert RequestCost().of(1000) == RequestCost().of(0) == 0


def test_large_requests_cost_more() -> None:
    cost = RequestCost()
    cost.learn(0.002, 1000)
    assert cost.of(4000) == pytest.approx(0.008)
    # Of a transport that does not say how large they are: as much as one did that was measured.
    assert cost.of(0) == pytest.approx(0.002)
    cost.learn(0.005, 0)
    assert cost.of(0) == pytest.approx(0.005)
    assert cost.of(1000) == pytest.approx(0.002)


def test_a_queue_of_small_and_large_ones_is_guessed_rightly() -> None:
    rng = random.Random(0)
    cost = RequestCost()

    def seconds(size: int) -> float:
        return 0.001 + size * 1e-6

    sizes = [rng.choice((500, 8000)) for _ in range(400)]
    for size in sizes:
        cost.learn(seconds(size), size)
    assert sum(map(cost.of, sizes)) == pytest.approx(sum(map(seconds, sizes)), rel=0.35)


def test_changes_are_followed() -> None:
    cost = RequestCost()
    for _ in range(10):
        cost.learn(0.001, 100)
    for _ in range(50):
        cost.learn(0.01, 100)
    assert cost.of(100) == pytest.approx(0.01, rel=0.01)


def test_one_pause_of_the_machine_does_not_shut_the_door() -> None:
    cost = RequestCost()
    cost.learn(0.001, 100)
    cost.learn(10.0, 100)
    assert cost.of(100) < 0.002
    # What lasts is followed, all the same.
    for _ in range(60):
        cost.learn(10.0, 100)
    assert cost.of(100) == pytest.approx(10.0, rel=0.1)


def test_what_is_much_larger_than_all_before_is_not_shut_out() -> None:
    cost = RequestCost()
    for _ in range(50):
        cost.learn(0.005, 3_000)
    # By the byte it would be ten seconds.
    assert cost.of(6_000_000) == pytest.approx(0.05)
    for _ in range(100):
        cost.learn(0.4, 6_000_000)
    assert cost.of(6_000_000) == pytest.approx(0.4, rel=0.05)
