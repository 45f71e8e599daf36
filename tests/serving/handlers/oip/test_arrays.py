"""Arrays in raw, typed and JSON form: what goes out comes back."""

from __future__ import annotations

import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modelyard.errors import InvalidInputError, InvalidRequestError, RequestTooLargeError, UnsupportedError
from modelyard.serving.handlers.oip._arrays import (
    array_to_json,
    check_shape,
    classify,
    contents_to_array,
    json_to_array,
    raw_to_array,
)
from modelyard.wire import array_to_raw, inference_pb2

ARRAYS: dict[str, np.ndarray] = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, (1 << 32) - 1], np.uint32),
    "UINT64": np.array([0, (1 << 64) - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-32768, 32767], np.int16),
    "INT32": np.array([[-(1 << 31)], [(1 << 31) - 1]], np.int32),
    "INT64": np.array([-(1 << 63), (1 << 63) - 1], np.int64),
    "FP16": np.array([0.1, -65504.0], np.float16),
    "BF16": np.array([0.1, 3e38], ml_dtypes.bfloat16),
    "FP32": np.array([0.1, 1e-45, -np.inf], np.float32),
    "FP64": np.array([0.1, 5e-324], np.float64),
    "BYTES": np.array([["a", ""], ["grün", "\n"]], dtype=object),
}


def as_bytes(array: np.ndarray) -> list[Any]:
    return [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]


@pytest.mark.parametrize("datatype", ARRAYS)
def test_raw_round_trip(datatype: str) -> None:
    array = ARRAYS[datatype]
    back = raw_to_array(array_to_raw(array), datatype, array.shape, tensor="x")
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert as_bytes(back) == as_bytes(array)


@pytest.mark.parametrize("datatype", ARRAYS)
@pytest.mark.parametrize("nested", [True, False])
def test_json_round_trip(datatype: str, nested: bool) -> None:
    array = ARRAYS[datatype]
    data = json.loads(array_to_json(array, tensor="x"))
    if nested:
        data = np.array(data, dtype=object).reshape(array.shape).tolist()
    back = json_to_array(data, datatype, array.shape, tensor="x")
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert as_bytes(back) == as_bytes(array)


def test_raw_is_little_endian_whatever_the_array_is() -> None:
    assert array_to_raw(np.array([1, 2], ">i4")) == struct.pack("<ii", 1, 2)
    assert array_to_raw(np.arange(4, dtype=np.int32).reshape(2, 2).T) == struct.pack("<iiii", 0, 2, 1, 3)


def test_raw_booleans_are_true_where_they_are_not_zero() -> None:
    assert raw_to_array(b"\x00\x02", "BOOL", (2,), tensor="x").tolist() == [False, True]


def test_a_scalar_is_one_value() -> None:
    array = np.array(1.5, np.float32)
    assert array_to_json(array, tensor="x") == "[1.5]"
    assert json_to_array([1.5], "FP32", (), tensor="x").shape == ()
    assert raw_to_array(array_to_raw(array), "FP32", (), tensor="x") == array


