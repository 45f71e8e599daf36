"""Every way in which an answer can be wrong is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelyard.clients import TensorInfo
from modelyard.errors import LoadTestError
from modelyard.loadtests import check_answer
from modelyard.loadtests.traffic import Checker, Request, decode
from modelyard.loadtests.traffic._answers import check_outputs, class_output

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


# ---- any signature --------------------------------------------------------------------------------------------------

KNOWN = {
    "y": TensorInfo(name="y", dtype="float32", shape=(-1, 3)),
    "n": TensorInfo(name="n", dtype="int64", shape=(-1,)),
    "t": TensorInfo(name="t", dtype="string", shape=None),
}


def outputs(**changes: Any) -> dict[str, np.ndarray]:
    return {
        "y": np.zeros((2, 3), np.float32),
        "n": np.zeros(2, np.int64),
        "t": np.array([[[b""]]], dtype=object),
        **changes,
    }


def test_outputs_as_the_signature_says() -> None:
    check_outputs(outputs(), KNOWN, 2)
    check_outputs(outputs(y=np.full((5, 3), np.inf, np.float32)), KNOWN)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"y": np.zeros((2, 3))}, r"y is float64\[2, 3\]; expected float32\[2, 3\]"),
        ({"y": np.zeros((2, 4), np.float32)}, r"y is float32\[2, 4\]; expected float32\[2, 3\]"),
        ({"y": np.zeros((1, 3), np.float32)}, r"y is float32\[1, 3\]; expected float32\[2, 3\]"),
        ({"y": np.zeros((2, 3, 1), np.float32)}, r"y is float32\[2, 3, 1\]"),
        ({"y": np.full((2, 3), np.nan, np.float32)}, "y has 6 values that are NaN"),
        ({"n": np.zeros(2, np.int32)}, r"n is int32\[2\]"),
        ({"t": np.zeros(2)}, r"t is float64\[2\]; expected string\."),
        ({"z": np.zeros(2)}, r"expected the outputs \['n', 't', 'y'\]; received \['n', 't', 'y', 'z'\]"),
    ],
)
def test_outputs_that_the_signature_does_not_have(changes: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(LoadTestError, match=reason):
        check_outputs(outputs(**changes), KNOWN, 2)


def rest(known: dict[str, TensorInfo], expected: Any = None) -> Request:
    return Request(kind="rest s", api="rest", path="", body=b"", rows=2, per_row=True, outputs=known, expected=expected)


def test_json_takes_the_signatures_dtypes() -> None:
    found = decode(rest({"y": KNOWN["y"]}), b'{"outputs": [[1, 2.5, 3], [NaN, 1e3, 0]]}')
    assert (list(found), found["y"].dtype.name, found["y"].shape) == (["y"], "float32", (2, 3))
    found = decode(rest({"n": KNOWN["n"], "t": KNOWN["t"]}), b'{"outputs": {"n": [], "t": [["a"], [{"b64": "Yg=="}]]}}')
    assert (found["n"].dtype.name, found["t"].tolist()) == ("int64", [[b"a"], [b"b"]])


@pytest.mark.parametrize(
    "body", [b'{"outputs": [1.5, 2]}', b'{"outputs": ["1", "2"]}', b'{"outputs": [[1], [2, 3]]}', b"[]"]
)
def test_json_of_another_dtype_is_wrong(body: bytes) -> None:
    with pytest.raises(LoadTestError, match="Wrong answer: not one of rest s"):
        decode(rest({"n": KNOWN["n"]}), body)


def test_expected_outputs_are_compared_row_by_row() -> None:
    request = rest({"n": KNOWN["n"]}, {"n": np.array([1, 2])})
    for body, matches in ((b'{"outputs": [1, 2]}', 2), (b'{"outputs": [1, 3]}', 1), (b'{"outputs": [3, 1]}', 0)):
        assert Checker().matches(request, body) == matches
    assert Checker().matches(rest({"n": KNOWN["n"]}), b'{"outputs": [1, 2]}') == 0


def test_nan_is_right_where_the_recorded_answer_has_it() -> None:
    recorded = {"y": np.array([[1, np.nan, 3], [1, 2, 3]], np.float32)}
    request = rest({"y": KNOWN["y"]}, recorded)
    assert Checker().matches(request, b'{"outputs": [[1, NaN, 3], [1, 2, 3]]}') == 2
    assert Checker().matches(request, b'{"outputs": [[1, 2, 3], [1, 2, 3]]}') == 1
    with pytest.raises(LoadTestError, match="y has 1 values that are NaN"):
        Checker().matches(request, b'{"outputs": [[1, NaN, 3], [1, NaN, 3]]}')


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        ({"class_id": ("int64", (-1,))}, "class_id"),
        ({"class_id": ("uint8", (-1, 1)), "y": ("float32", (-1, 3))}, "class_id"),
        ({"class_id": ("string", (-1,))}, ""),
        ({"class_id": ("int64", (-1, 3))}, ""),
        ({"class_id": ("int64", None)}, ""),
        ({"class_id": ("float32", (-1,))}, ""),
        ({"class_id": ("string", (-1,)), "y": ("float32", (-1, 2))}, "y"),
        ({"y": ("float32", (-1, 1))}, ""),
        ({"y": ("bfloat16", (-1, -1)), "z": ("float32", (-1, 1))}, "y"),
        ({"y": ("float32", (-1, 2)), "z": ("float32", (-1, 2))}, ""),
    ],
)
def test_the_output_that_tells_the_class(outputs: dict[str, tuple[str, Any]], found: str) -> None:
    known = {name: TensorInfo(name=name, dtype=dtype, shape=shape) for name, (dtype, shape) in outputs.items()}
    assert class_output(known) == found


def test_class_ids_in_a_column_are_compared_row_by_row() -> None:
    known = {"class_id": TensorInfo(name="class_id", dtype="int64", shape=(-1, 1))}
    assert Checker().matches(rest(known, np.array([5, 7])), b'{"outputs": [[5], [8]]}') == 1
