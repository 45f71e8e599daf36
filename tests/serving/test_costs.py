"""What a request or a batch will cost is guessed from those before it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

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


def taught(seconds: Callable[[int], float], sizes: Iterable[int], *, fixed: float = 0.0) -> BatchCost:
    cost = BatchCost(fixed)
    for rows in sizes:
        cost.learn(seconds(rows), rows)
    return cost


def guess(cost: BatchCost, rows: int) -> float:
    whole, each = cost.parts
    return whole + each * rows


@pytest.mark.parametrize(
    ("seconds", "each"), [(0.0, 0.005), (0.06, 0.0), (0.02, 0.002)], ids=["by rows", "by batches", "by both"]
)
def test_a_batch_costs_something_and_each_of_its_rows(seconds: float, each: float) -> None:
    rng = random.Random(0)
    sizes = [rng.randint(1, 16) for _ in range(200)]
    cost = taught(lambda rows: seconds + each * rows, sizes)
    for rows in (1, 8, 16):
        assert guess(cost, rows) == pytest.approx(seconds + each * rows, rel=0.1)
    # What it is spent on is known, too, and remembered while all batches are alike.
    assert cost.parts[1] == pytest.approx(each, abs=0.05 * (each + seconds / 8))
    for _ in range(500):
        cost.learn(seconds + each, 1)
    assert guess(cost, 1) == pytest.approx(seconds + each, rel=0.01)
    assert guess(cost, 16) == pytest.approx(seconds + 16 * each, rel=0.4)


def test_of_batches_of_one_size_the_share_is_what_loading_found() -> None:
    assert BatchCost().parts == (0.0, 0.0)
    assert not BatchCost().known
    for count in (1, 2, 100):
        assert [*taught(lambda _: 0.06, [4] * count).parts] == pytest.approx([0.0, 0.015], abs=1e-9)
        # Of a batch of one row, half: of four rows, a fifth.
        assert [*taught(lambda _: 0.06, [4] * count, fixed=0.5).parts] == pytest.approx([0.012, 0.012])
    # Loading may be wrong.
    cost = taught(lambda rows: 0.06, [1, 3, 8] * 20)
    assert cost.parts[0] == pytest.approx(0.06, rel=0.1)
    cost = taught(lambda rows: 0.01 * rows, [1, 3, 8] * 20, fixed=1.0)
    assert cost.parts[1] == pytest.approx(0.01, rel=0.1)


def test_one_pause_is_not_taken_for_what_batches_cost() -> None:
    cost = taught(lambda rows: 0.01 * rows, [1, 2, 3] * 20)
    cost.learn(60.0, 2)
    assert guess(cost, 2) < 0.04
    # What lasts is followed within a few batches.
    for _ in range(25):
        cost.learn(60.0, 2)
    assert guess(cost, 2) == pytest.approx(60.0, rel=0.1)


def test_a_batch_without_rows_says_nothing() -> None:
    cost = taught(lambda rows: 0.005 * rows, [1, 2, 3] * 5)
    before = cost.parts
    for _ in range(100):
        cost.learn(2e-5, 0)
    assert cost.parts == before


def test_no_row_is_free_and_no_part_negative() -> None:
    rng = random.Random(1)
    cost = BatchCost()
    for _ in range(2_000):
        cost.learn(rng.random() ** 8, rng.choice((1, 2, 64)))
        assert cost.parts[0] >= 0
        assert cost.parts[1] > 0
    # Few rows that are slow beside many that are quick.
    cost = taught(lambda rows: 0.05 if rows == 1 else 0.005, [1, 1, 16] * 50)
    assert cost.parts[1] > 1e-5


def test_threads_that_learn_at_once_leave_a_line() -> None:
    cost = BatchCost()

    def learn() -> None:
        for rows in [1, 64] * 3_000:
            cost.learn(0.06, rows)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(learn)
    finally:
        sys.setswitchinterval(switching)
    assert guess(cost, 1) == pytest.approx(0.06, rel=0.3)
    assert guess(cost, 64) == pytest.approx(0.06, rel=0.3)
