"""Every way in which an answer can be wrong is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelyard.errors import LoadTestError
from modelyard.loadtests import check_answer

NAMES = ("a", "b", "c")


def answer(**changes: Any) -> dict[str, np.ndarray]:
    return {
        "class_id": np.array([2, 0]),
        "label": np.array([b"c", b"a"], dtype=object),
        "probabilities": np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], dtype=np.float32),
        **changes,
    }


def test_a_right_answer() -> None:
    check_answer(answer(), 2, NAMES)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"class_id": np.array([2, 0], dtype=np.int32)}, "class_id is int32"),
        ({"class_id": np.array([[2, 0]])}, r"class_id is int64\[1, 2\]; expected int64\[2\]"),
        ({"class_id": np.array([2, 1])}, r"class_id\[1\] is 1; the largest probability is 0"),
        ({"label": np.array([b"c", b"b"], dtype=object)}, "labels are"),
        ({"label": np.array(["c", "a"])}, "label is <U1"),
        ({"probabilities": np.zeros((2, 3))}, "probabilities is float64"),
        ({"probabilities": np.zeros((2, 4), np.float32)}, r"probabilities is float32\[2, 4\]"),
        ({"probabilities": np.full((2, 3), 0.5, np.float32)}, "add up to 1.5"),
        ({"probabilities": np.full((2, 3), np.nan, np.float32)}, "add up to nan"),
        ({"probabilities": np.array([[-1, 1, 1], [-1, 1, 1]], np.float32)}, "expected 1"),
    ],
)
def test_wrong_answers(changes: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(LoadTestError, match=reason):
        check_answer(answer(**changes), 2, NAMES)


@pytest.mark.parametrize("name", ["class_id", "label", "probabilities"])
def test_missing_outputs(name: str) -> None:
    outputs = answer()
    del outputs[name]
    with pytest.raises(LoadTestError, match=f"expected the outputs .*{name}"):
        check_answer(outputs, 2, NAMES)


def test_the_number_of_rows_is_checked() -> None:
    with pytest.raises(LoadTestError, match=r"expected int64\[3\]"):
        check_answer(answer(), 3, NAMES)
