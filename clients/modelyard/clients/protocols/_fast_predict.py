"""PredictRequest and PredictResponse without a copy too many, and without a Python object per value.

The packed form of a float, double or bool field is the array's own bytes, and a packed field looks on the wire like a
bytes field. So answers are parsed as messages that say ``bytes`` there, of one's own descriptors, and viewed in place.
Requests are put together from their parts, with one copy of each array. Whatever does not fit this, the general codec
reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from modelyard.wire import MAX_MESSAGE, MAX_RANK, array_to_tensor, dtype_by_numpy, has_room, object_array, varint

#: Number in ``tensorflow.DataType`` to the field of ``TensorProto`` and the dtype of its packed bytes.
_PACKED = {1: ("float_val", "<f4"), 2: ("double_val", "<f8"), 10: ("bool_val", "|b1")}
_INT64, _STRING = 9, 7
_FIELD = descriptor_pb2.FieldDescriptorProto

Arrays = dict[str, npt.NDArray[Any]]


class Echo(NamedTuple):
    """What a server says that it has called; empty or None where it does not."""

    model: str
    version: int | None
    signature: str


def request_bytes(spec: bytes, arrays: Mapping[str, npt.NDArray[Any]], outputs: tuple[str, ...]) -> bytes | None:
    """Serializes a PredictRequest.

    Returns the bytes; None where they are more than one message may have.
    """
    parts: list[Any] = [_tagged(0x0A, spec)]
    size = len(parts[0])
    for name, array in arrays.items():
        if array.ndim == 0 or array.dtype.kind in "OV":
            tensor = array_to_tensor(array, as_content=array.ndim > 0).SerializeToString()
            entry = _tagged(0x0A, name.encode()) + _tagged(0x12, tensor)
            parts.append(_tagged(0x12, entry))
            size += len(parts[-1])
            continue
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        parts.append(_head(name, dtype_by_numpy(array.dtype).enum, array.shape, little.nbytes))
        # An empty view has no bytes to cast.
        parts.append(little.data.cast("B") if little.size else b"")
        size += len(parts[-2]) + little.nbytes
    for output in outputs:
        parts.append(_tagged(0x1A, output.encode()))
        size += len(parts[-1])
    return None if size > MAX_MESSAGE else b"".join(parts)


def response_of(data: bytes) -> tuple[Arrays, Echo] | None:
    """Parses a PredictResponse.

    Returns the outputs, where they are views, and what the ModelSpec says; None where the general codec has to look.
    """
    try:
        response = _response_class().FromString(data)
    except DecodeError:
        return None
    outputs: Arrays = {}
    for name, tensor in response.outputs.items():
        array = _array(tensor)
        if array is None:
            return None
        outputs[name] = array
    return outputs, echo_of(response.model_spec)


def echo_of(spec: Any) -> Echo:
    """What a ModelSpec says."""
    return Echo(spec.name, spec.version.value if spec.HasField("version") else None, spec.signature_name)


def _array(tensor: Any) -> npt.NDArray[Any] | None:
    if tensor.tensor_shape.unknown_rank:
        return None
    shape = tuple([dim.size for dim in tensor.tensor_shape.dim])
    if len(shape) > MAX_RANK or min(shape, default=0) < 0 or not has_room(shape):
        return None
    packed = _PACKED.get(tensor.dtype)
    if packed is not None:
        chunks = [tensor.tensor_content] if tensor.tensor_content else getattr(tensor, packed[0])
        count = math.prod(shape)
        kind = np.dtype(packed[1])
        if len(chunks) != 1 or len(chunks[0]) != count * kind.itemsize:
            return None
        if kind.kind == "b" and chunks[0].translate(None, b"\0\1"):
            return None
        return np.frombuffer(chunks[0], kind).reshape(shape)
    if tensor.tensor_content:
        return None
    if tensor.dtype == _INT64 and len(tensor.int64_val) == math.prod(shape):
        return np.array(tensor.int64_val, dtype=np.int64).reshape(shape)
    if tensor.dtype == _STRING and len(tensor.string_val) == math.prod(shape):
        return object_array(list(tensor.string_val)).reshape(shape)
    return None


def _head(name: str, dtype: int, shape: tuple[int, ...], nbytes: int) -> bytes:
    """All of an entry of ``inputs`` that comes before the bytes of ``tensor_content``."""
    dims = b"".join(_tagged(0x12, b"\x08" + varint(size)) for size in shape)
    content = b"\x08" + varint(dtype) + _tagged(0x12, dims) + b"\x22" + varint(nbytes)
    key = _tagged(0x0A, name.encode())
    tensor = b"\x12" + varint(len(content) + nbytes) + content
    return b"\x12" + varint(len(key) + len(tensor) + nbytes) + key + tensor


def _tagged(tag: int, data: bytes) -> bytes:
    return bytes((tag,)) + varint(len(data)) + data


@cache
def _response_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="modelyard_fast_predict.proto", package="modelyard", syntax="proto3")
    _message(file, "Dim", size=(1, _FIELD.TYPE_INT64))
    _message(file, "Shape", dim=(2, "Dim", True), unknown_rank=(3, _FIELD.TYPE_BOOL))
    _message(
        file,
        "Tensor",
        dtype=(1, _FIELD.TYPE_INT32),
        tensor_shape=(2, "Shape"),
        tensor_content=(4, _FIELD.TYPE_BYTES),
        float_val=(5, _FIELD.TYPE_BYTES, True),
        double_val=(6, _FIELD.TYPE_BYTES, True),
        string_val=(8, _FIELD.TYPE_BYTES, True),
        int64_val=(10, _FIELD.TYPE_INT64, True),
        bool_val=(11, _FIELD.TYPE_BYTES, True),
    )
    _message(file, "Version", value=(1, _FIELD.TYPE_INT64))
    _message(file, "Spec", name=(1, _FIELD.TYPE_STRING), version=(2, "Version"), signature_name=(3, _FIELD.TYPE_STRING))
    response = _message(file, "Response", outputs=(1, "Response.OutputsEntry", True), model_spec=(2, "Spec"))
    entry = response.nested_type.add(name="OutputsEntry")
    entry.options.map_entry = True
    _add(entry, "key", 1, _FIELD.TYPE_STRING, repeated=False)
    _add(entry, "value", 2, "Tensor", repeated=False)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("modelyard.Response"))


def _message(
    file: descriptor_pb2.FileDescriptorProto, name: str, /, **fields: tuple[Any, ...]
) -> descriptor_pb2.DescriptorProto:
    message = file.message_type.add(name=name)
    for field, (number, kind, *repeated) in fields.items():
        _add(message, field, number, kind, repeated=bool(repeated))
    return message


def _add(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: Any, *, repeated: bool) -> None:
    field = message.field.add(name=name, number=number)
    field.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    if isinstance(kind, str):
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".modelyard.{kind}"
    else:
        field.type = kind
