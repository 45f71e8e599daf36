"""Predict's messages by hand: tensors are viewed where they arrived, answers are joined from bytes.

Only the forms that clients really send are read here. For anything else, right
or wrong, protobuf reads the message: so there is one place that words errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.serving import _messages
from modelyard.serving._requests import Arrays, Caller, ModelSpec, Prediction, PredictRequest
from modelyard.wire import (
    array_to_tensor,
    dtype_by_enum,
    dtype_by_numpy,
    read_varint,
    serving_pb2,
    tensorflow_pb2,
    varint,
)

_VARINT, _BYTES = 0, 2
_MAX_HEADS = 512
#: Up to here a value per integer is cheaper than a message.
_FEW = 64
#: The one-byte tags of ``TensorProto``'s packed fields whose packed form is the array's own bytes.
_PACKED = {"float_val": b"\x2a", "double_val": b"\x32"}
_CONTENT = b"\x22"
#: The tag of a model spec, which clients send first.
_SPEC = 0x0A
_INT64 = b"\x52"
_STRING = b"\x42"


@dataclass(frozen=True, slots=True)
class _Head:
    """What stands before the bytes of a request's last tensor; the same in every request of a client."""

    data: bytes
    spec: ModelSpec
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    count: int


class _Odd(Exception):
    """The message is of a form that is not read here."""


class _Strings(_Odd):
    """It holds strings, as every message to its signature will."""


#: Heads by the length of the whole message.
_heads: dict[int, _Head] = {}
#: Model specs, as they are sent, of signatures that take strings: reading those here first would be for nothing.
_strings: set[bytes] = set()


def read_predict(data: bytes | memoryview, caller: Caller | None) -> PredictRequest:
    """Decodes a Predict request; large tensors stay where they are.

    Args:
        data: The message.
        caller: Who waits for the answer.

    Raises:
        DecodeError: It is no ``PredictRequest``.
        InvalidModelSpecError: The model spec is absent.
    """
    size = len(data)
    head = _heads.get(size)
    if head is None or data[: len(head.data)] != head.data:
        # Of other forms than a short field of bytes at the beginning this is no model spec, and not among those known.
        begin = bytes(data[: 2 + data[1]]) if size > 1 else b""
        if begin in _strings:
            return _parse(data, caller)
        try:
            head, request = _scan(memoryview(data), caller)
        except _Strings:
            if len(_strings) >= _MAX_HEADS:
                _strings.clear()
            if begin[0] == _SPEC and begin[1] < 0x80:
                _strings.add(begin)
            return _parse(data, caller)
        except (_Odd, IndexError, ValueError):
            return _parse(data, caller)
        if head is None:
            return request
        if len(_heads) >= _MAX_HEADS:
            _heads.clear()
        _heads[size] = head
    known = head
    small = size <= _messages.SMALL_BYTES

    def inputs(_: Signature) -> Arrays:
        array = np.frombuffer(data, known.dtype, known.count, len(known.data)).reshape(known.shape)
        return {known.name: array}

    return PredictRequest(spec=known.spec, inputs=inputs, small=small, caller=caller, size=size)


def _parse(data: bytes | memoryview, caller: Caller | None) -> PredictRequest:
    message = serving_pb2.PredictRequest.FromString(bytes(data))
    return _messages.predict_request(message, size=len(data), caller=caller)


def _scan(data: memoryview, caller: Caller | None) -> tuple[_Head | None, PredictRequest]:
    """Reads any number of tensors in ``tensor_content``; the head, where there is one tensor and it comes last."""
    spec: ModelSpec | None = None
    arrays: dict[str, npt.NDArray[Any]] = {}
    outputs: list[str] = []
    last: tuple[str, npt.NDArray[Any], int] | None = None
    at = 0
    while at < len(data):
        field, value, at = _field(data, at)
        last = None
        if field == 1 and spec is None:
            spec = _spec(value)
        elif field == 2:
            name, array, tail = _input(value)
            if name in arrays:
                raise _Odd
            arrays[name] = array
            last = (name, array, tail)
        elif field == 3:
            outputs.append(str(value, "utf-8"))
        else:
            raise _Odd
    if spec is None:
        raise _Odd
    request = PredictRequest(
        spec=spec,
        inputs=lambda _: arrays,
        output_filter=tuple(outputs),
        small=len(data) <= _messages.SMALL_BYTES,
        caller=caller,
        size=len(data),
    )
    if last is None or last[2] or outputs or len(arrays) != 1:
        return None, request
    name, array, _ = last
    head = bytes(data[: len(data) - array.nbytes])
    return _Head(head, spec, name, array.dtype, array.shape, array.size), request


def _spec(data: memoryview) -> ModelSpec:
    name = signature = ""
    version: int | None = None
    label: str | None = None
    at = 0
    while at < len(data):
        field, value, at = _field(data, at)
        if field == 1:
            name = str(value, "utf-8")
        elif field == 3:
            signature = str(value, "utf-8")
        elif field == 2 and label is None and version is None:
            version = 0
            if value:
                if value[0] != 1 << 3 | _VARINT:
                    raise _Odd
                version, end = read_varint(value, 1)
                if end != len(value) or version >= 1 << 63:
                    raise _Odd
        elif field == 4 and version is None:
            label = str(value, "utf-8")
        else:
            raise _Odd
    return ModelSpec(name=name, version=version, label=label, signature=signature)


