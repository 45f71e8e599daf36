from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError, PredictionError
from modelyard.serving.servables._zero_rows import answer_zero_rows

Arrays = Mapping[str, np.ndarray]


class Runtime:
    """Repeats each row three times in a new dimension; it does not survive a batch of no rows, nor of 13 columns."""

    def __init__(self) -> None:
        self.calls: list[dict[str, tuple[int, ...]]] = []

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, Any]:
        self.calls.append({name: array.shape for name, array in inputs.items()})
        if inputs["x"].shape[1] == 13:
            raise PredictionError("Not 13.")
        return {name: np.repeat(inputs["x"][:, np.newaxis], 3, axis=1) for name in outputs}


def spec(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def graph(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> dict[str, Signature]:
    return {"g": Signature(inputs=tuple(inputs), outputs=tuple(outputs), compute="g")}


def answer(graphs: Mapping[str, Signature], inputs: Arrays, *, told: Sequence[Signature] = ()) -> tuple[Any, Runtime]:
    runtime = Runtime()
    compute = answer_zero_rows(runtime.run, graphs, told)
    return compute("g", inputs, [output.name for output in graphs["g"].outputs]), runtime


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_what_the_signature_says_is_the_answer() -> None:
    graphs = graph([spec("x", -1, 4)], [spec("y", -1, 3, 4), spec("label", -1, dtype="string")])
    values, runtime = answer(graphs, {"x": zeros(0, 4)})
    assert {name: (value.shape, value.dtype) for name, value in values.items()} == {
        "y": ((0, 3, 4), np.float32),
        "label": ((0,), object),
    }
    assert runtime.calls == []


def test_clients_are_answered_by_what_they_are_told() -> None:
    graphs = graph([spec("x", -1, 4)], [spec("y", -1, -1, -1)])
    (told,) = graph([spec("x", -1, 4)], [spec("y", -1, 3, 4)]).values()
    values, runtime = answer(graphs, {"x": zeros(0, 4)}, told=[told])
    assert values["y"].shape == (0, 3, 4)
    assert runtime.calls == []


def test_open_sizes_are_those_of_one_row() -> None:
    values, runtime = answer(graph([spec("x", -1, -1)], [spec("y", -1, -1, -1)]), {"x": zeros(0, 5)})
    assert values["y"].shape == (0, 3, 5)
    assert runtime.calls == [{"x": (1, 5)}]


def test_no_row_is_made_that_the_request_merely_names() -> None:
    values, runtime = answer(graph([spec("x", -1, -1)], [spec("y", -1, -1, -1)]), {"x": zeros(0, 1 << 30)})
    assert values["y"].shape == (0, 0, 0)
    assert runtime.calls == []


def test_outputs_that_turn_out_to_have_no_rows() -> None:
    """As a sum over the rows with an open number of columns: TensorFlow's, OpenVINO's and ONNX's shapes say no more."""
    calls: list[tuple[int, ...]] = []

    def total(graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, Any]:
        calls.append(inputs["x"].shape)
        return {"y": inputs["x"].sum(axis=0)}

    compute = answer_zero_rows(total, graph([spec("x", -1, -1)], [spec("y", -1)]), [])
    assert compute("g", {"x": zeros(0, 3)}, ["y"])["y"].shape == (3,)
    assert calls == [(1, 3), (0, 3)]


@pytest.mark.parametrize("columns", [13, 0])
def test_open_sizes_are_0_where_one_row_is_refused_or_holds_nothing(columns: int) -> None:
    values, runtime = answer(graph([spec("x", -1, -1)], [spec("y", -1, -1, 2)]), {"x": zeros(0, columns)})
    assert values["y"].shape == (0, 0, 2)
    assert len(runtime.calls) == (columns > 0)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'x' has shape \[0,5\]; expected float32 \[-1,4\]"):
        answer(graph([spec("x", -1, 4)], [spec("y", -1, 4)]), {"x": zeros(0, 5)})


@pytest.mark.parametrize(
    ("inputs", "outputs", "sent"),
    [
        ([spec("x", -1, 4)], [spec("y", -1, 3, 4)], {"x": zeros(2, 4)}),
        ([spec("x", -1, -1)], [spec("y", -1, 3, -1)], {"x": zeros(2, 0)}),
        # The batch is fixed, one input or the output has none, or only one input is empty: the model's own business.
        ([spec("x", 1, 4)], [spec("y", 1, 3, 4)], {"x": zeros(0, 4)}),
        ([spec("x", -1, 4), spec("size", 2)], [spec("y", -1, 3, 4)], {"x": zeros(0, 4), "size": zeros(2)}),
        ([spec("x", -1, 4), spec("scale")], [spec("y", -1, 3, 4)], {"x": zeros(0, 4), "scale": np.float32(1)}),
        ([spec("x", -1, 4)], [spec("sum")], {"x": zeros(0, 4)}),
        ([TensorSpec(name="x", dtype="float32", shape=None)], [spec("y", -1, 3, 4)], {"x": zeros(0, 4)}),
        ([spec("x", -1, 4), spec("z", -1)], [spec("y", -1, 3, 4)], {"x": zeros(0, 4), "z": zeros(5)}),
    ],
)
def test_all_else_is_computed(inputs: list[TensorSpec], outputs: list[TensorSpec], sent: dict[str, Any]) -> None:
    sent = {name: np.asarray(value) for name, value in sent.items()}
    _, runtime = answer(graph(inputs, outputs), sent)
    assert runtime.calls == [{name: value.shape for name, value in sent.items()}]
