"""Which outputs tell a class, and which one."""

from __future__ import annotations

import numpy as np
import pytest

from modelyard.artifact import class_ids, holds_class_ids, holds_class_scores


@pytest.mark.parametrize(
    ("dtype", "shape", "ids", "scores"),
    [
        ("int64", (-1,), True, False),
        ("uint8", (-1, 1), True, False),
        ("int32", (-1, 2), False, False),
        ("int32", (), False, False),
        ("int32", None, False, False),
        ("string", (-1,), False, False),
        ("bool", (-1,), False, False),
        ("float32", (-1,), False, False),
        ("float32", (-1, 1), False, False),
        ("float16", (-1, 2), False, True),
        ("bfloat16", (-1, -1), False, True),
        ("float32", (-1, 2, 2), False, False),
        ("float32", None, False, False),
    ],
)
def test_what_tells_a_class(dtype: str, shape: tuple[int, ...] | None, ids: bool, scores: bool) -> None:
    assert (holds_class_ids(dtype, shape), holds_class_scores(dtype, shape)) == (ids, scores)


def test_the_class_of_each_example() -> None:
    assert class_ids(np.array([3, 1])).tolist() == [3, 1]
    assert class_ids(np.array([[3], [1]])).tolist() == [3, 1]
    assert class_ids(np.array([[0.1, 0.9], [0.6, 0.4]])).tolist() == [1, 0]
    assert class_ids(np.empty((0, 1), np.int64)).shape == (0,)
