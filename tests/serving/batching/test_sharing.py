"""Which graphs share batches: what an export has proven, or else an experiment at loading; and the log says why."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from modelyard.artifact import RowsCheck, Signature, TensorSpec
from modelyard.errors import PredictionError
from modelyard.serving.batching import _sharing, shared_graphs
from tests.support.doubler import Arrays, Doubler, servable

SHARED, APART = frozenset({"g"}), frozenset[str]()


class Clock:
    """Time that passes where a test says so: nobody else on the machine can disturb it."""

    def __init__(self) -> None:
        self.now = 0.0

    def thread_time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_sharing, "time", clock)
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


def said(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [each for each in caplog.records if "several callers" in each.getMessage()]
    return record.getMessage()


@pytest.fixture(autouse=True)
def _listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "modelyard.serving")


@pytest.mark.parametrize(
    ("cost", "graphs"),
    [
        (lambda rows: 0.001, SHARED),
        (lambda rows: 0.001 + 0.01 * rows, SHARED),
        (lambda rows: 0.01 * rows, APART),
        # Too little to be worth anything.
        (lambda rows: 0.0003 + 0.01 * rows, APART),
        (lambda rows: 0.002 * rows**1.5, APART),
    ],
)
def test_a_foreign_model_is_probed(
    clock: Clock, caplog: pytest.LogCaptureFixture, cost: Callable[[int], float], graphs: frozenset[str]
) -> None:
    assert shared_graphs(servable(Model(clock, cost))) == graphs
    reason = "'g' together, as an experiment shows" if graphs else "'g' apart: a batch is no faster"
    assert said(caplog) == f"model m version 1 computes the requests of several callers: {reason}"


class Outlier(Model):
    """Mixes rows where one of them is large, as dynamic quantization does."""

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        scale = max(np.abs(inputs["x"]).max() / 127, 0.1)
        return {"y": np.round(super().run(graph, inputs, outputs)["y"] / scale) * scale}


class Unique(Model):
    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        return {"y": np.unique(super().run(graph, inputs, outputs)["y"])}


class Refusing(Model):
    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        raise PredictionError("no")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Outlier, "beside a row 10000 times as large"),
        (Unique, "has shape [3]"),
        (Refusing, "it refuses random numbers: no"),
    ],
)
def test_rows_that_depend_on_each_other_are_seen(
    clock: Clock, caplog: pytest.LogCaptureFixture, kind: type[Model], reason: str
) -> None:
    assert shared_graphs(servable(kind(clock, lambda rows: 0.001))) == APART
    assert reason in said(caplog)


def test_a_slow_model_is_not_tried(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    model = Model(clock, lambda rows: 2.0 * rows)
    assert shared_graphs(servable(model)) == APART
    assert len(model.batches) == 1
    assert "a row takes 2.00 s" in said(caplog)


@pytest.mark.parametrize("can", [True, False])
def test_an_experiment_without_an_end_is_given_up(
    clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, can: bool
) -> None:
    monkeypatch.setattr(_sharing, "_LIMIT_S", 0.1)
    model = Model(clock, lambda rows: 0.001)
    monkeypatch.setattr(model, "interrupt", lambda: can)
    model.gate.clear()
    assert shared_graphs(servable(model)) == APART
    model.gate.set()
    assert ("it was ended" if can else "its thread goes on") in said(caplog)


def test_what_has_state_or_no_rows_is_not_tried(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for change, reason in (
        ({"stateful": True}, "it keeps state"),
        ({"unbatched": True}, "its first dimensions are no batch"),
        ({"outputs": (TensorSpec(name="y", dtype="float32", shape=()),)}, "rows cannot be told apart"),
        ({"inputs": (TensorSpec(name="x", dtype="string", shape=(-1,)),)}, "or are no numbers"),
    ):
        caplog.clear()
        model = Model(clock, lambda rows: 0.001)
        model.signature = replace(model.signature, **change)
        assert shared_graphs(servable(model)) == APART
        assert (model.batches, reason in said(caplog)) == ([], True)


@pytest.mark.parametrize(
    ("shape", "graphs"),
    [((-1, 3), SHARED), ((-1, 1), SHARED), ((-1, -1), SHARED), ((3, -1), APART), ((3,), APART), ((), APART)],
)
def test_rows_are_those_of_an_open_first_size(clock: Clock, shape: tuple[int, ...], graphs: frozenset[str]) -> None:
    model = Model(clock, lambda rows: 0.001)
    model.signature = replace(
        model.signature,
        inputs=(TensorSpec(name="x", dtype="float32", shape=shape),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1, 3)),),
    )
    assert shared_graphs(servable(model)) == graphs
    # An open size is tried as 1.
    assert {np.array(batch).shape[1:] for batch in model.batches} == {tuple(map(abs, shape[1:])) for _ in graphs}


def test_integers_are_tried_that_any_table_has() -> None:
    spec = TensorSpec(name="x", dtype="int32", shape=(-1, 50))
    outputs = (TensorSpec(name="y", dtype="float32", shape=(-1,)),)
    batch = _sharing.probe(Signature(inputs=(spec,), outputs=outputs, compute="g"), 8)
    assert batch is not None and batch["x"].dtype == np.int32 and set(batch["x"].ravel().tolist()) == {0, 1}


def proven(model: Doubler, *verdicts: str, gainless: bool = False) -> frozenset[str]:
    names = [f"s{index}" for index in range(len(verdicts))]
    loaded = replace(
        servable(model),
        signatures={name: Signature(inputs=(), outputs=(), compute="g") for name in names},
        rows={
            name: RowsCheck(verdict=verdict, reason=f"Cumsum in {name}")  # type: ignore[arg-type]
            for name, verdict in zip(names, verdicts, strict=True)
            if verdict
        },
        gainless=frozenset(names if gainless else ()),
    )
    return shared_graphs(loaded)


def test_what_was_proven_at_export_counts(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    model = Model(clock, lambda rows: 0.001)
    assert proven(model, "independent", "independent") == SHARED
    assert "'g' together, as was proven at export" in said(caplog)
    caplog.clear()
    assert proven(model, "independent", gainless=True) == APART
    assert "its batches were no faster at export" in said(caplog)
    caplog.clear()
    # An experiment may overlook it.
    assert proven(model, "independent", "dependent") == APART
    assert "'g' apart: Cumsum in s1" in said(caplog)
    assert model.batches == []


def test_each_graph_is_judged_by_its_own_signatures(clock: Clock) -> None:
    """Whatever the order of their names."""
    specs = {name: Signature(inputs=(), outputs=(), compute=name) for name in ("f", "g", "h")}
    rows = {name: RowsCheck(verdict="independent") for name in specs}
    for apart in specs:
        loaded = replace(servable(Model(clock, lambda rows: 0.001)), signatures=specs, rows=rows)
        assert shared_graphs(replace(loaded, gainless=frozenset({apart}))) == specs.keys() - {apart}


@pytest.mark.parametrize("verdicts", [("unknown",), ("independent", "unknown"), ("independent", "")])
def test_what_was_not_proven_is_probed(
    clock: Clock, caplog: pytest.LogCaptureFixture, verdicts: tuple[str, ...]
) -> None:
    model = Model(clock, lambda rows: 0.001)
    assert proven(model, *verdicts) == SHARED
    assert "as an experiment shows" in said(caplog)
    assert proven(Model(clock, lambda rows: 0.001, mixes=True), *verdicts) == APART