@pytest.mark.parametrize(
    ("data", "datatype", "shape", "fragment"),
    [
        (b"123", "FP32", (1,), "has 3 bytes of binary data; FP32 [1] takes 4"),
        (b"", "INT64", (2,), "takes 16"),
        (b"\x01\x00", "BYTES", (1,), "ends inside element 0"),
        (b"\xff\xff\xff\xffa", "BYTES", (1,), "ends inside element 0"),
        (b"\x01\x00\x00\x00ab", "BYTES", (1,), "1 bytes too many"),
        (b"\x01\x00\x00\x00a", "BYTES", (2,), "has 1 elements; expected 2"),
        (b"", "STRING", (0,), "unknown datatype 'STRING'; expected one of BF16, BOOL"),
    ],
)
def test_bad_raw_bytes(data: bytes, datatype: str, shape: tuple[int, ...], fragment: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        raw_to_array(data, datatype, shape, tensor="x")
    assert fragment in caught.value.message


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "fragment"),
    [
        ([1, 2], "FP32", (3,), "expected [3], or one flat list of 3 values"),
        ([[1, 2]], "FP32", (2, 1), "data of shape [1,2]; expected [2,1]"),
        ([True], "FP32", (1,), "is not of expected type"),
        ([1], "BOOL", (1,), "is not of expected type"),
        ([1.5], "INT32", (1,), "is not of expected type"),
        ([256], "UINT8", (1,), "holds 256; UINT8 takes 0 to 255"),
        ([-1, 3], "UINT16", (2,), "holds -1; UINT16 takes 0 to 65535"),
        ([1], "BYTES", (1,), "is not of expected type"),
        ([[1], [1, 2]], "INT8", (3,), "Input 'x' (INT8): "),
        (None, "FP64", (1,), "is not of expected type"),
    ],
)
def test_bad_json(value: Any, datatype: str, shape: tuple[int, ...], fragment: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        json_to_array(value, datatype, shape, tensor="x")
    assert fragment in caught.value.message


def test_what_json_cannot_carry() -> None:
    with pytest.raises(InvalidRequestError, match='"binary_data": true'):
        array_to_json(np.array([b"\xff"], dtype=object), tensor="y")
    with pytest.raises(UnsupportedError, match="complex64"):
        array_to_json(np.array([1j], np.complex64), tensor="y")
    infinite = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert array_to_json(infinite, tensor="y") == "[NaN,Infinity,-Infinity]"
    with pytest.raises(InvalidInputError, match="strict JSON"):
        array_to_json(infinite, tensor="y", strict=True)


FIELDS: list[tuple[str, str, list[Any]]] = [
    ("BOOL", "bool_contents", [True, False]),
    ("INT8", "int_contents", [-128, 127]),
    ("INT16", "int_contents", [-32768]),
    ("INT32", "int_contents", [-(1 << 31)]),
    ("INT64", "int64_contents", [-(1 << 63)]),
    ("UINT8", "uint_contents", [255]),
    ("UINT16", "uint_contents", [65535]),
    ("UINT32", "uint_contents", [(1 << 32) - 1]),
    ("UINT64", "uint64_contents", [(1 << 64) - 1]),
    ("FP32", "fp32_contents", [0.5, -2.0]),
    ("FP64", "fp64_contents", [0.1]),
    ("BYTES", "bytes_contents", [b"a", b"\xff"]),
]


@pytest.mark.parametrize(("datatype", "field", "values"), FIELDS)
def test_typed_contents(datatype: str, field: str, values: list[Any]) -> None:
    contents = inference_pb2.InferTensorContents()
    getattr(contents, field).extend(values)
    array = contents_to_array(contents, datatype, (len(values), 1), tensor="x")
    assert (array.dtype, array.shape) == (ARRAYS[datatype].dtype, (len(values), 1))
    assert array.ravel().tolist() == values


@pytest.mark.parametrize(
    ("contents", "datatype", "fragment"),
    [
        (inference_pb2.InferTensorContents(int_contents=[128]), "INT8", "holds 128; INT8 takes -128 to 127"),
        (inference_pb2.InferTensorContents(uint_contents=[1, 2]), "UINT8", "2 values in uint_contents"),
        (inference_pb2.InferTensorContents(fp64_contents=[1]), "FP32", "has fp64_contents; expected fp32_contents"),
    ],
)
def test_bad_typed_contents(contents: inference_pb2.InferTensorContents, datatype: str, fragment: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        contents_to_array(contents, datatype, (1,), tensor="x")
    assert fragment in caught.value.message


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_short_floats_have_no_typed_field(datatype: str) -> None:
    with pytest.raises(UnsupportedError, match="raw_input_contents"):
        contents_to_array(inference_pb2.InferTensorContents(), datatype, (0,), tensor="x")


def test_shapes_are_checked_before_anything_is_allocated() -> None:
    assert check_shape([2, 0], tensor="x") == (2, 0)
    for shape in ([-1], [1.0], [True], ["1"]):
        with pytest.raises(InvalidInputError, match="whole numbers"):
            check_shape(shape, tensor="x")
    for shape in ([1 << 31, 2], [0, 1 << 62]):
        with pytest.raises(RequestTooLargeError, match="more than"):
            check_shape(shape, tensor="x")
    with pytest.raises(InvalidInputError, match="65 dimensions; expected at most 64"):
        check_shape([1] * 65, tensor="x")


def test_classification_sorts_each_row() -> None:
    array = np.array([[1, 5, 5], [9, 0, 3]], np.int64)
    assert classify(array, 2, tensor="y").tolist() == [[b"5:1", b"5:2"], [b"9:0", b"3:2"]]
    assert classify(array[0], 9, tensor="y").tolist() == [b"5:1", b"5:2", b"1:0"]
    short = np.array([0.5, 2.0], ml_dtypes.bfloat16)
    assert classify(short, 1, tensor="y").tolist() == [b"2.000000:1"]
    for wrong in (np.array([b"a"], dtype=object), np.array(1.0), np.array([True])):
        with pytest.raises(InvalidInputError, match="cannot be classified"):
            classify(wrong, 1, tensor="y")
