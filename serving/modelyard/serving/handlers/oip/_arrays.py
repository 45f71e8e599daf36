"""Arrays in the protocol's three forms: raw bytes, the typed fields of gRPC, and JSON.

Raw bytes are little-endian in row-major order, one byte per BOOL; a BYTES element is its length (uint32) and its bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import InvalidInputError, InvalidRequestError, RequestTooLargeError, UnsupportedError
from modelyard.serving.handlers.oip._datatypes import datatype_of, dtype_of
from modelyard.serving.handlers.rest import float_texts, quote, value_to_array
from modelyard.serving.requests import format_shape
from modelyard.wire import (
    MAX_ELEMENTS,
    MAX_RANK,
    OIP_CONTENTS,
    DType,
    dtype_by_numpy,
    has_room,
    inference_pb2,
    object_array,
)

_LENGTH = struct.Struct("<I")

#: dtype as which JSON numbers are read; narrowing is checked afterwards.
_JSON_KINDS = {
    "int8": "int64",
    "int16": "int64",
    "int32": "int64",
    "uint8": "int64",
    "uint16": "int64",
    "uint32": "int64",
    "float16": "float64",
    "bfloat16": "float64",
}


def check_shape(shape: Sequence[object], *, tensor: str) -> tuple[int, ...]:
    if len(shape) > MAX_RANK:
        raise InvalidInputError(f"Input {tensor!r} has {len(shape)} dimensions; expected at most {MAX_RANK}.")
    sizes: list[int] = []
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidInputError(f"Input {tensor!r} has shape {quote(list(shape))}; expected whole numbers >= 0.")
        sizes.append(size)
    if not has_room(sizes):
        raise RequestTooLargeError(
            f"Input {tensor!r} has shape {quote(list(shape))}, which has more than {MAX_ELEMENTS} elements."
        )
    return tuple(sizes)


def raw_to_array(data: bytes | memoryview, datatype: str, shape: Sequence[int], *, tensor: str) -> npt.NDArray[Any]:
    """Decodes raw bytes; an array of numbers views ``data`` and is read-only."""
    dtype = dtype_of(datatype, tensor=tensor)
    count = math.prod(shape)
    if dtype.name == "string":
        return _split_bytes(data, count, tensor).reshape(shape)
    storage = _storage(dtype, tensor).newbyteorder("<")
    if len(data) != count * storage.itemsize:
        raise InvalidInputError(
            f"Input {tensor!r} has {len(data)} bytes of binary data; {datatype} {format_shape(shape)} takes "
            f"{count * storage.itemsize}."
        )
    if storage.kind == "b":
        # object bit pattern but zero is true; a bool array of other patterns would be none.
        return np.not_equal(np.frombuffer(data, dtype=np.uint8), 0).reshape(shape)
    values: npt.NDArray[Any] = np.frombuffer(data, dtype=storage)
    return values.reshape(shape)


def contents_to_array(
    contents: inference_pb2.InferTensorContents, datatype: str, shape: Sequence[int], *, tensor: str
) -> npt.NDArray[Any]:
    dtype = dtype_of(datatype, tensor=tensor)
    field = OIP_CONTENTS.get(dtype.name)
    if field is None:
        raise UnsupportedError(f"Input {tensor!r}: {datatype} has no typed field; send it in raw_input_contents.")
    others = [descriptor.name for descriptor, _ in contents.ListFields() if descriptor.name != field]
    if others:
        raise InvalidInputError(f"Input {tensor!r} is {datatype} but has {', '.join(others)}; expected {field}.")
    values = getattr(contents, field)
    count = math.prod(shape)
    if len(values) != count:
        raise InvalidInputError(
            f"Input {tensor!r} has {len(values)} values in {field}; {datatype} {format_shape(shape)} takes {count}."
        )
    if dtype.name == "string":
        array = object_array(list(values))
    else:
        kind = _storage(dtype, tensor)
        wide = {"int_contents": np.int32, "uint_contents": np.uint32}.get(field, kind)
        array = _narrow(np.array(values, dtype=wide), kind, datatype, tensor)
    return array.reshape(shape)


def json_to_array(value: object, datatype: str, shape: Sequence[int], *, tensor: str) -> npt.NDArray[Any]:
    """Decodes JSON: one flat list in row-major order, or lists nested as the shape says.

    Triton refuses FP16 and BF16 in JSON; here they are read from numbers.
    """
    dtype = dtype_of(datatype, tensor=tensor)
    try:
        array = value_to_array(value, _JSON_KINDS.get(dtype.name, dtype.name))
    except InvalidInputError as exc:
        raise InvalidInputError(f"Input {tensor!r} ({datatype}): {exc.message}") from exc
    count = math.prod(shape)
    if array.size != count or (array.ndim > 1 and array.shape != tuple(shape)):
        raise InvalidInputError(
            f"Input {tensor!r} has data of shape {format_shape(array.shape)}; expected {format_shape(shape)}, or one "
            f"flat list of {count} values."
        )
    if dtype.name == "string":
        return array.reshape(shape)
    return _narrow(array, _storage(dtype, tensor), datatype, tensor).reshape(shape)


def array_to_json(array: npt.NDArray[Any], *, tensor: str, strict: bool = False) -> str:
    """Encodes an array as one flat JSON list; NaN and infinities stand bare, as Triton writes them."""
    datatype = datatype_of(dtype_by_numpy(array.dtype).name, tensor=tensor)
    if datatype == "BYTES":
        return f"[{','.join(_json_string(_as_bytes(value), tensor) for value in array.ravel().tolist())}]"
    if datatype in ("FP16", "BF16"):
        array = array.astype(np.float32)
    if array.dtype.kind == "f":
        if strict and not np.isfinite(array).all():
            raise InvalidInputError(
                f"Output {tensor!r} holds NaN or an infinity, which strict JSON cannot say; ask for it with the "
                'parameter "binary_data": true.'
            )
        return f"[{','.join(float_texts(array))}]"
    flat = array.ravel().tolist()
    if array.dtype.kind == "b":
        return f"[{','.join('true' if value else 'false' for value in flat)}]"
    return f"[{','.join(map(str, flat))}]"


def classify(array: npt.NDArray[Any], count: int, *, tensor: str) -> npt.NDArray[Any]:
    """Triton's classification extension: the largest values of each row with their indices.

    From numbers ``[N, ...]``, or ``[K]`` for a single row, BYTES ``[N, count]`` or ``[count]``: ``value:index``, the
    largest first.
    """
    if array.dtype.kind in "SUOTb" or array.ndim == 0:
        raise InvalidInputError(f"Output {tensor!r} cannot be classified: expected numbers of at least one dimension.")
    batched = array[None] if array.ndim == 1 else array
    values = batched.reshape(len(batched), math.prod(batched.shape[1:]))
    if values.dtype.kind == "V":
        values = values.astype(np.float32)
    # Sorted from the back, so that equal values keep their order.
    order = values.shape[1] - 1 - np.argsort(values[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
    whole = values.dtype.kind in "iu"
    result = np.empty(order.shape, dtype=object)
    for row, column in np.ndindex(*order.shape):
        index = order[row, column]
        value = values[row, index]
        result[row, column] = (f"{value}:{index}" if whole else f"{value:.6f}:{index}").encode()
    return result[0] if array.ndim == 1 else result


def _storage(dtype: DType, tensor: str) -> np.dtype[Any]:
    if dtype.numpy is None:
        raise UnsupportedError(
            f"Tensor {tensor!r} is {dtype.name}, which numpy lacks. Install the package ml_dtypes to exchange it."
        )
    return dtype.numpy


def _narrow(array: npt.NDArray[Any], kind: np.dtype[Any], datatype: str, tensor: str) -> npt.NDArray[Any]:
    """Casts; integers that do not fit are an error, floats become infinite as everywhere."""
    if kind.kind in "iu" and array.size:
        limits = np.iinfo(kind)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            wrong = low if low < limits.min else high
            raise InvalidInputError(f"Input {tensor!r} holds {wrong}; {datatype} takes {limits.min} to {limits.max}.")
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(kind, copy=False)


def _split_bytes(data: bytes | memoryview, count: int, tensor: str) -> npt.NDArray[Any]:
    values: list[bytes] = []
    position, end = 0, len(data)
    while position < end and len(values) < count:
        start = position + _LENGTH.size
        length = _LENGTH.unpack_from(data, position)[0] if start <= end else end
        if start + length > end:
            raise InvalidInputError(
                f"Input {tensor!r} ends inside element {len(values)} of its {end} bytes; expected {count} elements, "
                "each its length (4 bytes, little-endian) and its bytes."
            )
        values.append(bytes(data[start : start + length]))
        position = start + length
    if len(values) != count or position != end:
        received = f"{len(values)} elements" if len(values) != count else f"{end - position} bytes too many"
        raise InvalidInputError(f"Input {tensor!r} has {received}; expected {count} elements of BYTES.")
    return object_array(values)


def _json_string(data: bytes, tensor: str) -> str:
    try:
        return json.dumps(data.decode("utf-8"), ensure_ascii=False)
    except UnicodeDecodeError as exc:
        raise InvalidRequestError(
            f"Output {tensor!r} holds bytes that are no UTF-8 text, which JSON cannot carry; "
            'ask for it with the parameter "binary_data": true.'
        ) from exc


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
