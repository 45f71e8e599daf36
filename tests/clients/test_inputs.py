"""Which arrays a caller's values become."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modelyard.clients import SignatureInfo, TensorInfo
from modelyard.clients.values import check_inputs, check_outputs, needs_signature, to_arrays
from modelyard.errors import InvalidInputError


def signature(**dtypes: str) -> SignatureInfo:
    infos = {name: TensorInfo(name=name, dtype=dtype, shape=None) for name, dtype in dtypes.items()}
    return SignatureInfo(name="s", method="", inputs=infos, outputs=infos)


def test_an_input_of_another_signature_names_it() -> None:
    called, other = signature(image="float32"), signature(image_bytes="string")
    arrays = {"image_bytes": np.array([b"x"], object)}
    with pytest.raises(InvalidInputError, match="'image_bytes' belongs to signature 'b': pass signature='b'"):
        check_inputs(arrays, called, {"a": called, "b": other})
    with pytest.raises(InvalidInputError, match=r"Expected image \(float32\)\.$"):
        check_inputs(arrays, called, {"a": called})


@pytest.mark.parametrize(
    ("value", "needed"),
    [
        ([1.0], True),
        (1, True),
        ([], True),
        (True, True),
        (([1], [2]), True),
        (np.zeros(1), False),
        (np.float64(1), False),
        ("text", False),
        ([["text"]], False),
        ([b"bytes"], False),
    ],
)
def test_only_python_numbers_need_the_signature(value: Any, needed: bool) -> None:
    assert needs_signature({"x": value}) is needed


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1.5], "float32"), ([1], "int64"), (3, "int64"), ([True], "bool"), ([[1, 2.5]], "float32"), ([1j], "complex128")],
)
def test_without_a_signature_numbers_take_the_default(value: Any, dtype: str) -> None:
    assert to_arrays({"x": value}, None)["x"].dtype == dtype


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5], "float64"),
        ([1], "float32"),
        ([1.5], "float16"),
        ([0, 255], "uint8"),
        ([-128], "int8"),
        ([0, (1 << 64) - 1], "uint64"),
        ([(1 << 63) - 1, -(1 << 63)], "int64"),
        ([], "int32"),
        ([True], "bool"),
        ([1.5], "complex64"),
        ([1j], "complex64"),
    ],
)
def test_python_numbers_take_the_dtype_of_the_signature(value: list[Any], dtype: str) -> None:
    array = to_arrays({"x": value}, signature(x=dtype))["x"]
    assert array.dtype == dtype
    assert array.tolist() == value


def test_bfloat16() -> None:
    assert to_arrays({"x": [1.5]}, signature(x="bfloat16"))["x"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("value", "dtype", "reason"),
    [
        ([1.5], "int64", "Python floats"),
        ([1.0], "uint8", "Python floats"),
        ([256], "uint8", "from 256 to 256"),
        ([-1], "uint64", "from -1 to -1"),
        ([1 << 64], "uint64", "more than 64 bits"),
        ([1], "bool", "bool"),
        ([True], "float32", "float32"),
        ([1], "string", "string"),
        ([1j], "float32", "float32"),
        ([[1], [1, 2]], "float32", "equally long"),
        ([None], "float32", "NoneType"),
    ],
)
def test_no_number_changes_its_kind(value: Any, dtype: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        to_arrays({"x": value}, signature(x=dtype))
    assert "Input 'x'" in caught.value.message


@pytest.mark.parametrize(
    "value", [np.zeros(2), np.float64(1), np.zeros(2, np.uint8), [np.zeros(2, np.uint8)], [np.float16(1)]]
)
def test_what_has_a_dtype_keeps_it(value: Any) -> None:
    assert to_arrays({"x": value}, signature(x="float32"))["x"].dtype == np.asarray(value).dtype


def test_check_inputs_finds_what_json_would_hide() -> None:
    expected = signature(x="float32", y="int64")
    check_inputs({"x": np.zeros(1, np.float32)}, expected)
    with pytest.raises(InvalidInputError, match=r"'z'.*Expected x \(float32\), y \(int64\)"):
        check_inputs({"z": np.zeros(1)}, expected)
    with pytest.raises(InvalidInputError, match=r"Expects arg\[1\] to be int64 but int32 is provided"):
        check_inputs({"y": np.zeros(1, np.int32)}, expected)


def test_check_outputs() -> None:
    check_outputs(("b", "a"), signature(a="bool", b="bool"))
    with pytest.raises(InvalidInputError, match="not found in signature: c.*a, b"):
        check_outputs(("c",), signature(a="bool", b="bool"))
    with pytest.raises(InvalidInputError, match="duplicate output tensor alias: a"):
        check_outputs(("a", "a"), signature(a="bool"))
