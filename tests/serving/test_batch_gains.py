"""What batches gain is found out at loading, and acted upon."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.artifact import Signature, TensorSpec
from modelyard.clients import connect
from modelyard.errors import PredictionError
from modelyard.serving._batch_gains import BatchGains, batch_gains, in_pieces
from tests.support.doubler import Arrays, Doubler, servable
from tests.support.models import publish_crowded
from tests.support.server import RunningServer, serve

NOTHING = BatchGains(shared=frozenset(), pieces={})


class Slowly(Doubler):
    """Takes a millisecond a batch: batches are worth it."""

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        time.sleep(0.001)
        return super().run(graph, inputs, outputs)


class Crowded(Doubler):
    """Takes more for each row, the more there are beyond some."""

    def __init__(self, *, fits: int, mixes: bool = False) -> None:
        super().__init__(mixes=mixes)
        self._fits = fits

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        # What a call costs, and each row, and what does not fit.
        rows = len(inputs["x"])
        time.sleep(0.002 + 0.003 * rows + 0.004 * max(0, rows - self._fits))
        return super().run(graph, inputs, outputs)


def test_whether_rows_depend_on_each_other_is_found_out() -> None:
    assert batch_gains(servable(Slowly())) == BatchGains(shared=frozenset({"g"}), pieces={})
    assert batch_gains(servable(Slowly(mixes=True))) == NOTHING
    assert batch_gains(servable(Crowded(fits=2, mixes=True))) == NOTHING


class EachRow(Doubler):
    """Takes as long for each row, however many there are."""

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        time.sleep(0.01 * len(inputs["x"]))
        return super().run(graph, inputs, outputs)


def test_a_batch_that_saves_nothing_is_none() -> None:
    assert batch_gains(servable(EachRow())) == NOTHING


def test_the_pieces_are_those_that_are_computed_fastest() -> None:
    class Alone(Doubler):
        def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
            time.sleep(0.002 * len(inputs["x"]) ** 1.5)
            return super().run(graph, inputs, outputs)

    assert batch_gains(servable(Alone())).pieces == {"g": 1}
    assert batch_gains(servable(Crowded(fits=2))) == BatchGains(shared=frozenset(), pieces={"g": 2})


class Varied(Crowded):
    """Its answers are as long as its inputs."""

    def __init__(self) -> None:
        super().__init__(fits=2)
        specs = [TensorSpec(name=name, dtype="float32", shape=(-1, -1)) for name in "xy"]
        self.signature = Signature(inputs=(specs[0],), outputs=(specs[1],), compute="g")


def test_what_was_measured_at_one_size_says_nothing_of_another() -> None:
    assert batch_gains(servable(Varied())) == NOTHING


@pytest.mark.parametrize(("first", "later", "calls"), [(0.11, 0.11, 2), (0.11, 0.0, 25)])
def test_loading_does_not_wait_for_what_takes_long(first: float, later: float, calls: int) -> None:
    class Patient(Doubler):
        def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
            # Many runtimes prepare something in the first call: that alone is no reason.
            time.sleep(later if self.batches else first)
            return super().run(graph, inputs, outputs)

    patient = Patient()
    batch_gains(servable(patient))
    assert (len(patient.batches) == 2) == (calls == 2)


@given(rows=st.integers(0, 40), most=st.integers(1, 9))
def test_pieces_make_the_same_whole(rows: int, most: int) -> None:
    backend = Doubler()
    x = np.arange(rows, dtype=np.float32) / 64
    y = in_pieces(cast(Any, backend.run), {"g": most})("g", {"x": x}, ["y"])["y"]
    np.testing.assert_array_equal(y, 2 * x)
    assert y.dtype == np.float32
    assert max(map(len, backend.batches)) <= most
    assert len(backend.batches) == max(1, -(-rows // most))


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
