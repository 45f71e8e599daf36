"""Whether two versions answer the same."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from modelyard.serving.rollout._compare import compare

Arrays = dict[str, np.ndarray]


def f32(values: object) -> np.ndarray:
    return np.array(values, np.float32)


def text(*values: object) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


SCORES = f32([[0.1, 0.9], [0.6, 0.4], [0.5, 0.2]])


@pytest.mark.parametrize(
    ("answer", "shadow", "rows", "disagreed", "max_error"),
    [
        ({"y": f32([1, 2])}, {"y": f32([1, 2])}, 2, 0, 0.0),
        ({"y": f32([1, 2])}, {"y": f32([1, 2.5])}, 2, 1, 0.5),
        ({"y": f32([1, 2])}, {"y": f32([1, 2.0625])}, 2, 0, 0.0625),
        # Of scores only the highest counts.
        ({"p": SCORES}, {"p": f32([[0.35, 0.65], [0.6, 0.4], [0.5, 0.2]])}, 3, 0, 0.25),
        ({"p": SCORES}, {"p": SCORES[:, ::-1]}, 3, 3, 0.8),
        ({"p": SCORES.astype(ml_dtypes.bfloat16)}, {"p": SCORES[:, ::-1].astype(ml_dtypes.bfloat16)}, 3, 3, 0.8),
        # Not even where the answer is class 0, which argmax finds in them.
        ({"p": SCORES}, {"p": np.full_like(SCORES, np.nan)}, 3, 3, np.inf),
        ({"p": SCORES}, {"p": f32([[0.1, np.nan], [0.6, 0.4], [np.inf, np.inf]])}, 3, 2, np.inf),
        ({"p": f32([[np.nan, 1], [0, -np.inf]])}, {"p": f32([[np.nan, 1], [0, -np.inf]])}, 2, 0, 0.0),
        # One column is no choice.
        ({"p": f32([[1], [2]])}, {"p": f32([[1], [3]])}, 2, 1, 1.0),
        ({"p": SCORES, "y": f32([1, 1, 1])}, {"p": SCORES, "y": f32([1, 1, 9])}, 3, 1, 8.0),
        ({"y": f32([np.nan, np.inf, 1])}, {"y": f32([np.nan, np.inf, 1])}, 3, 0, 0.0),
        ({"y": f32([np.nan, np.inf])}, {"y": f32([0, -np.inf])}, 2, 2, np.inf),
        ({"n": np.array([1, 2])}, {"n": np.array([1, 3])}, 2, 1, 0.0),
        ({"s": text(b"a", b"b")}, {"s": text("a", "c")}, 2, 1, 0.0),
        ({"y": f32(3)}, {"y": f32(4)}, 1, 1, 1.0),
        ({"y": f32([1, 2]), "sum": f32(3)}, {"y": f32([1, 2]), "sum": f32(4)}, 1, 1, 1.0),
        ({"y": f32([])}, {"y": f32([])}, 0, 0, 0.0),
        ({"y": f32([1, 2])}, {"z": f32([1, 2])}, 2, 2, 0.0),
        ({"y": f32([1, 2])}, {"y": f32([[1], [2]])}, 2, 2, 0.0),
        ({"y": f32([1, 2])}, {"y": np.array([1, 2])}, 2, 2, 0.0),
        ({"y": f32([1, 2])}, {"y": np.array([1.0, 2.0])}, 2, 2, 0.0),
        ({"n": np.array([1, 2], np.int32)}, {"n": np.array([1, 2], np.int64)}, 2, 2, 0.0),
        ({"n": np.array([1, 2], np.uint8)}, {"n": np.array([1, 2], np.uint32)}, 2, 2, 0.0),
        ({"s": text("a", "b")}, {"s": np.array([b"a", b"c"])}, 2, 1, 0.0),
        ({"s": np.array(["a", "b"])}, {"s": np.array([b"a", b"bc"])}, 2, 1, 0.0),
    ],
)
def test_comparisons(answer: Arrays, shadow: Arrays, rows: int, disagreed: int, max_error: float) -> None:
    found = compare(answer, shadow, tolerance=0.125)
    assert (found.rows, found.disagreed) == (rows, disagreed)
    assert found.max_error == pytest.approx(max_error, rel=2e-2)