def _input(data: memoryview) -> tuple[str, npt.NDArray[Any], int]:
    """One entry of the map: its name, its tensor, and the bytes that follow the tensor's values."""
    name, tensor, after = "", None, 0
    at = 0
    while at < len(data):
        field, value, at = _field(data, at)
        after = 0
        if field == 1:
            name = str(value, "utf-8")
            after = 1
        elif field == 2 and tensor is None:
            tensor = value
        else:
            raise _Odd
    if tensor is None:
        raise _Odd
    array, tail = _tensor(tensor)
    return name, array, tail + after


def _tensor(data: memoryview) -> tuple[npt.NDArray[Any], int]:
    number, content, tail = 0, None, 0
    shape: tuple[int, ...] = ()
    at = 0
    while at < len(data):
        tag = data[at]
        tail = 1
        if tag == 1 << 3 | _VARINT:
            number, at = read_varint(data, at + 1)
            if number == tensorflow_pb2.DT_STRING:
                raise _Strings
            continue
        field, value, at = _field(data, at)
        if field == 2:
            shape += _shape(value)
        elif field == 4:
            content = value
            tail = 0
        else:
            raise _Odd
    try:
        dtype = dtype_by_enum(number).numpy
    # Protobuf's path says what is wrong with it.
    except Exception as exc:
        raise _Odd from exc
    # Booleans of other bytes than 0 and 1 would be none; strings are no numbers.
    if content is None or dtype is None or dtype.kind not in "fiuc":
        raise _Odd
    count = math.prod(shape)
    if count * dtype.itemsize != len(content) or not count:
        raise _Odd
    return np.frombuffer(content, dtype.newbyteorder("<")).reshape(shape), tail


def _shape(data: memoryview) -> tuple[int, ...]:
    sizes = []
    at = 0
    while at < len(data):
        field, value, at = _field(data, at)
        if field != 2:
            raise _Odd
        size = 0
        if value:
            if value[0] != 1 << 3 | _VARINT:
                raise _Odd
            size, end = read_varint(value, 1)
            if end != len(value) or size >= 1 << 31:
                raise _Odd
        sizes.append(size)
    return tuple(sizes)


def _field(data: memoryview, at: int) -> tuple[int, memoryview, int]:
    """A field of bytes: its number, its value, and where the next one begins."""
    tag = data[at]
    if tag & 7 != _BYTES or tag & 0x80:
        raise _Odd
    size, start = read_varint(data, at + 1)
    stop = start + size
    if stop > len(data):
        raise _Odd
    return tag >> 3, data[start:stop], stop


def predict_writer(*, as_content: bool) -> Callable[[Prediction], bytes]:
    """What encodes the answers of Predict.

    Args:
        as_content: Numbers go to ``tensor_content`` instead of the typed fields.
    """

    def write(prediction: Prediction) -> bytes:
        parts: list[bytes] = []
        for name, array in prediction.outputs.items():
            tensor = _tensor_head(array.dtype, array.shape) + _values(array, as_content)
            entry = _key(name) + b"\x12" + varint(len(tensor)) + tensor
            parts += (b"\x0a", varint(len(entry)), entry)
        spec = prediction.spec
        parts.append(_spec_field(spec.name, spec.version, spec.signature))
        return b"".join(parts)

    return write


def _values(array: npt.NDArray[Any], as_content: bool) -> bytes:
    """The field of a tensor that holds its values; nothing where there are none."""
    kind = array.dtype
    if not array.size:
        return b""
    if kind == np.int64 and not as_content and array.size <= _FEW:
        data = b"".join([varint(value & _UNSIGNED) for value in array.ravel().tolist()])
        return _INT64 + varint(len(data)) + data
    if kind.kind == "O" and all(type(value) is bytes for value in array.flat):
        return b"".join([_STRING + varint(len(value)) + value for value in array.ravel().tolist()])
    if kind in _NATIVE:
        data = np.ascontiguousarray(array, kind.newbyteorder("<")).tobytes()
        return (_CONTENT if as_content else _NATIVE[kind]) + varint(len(data)) + data
    tensor = array_to_tensor(array, as_content=as_content)
    # Type and shape stand before it already.
    tensor.ClearField("dtype")
    tensor.ClearField("tensor_shape")
    return tensor.SerializeToString()


_NATIVE = {np.dtype(np.float32): _PACKED["float_val"], np.dtype(np.float64): _PACKED["double_val"]}
_UNSIGNED = (1 << 64) - 1


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    raw = name.encode()
    return b"\x0a" + varint(len(raw)) + raw


@lru_cache(maxsize=1024)
def _tensor_head(kind: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    dims = b""
    for size in shape:
        dim = b"\x08" + varint(size) if size else b""
        dims += b"\x12" + varint(len(dim)) + dim
    head = b"\x08" + varint(dtype_by_numpy(kind).enum)
    return head + b"\x12" + varint(len(dims)) + dims if shape else head


@lru_cache(maxsize=256)
def _spec_field(name: str, version: int | None, signature: str) -> bytes:
    response = serving_pb2.PredictResponse()
    _messages.fill_spec(response.model_spec, ModelSpec(name=name, version=version, signature=signature))
    return response.SerializeToString()
