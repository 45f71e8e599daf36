"""What batches gain is found out at loading, and acted upon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard.artifact import Signature, TensorSpec
from modelyard.clients import connect
from modelyard.errors import PredictionError
from modelyard.serving import _batch_gains
from modelyard.serving._batch_gains import BatchGains, batch_gains, in_pieces
from tests.support.doubler import Arrays, Doubler, servable
from tests.support.models import publish_crowded
from tests.support.server import RunningServer, serve

NOTHING = BatchGains(shared=frozenset(), pieces={})
SHARED = frozenset({"g"})


class Clock:
    """Time that passes where a test says so: nobody else on the machine can disturb it."""

    def __init__(self) -> None:
        self.now = 0.0
        #: Seconds of others, which pass by the clock on the wall only.
        self.others = 0.0

    def thread_time(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now + self.others


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_batch_gains, "time", clock)
    return clock


class Model(Doubler):
    """Takes so long for so many rows."""

    def __init__(self, clock: Clock, cost: Callable[[int], float], *, mixes: bool = False) -> None:
        super().__init__(mixes=mixes)
        self._clock = clock
        self._cost = cost

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        self._clock.now += self._cost(len(inputs["x"]))
        return super().run(graph, inputs, outputs)


def crowded(fits: int) -> Callable[[int], float]:
    """What a call costs, and each row, and each that does not fit the cache."""
    return lambda rows: 0.002 + 0.003 * rows + 0.004 * max(0, rows - fits)


@pytest.mark.parametrize(
    ("cost", "fixed"),
    [(lambda rows: 0.001, 1.0), (lambda rows: 0.01 + 0.01 * rows, 0.5), (crowded(fits=2), 0.229)],
    ids=["by batches", "by both", "in pieces"],
)
def test_what_rows_share_is_found_out(clock: Clock, cost: Callable[[int], float], fixed: float) -> None:
    gains = batch_gains(servable(Model(clock, cost)))
    assert gains.shared == SHARED
    # Of eight rows in pieces of two, each after the first takes 3.86 ms, where one takes 5.
    assert gains.fixed["g"] == pytest.approx(fixed, abs=0.01)
    assert batch_gains(servable(Model(clock, cost, mixes=True))).fixed == {}


@pytest.mark.parametrize(
    ("cost", "gains"),
    [
        # Each call costs a millisecond, however many rows there are.
        (lambda rows: 0.001, BatchGains(shared=SHARED, pieces={})),
        (lambda rows: 0.001 + 0.01 * rows, BatchGains(shared=SHARED, pieces={})),
        (lambda rows: 0.01 * rows, NOTHING),
        # Too little to be worth anything.
        (lambda rows: 0.0003 + 0.01 * rows, NOTHING),
        (lambda rows: 0.01 * rows + 0.0004 * max(0, rows - 4), NOTHING),
        # More than what calls cost besides is lost only by models that take longer.
        (lambda rows: 2e-5 * rows + 2e-5 * max(0, rows - 4), NOTHING),
        (lambda rows: 2e-3 * rows + 2e-3 * max(0, rows - 4), BatchGains(shared=frozenset(), pieces={"g": 4})),
        (lambda rows: 0.002 * rows**1.5, BatchGains(shared=frozenset(), pieces={"g": 1})),
        (crowded(fits=1), BatchGains(shared=frozenset(), pieces={"g": 1})),
        (crowded(fits=2), BatchGains(shared=SHARED, pieces={"g": 2})),
        (crowded(fits=4), BatchGains(shared=SHARED, pieces={"g": 4})),
    ],
)
def test_what_batches_gain_is_found_out(clock: Clock, cost: Callable[[int], float], gains: BatchGains) -> None:
    assert batch_gains(servable(Model(clock, cost))) == gains
    assert batch_gains(servable(Model(clock, cost, mixes=True))) == NOTHING


def test_a_runtime_that_prepares_itself_for_each_size_shares_nothing(clock: Clock) -> None:
    class Preparing(Model):
        last = 0

        def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
            if len(inputs["x"]) != self.last:
                self._clock.now += 0.1
            self.last = len(inputs["x"])
            return super().run(graph, inputs, outputs)

    assert batch_gains(servable(Preparing(clock, lambda rows: 0.01 + 0.001 * rows))) == NOTHING
    # Large requests in a row are faster in pieces all the same.
    assert batch_gains(servable(Preparing(clock, crowded(fits=2)))).pieces == {"g": 2}


@pytest.mark.parametrize("computes_in_caller", [True, False])
def test_whoever_shares_the_processor_does_not_decide(clock: Clock, computes_in_caller: bool) -> None:
    class Disturbed(Model):
        def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
            # Long batches are interrupted.
            self._clock.others += 0.02 if len(inputs["x"]) > 4 else 0.0
            return super().run(graph, inputs, outputs)

    model = Disturbed(clock, lambda rows: 0.002 + 0.01 * rows)
    model.computes_in_caller = computes_in_caller
    gains = batch_gains(servable(model))
    # Only a runtime with threads of its own cannot be told from its neighbours.
    assert (gains.pieces == {}) == computes_in_caller
    assert gains.shared == SHARED


def test_what_was_measured_at_one_size_says_nothing_of_another(clock: Clock) -> None:
    for cost, shared in ((crowded(fits=1), frozenset()), (lambda rows: 0.001, SHARED)):
        model = Model(clock, cost)
        specs = [TensorSpec(name=name, dtype="float32", shape=(-1, -1)) for name in "xy"]
        model.signature = Signature(inputs=(specs[0],), outputs=(specs[1],), compute="g")
        assert batch_gains(servable(model)) == BatchGains(shared=shared, pieces={})


def test_answers_that_are_not_row_by_row_are_found_out(clock: Clock) -> None:
    class Unique(Model):
        def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
            return {"y": np.unique(super().run(graph, inputs, outputs)["y"])}

    assert batch_gains(servable(Unique(clock, crowded(fits=1)))) == NOTHING


@pytest.mark.parametrize(
    ("first", "later", "calls"),
    [(5.0, 5.0, 1), (0.2, 0.2, 2), (0.2, 0.001, None)],
    ids=["far too long", "too long", "the first only"],
)
def test_loading_does_not_wait_for_what_takes_long(clock: Clock, first: float, later: float, calls: int | None) -> None:
    model = Model(clock, lambda rows: later if model.batches else first)
    gains = batch_gains(servable(model))
    if calls is None:
        assert gains.shared == SHARED
    else:
        assert (gains, len(model.batches)) == (NOTHING, calls)


def test_what_the_experiment_may_take(clock: Clock) -> None:
    batch_gains(servable(Model(clock, lambda rows: 0.099 * rows)))
    assert clock.now < 48 * 0.1
    clock.now = 0.0
    batch_gains(servable(Model(clock, lambda rows: 0.01 * rows)))
    assert clock.now < 0.5
    clock.now = 0.0
    batch_gains(servable(Model(clock, lambda rows: 1e-5 * rows)))
    assert clock.now < 0.04
    # A clock that stands still is no reason to go on for ever.
    model = Model(clock, lambda rows: 0.0)
    batch_gains(servable(model))
    assert len(model.batches) < 300


@settings(deadline=None)
@given(rows=st.integers(0, 40), most=st.integers(1, 9))
def test_pieces_make_the_same_whole(rows: int, most: int) -> None:
    backend = Doubler()
    x = np.arange(rows, dtype=np.float32) / 64
    y = in_pieces(cast(Any, backend.run), {"g": most})("g", {"x": x}, ["y"])["y"]
    np.testing.assert_array_equal(y, 2 * x)
    assert y.dtype == np.float32
    sizes = [len(batch) for batch in backend.batches]
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == max(1, -(-rows // most))


def test_what_cannot_be_cut_is_computed_whole() -> None:
    seen: list[Any] = []

    def compute(graph: str, inputs: Any, outputs: Sequence[str]) -> dict[str, Any]:
        seen.append({name: len(array) for name, array in inputs.items()})
        return {"y": inputs["x"]}

    run = in_pieces(compute, {"g": 2})
    x = np.zeros(4, np.float32)
    run("other", {"x": x}, ["y"])
    run("g", {"x": x, "slope": x[:1]}, ["y"])
    assert seen == [{"x": 4}, {"x": 4, "slope": 1}]


@pytest.mark.parametrize(("answer", "whole"), [(np.unique, [1.0, 2.0]), (np.sum, 8.0)])
def test_pieces_whose_answers_have_other_sizes_are_given_up(answer: Callable[[Any], Any], whole: Any) -> None:
    def compute(graph: str, inputs: Any, outputs: Sequence[str]) -> dict[str, Any]:
        return {"y": np.asarray(answer(inputs["x"]))}

    y = in_pieces(compute, {"g": 3})("g", {"x": np.array([1.0, 1.0, 2.0, 2.0, 2.0])}, ["y"])["y"]
    np.testing.assert_array_equal(y, whole)


def test_a_piece_that_fails_fails_the_request() -> None:
    def compute(graph: str, inputs: Any, outputs: Sequence[str]) -> dict[str, Any]:
        if 3 in inputs["x"]:
            raise PredictionError("no")
        return {"y": inputs["x"]}

    with pytest.raises(PredictionError, match="no"):
        in_pieces(compute, {"g": 2})("g", {"x": np.arange(6)}, ["y"])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunningServer]]:
    folder: Path = tmp_path_factory.mktemp("crowded")
    publish_crowded(folder / "m")
    with (
        serve(folder / "m", model="m", log_dir=folder) as pieces,
        serve(folder / "m", model="m", log_dir=folder, flags=["--greedy_batching=false"]) as whole,
    ):
        yield pieces, whole


def test_a_server_computes_large_requests_in_the_pieces_that_are_fastest(
    servers: tuple[RunningServer, RunningServer],
) -> None:
    pieces, whole = servers
    assert "'serving_default' computes batches in pieces of " in pieces.log_text()
    assert "in pieces" not in whole.log_text()
    x = np.arange(32, dtype=np.float32)
    seconds: dict[str, list[float]] = {}
    with connect(f"grpc://{pieces.grpc_address}") as one, connect(f"grpc://{whole.grpc_address}") as other:
        for _ in range(5):
            for name, client in (("pieces", one), ("whole", other)):
                started = time.perf_counter()
                np.testing.assert_array_equal(client.predict("m", {"x": x})["y"], 2 * x)
                seconds.setdefault(name, []).append(time.perf_counter() - started)
    # In pieces of at most 4 rows it is an eighth of the work.
    assert min(seconds["pieces"]) < min(seconds["whole"]) / 2
