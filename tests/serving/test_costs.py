"""What a request or a batch will cost is guessed from those before it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from modelyard.serving._costs import BatchCost, RequestCost


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


def taught(seconds: Callable[[int], float], sizes: Iterable[int]) -> BatchCost:
    cost = BatchCost()
    for rows in sizes:
        cost.learn(seconds(rows), rows)
    return cost


@pytest.mark.parametrize(
    ("seconds", "each"), [(0.0, 0.005), (0.06, 0.0), (0.02, 0.002)], ids=["by rows", "by batches", "by both"]
)
def test_a_batch_costs_something_and_each_of_its_rows(seconds: float, each: float) -> None:
    rng = random.Random(0)
    cost = taught(lambda rows: seconds + each * rows, [rng.randint(1, 16) for _ in range(200)])
    for rows in (1, 8, 16):
        assert cost.seconds + cost.row_seconds * rows == pytest.approx(seconds + each * rows, rel=0.25)
    # What it is spent on is known, too.
    assert cost.row_seconds == pytest.approx(each, abs=0.2 * (each + seconds / 8))


def test_of_batches_of_one_size_all_time_is_the_rows() -> None:
    assert taught(lambda _: 0.06, []).row_seconds == 0.0
    for count in (1, 2, 100):
        cost = taught(lambda _: 0.06, [4] * count)
        assert cost.seconds == pytest.approx(0.0, abs=1e-9)
        assert cost.row_seconds == pytest.approx(0.015)
    # Nothing is remembered for ever.
    cost = taught(lambda _: 0.06, [1, 8] * 50 + [4] * 200)
    assert cost.seconds == pytest.approx(0.0, abs=1e-4)
    assert cost.row_seconds == pytest.approx(0.015, rel=0.01)


def test_one_pause_is_not_taken_for_what_batches_cost() -> None:
    cost = taught(lambda rows: 0.01 * rows, [1, 2, 3] * 20)
    cost.learn(60.0, 2)
    assert cost.seconds + 2 * cost.row_seconds < 0.04
    # What lasts is followed within a few batches.
    for _ in range(25):
        cost.learn(60.0, 2)
    assert cost.seconds + 2 * cost.row_seconds == pytest.approx(60.0, rel=0.1)


def test_no_part_is_ever_negative() -> None:
    rng = random.Random(1)
    cost = BatchCost()
    for _ in range(2_000):
        cost.learn(rng.random() ** 8, rng.choice((0, 1, 2, 64)))
        assert cost.seconds > -1e-9
        assert cost.row_seconds >= 0
