"""Which arrays a caller's values become."""

from __future__ import annotations

import array
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
        (bytearray(b"bytes"), False),
        ({1.0}, True),
        ({"a": 1.0}, True),
        (np.array([1.0], object), True),
        (np.array([b"bytes"], object), False),
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


def test_infinities_and_small_numbers_are_rounded_as_everywhere() -> None:
    array = to_arrays({"x": [float("inf"), float("nan"), 1e-300, 0.1]}, signature(x="float32"))["x"]
    np.testing.assert_array_equal(array, np.array([np.inf, np.nan, 0, 0.1], np.float32))


def test_without_a_signature_no_number_becomes_infinite() -> None:
    with pytest.raises(InvalidInputError, match="Input 'x': received 1e.300, which float32 cannot hold"):
        to_arrays({"x": 1e300}, None)


@pytest.mark.parametrize(("values", "dtype"), [([1.5, float("nan")], "float32"), ([1, 2], "int64"), ([True], "bool")])
def test_arrays_of_objects_that_are_numbers_take_the_signature(values: list[Any], dtype: str) -> None:
    array = to_arrays({"x": np.array(values, object)}, signature(x=dtype))["x"]
    np.testing.assert_array_equal(array, np.array(values, dtype))
    assert array.dtype == dtype


@pytest.mark.parametrize("known", [None, signature(x="string")])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_buffers_are_bytes(kind: Any, known: SignatureInfo | None) -> None:
    assert to_arrays({"x": kind(b"a\0")}, known)["x"].tolist() == b"a\0"
    assert to_arrays({"x": [[b"c"], [kind(b"a\0")]]}, known)["x"].tolist() == [[b"c"], [b"a\0"]]


def test_memory_of_numbers_is_numbers() -> None:
    found = to_arrays({"x": memoryview(array.array("f", [1.5]))}, None)["x"]
    assert (found.dtype.name, found.tolist()) == ("float32", [1.5])


def test_names_of_inputs_are_text() -> None:
    with pytest.raises(InvalidInputError, match="names of inputs as text; received 1"):
        to_arrays({1: [1.0]}, None)  # type: ignore[dict-item]


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
        ([None], "float32", "values of float32; received NoneType"),
        ([1 << 70], "float32", "values of float32; received an integer of more than 64 bits"),
        ({1.0}, "float32", "values of float32; received set"),
        ({"a": 1.0}, "float32", "values of float32; received dict"),
        (np.array([None], object), "float32", "values of float32; received NoneType"),
        (np.array([1.5], object), "int64", "Python floats"),
        ([1e300], "float32", "1e.300, which float32 cannot hold"),
        (-1e300, "float32", "float32 cannot hold"),
        ([1e39], "bfloat16", "bfloat16 cannot hold"),
        ([70000], "float16", "70000, which float16 cannot hold"),
        ([1e300], "complex64", "complex64 cannot hold"),
        (np.ma.array([1.0], mask=[True]), "float64", "masked"),
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
