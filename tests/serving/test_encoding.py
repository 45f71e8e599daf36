"""Answers of a batch are encoded together where that is possible, and nobody pays for a neighbour's bad one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from modelyard.errors import InvalidInputError
from modelyard.serving._encoding import BatchEncoder, encode_all
from modelyard.serving._requests import Arrays, ModelSpec, Prediction
from modelyard.serving.rest import RestOptions
from modelyard.serving.rest._short import _Rows

SPEC = ModelSpec(name="m", version=1)
OUTPUTS = {"y": np.array([[0.5, 1.0], [2.0, 0.1], [np.nan, 4.0]], np.float32), "k": np.array([3, 4, 5])}


class Sums(BatchEncoder):
    """Writes sums; says how it was called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, prediction: Prediction) -> float:
        self.calls.append("alone")
        return self._sum(prediction.outputs)

    def together(self, outputs: Arrays, rows: Sequence[int]) -> list[Any]:
        self.calls.append("together")
        starts = np.cumsum([0, *rows])
        return [self._sum({"y": outputs["y"][a:b]}) for a, b in zip(starts[:-1], starts[1:], strict=True)]

    def _sum(self, outputs: Arrays) -> float:
        total = float(outputs["y"].sum())
        if np.isnan(total):
            raise InvalidInputError("NaN")
        return total


def test_one_encoder_writes_the_whole_batch_at_once() -> None:
    sums = Sums()
    outputs = {"y": OUTPUTS["y"][:2]}
    assert encode_all([sums, sums], SPEC, outputs, [1, 1]) == [(1.5, None), (np.float32(2.1), None)]
    assert sums.calls == ["together"]


def test_different_encoders_write_one_by_one() -> None:
    one, other = Sums(), Sums()
    assert [answer for answer, _ in encode_all([one, other], SPEC, {"y": OUTPUTS["y"][:2]}, [1, 1])][0] == 1.5
    assert (one.calls, other.calls) == (["alone"], ["alone"])


def test_a_bad_answer_is_one_callers_trouble() -> None:
    sums = Sums()
    (first, none), (nothing, error) = encode_all([sums, sums], SPEC, OUTPUTS, [2, 1])
    assert (first, none, nothing) == (np.float32(3.6), None, None)
    assert isinstance(error, InvalidInputError)
    assert sums.calls == ["together", "alone", "alone"]


def test_rows_together_are_the_same_text_as_alone() -> None:
    rows = _Rows(RestOptions())
    alone = encode_all([rows], SPEC, {name: array[1:] for name, array in OUTPUTS.items()}, [2])[0][0]
    together = encode_all([rows, rows], SPEC, OUTPUTS, [1, 2])
    assert together[1][0] == alone
    assert json.loads(together[0][0].body) == {"predictions": [{"y": [0.5, 1.0], "k": 3}]}


def test_strict_rows_together_refuse_only_what_is_not_finite() -> None:
    rows = _Rows(RestOptions(strict_json=True))
    (first, none), (_, error) = encode_all([rows, rows], SPEC, OUTPUTS, [2, 1])
    assert none is None and first.status == 200
    assert isinstance(error, InvalidInputError)
