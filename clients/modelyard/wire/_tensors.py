"""numpy arrays to ``TensorProto`` and back.

Rules of decoding are TensorFlow's (``tensor.cc``): ``tensor_content`` wins over
the typed fields and must have exactly the right length; a typed field with too
few values repeats its last one, with none it means zeros, with too many the
rest is dropped; no shape means a scalar.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import InvalidInputError, RequestTooLargeError, UnsupportedError
from modelyard.wire._dtypes import DType, dtype_by_enum, dtype_by_numpy
from modelyard.wire._generated import tensorflow_pb2
from modelyard.wire._varint import varint

#: Tag bytes (field number << 3 | 2) of the packed fields whose packed form is the array's own bytes.
_PACKED_TAGS = {"float_val": b"\x2a", "double_val": b"\x32", "scomplex_val": b"\x4a", "dcomplex_val": b"\x62"}

#: A shape beyond this many elements is refused before anything is allocated for it.
MAX_ELEMENTS = 1 << 31
#: More dimensions than this numpy does not have.
MAX_RANK = 64
#: Repeating the last value lets a few bytes ask for any amount of memory: the tensors of one message get this much.
MAX_FILLED_BYTES = 1 << 26


def as_wire_array(value: Any, *, expected: str = "text or bytes in a string tensor") -> npt.NDArray[Any]:
    """Turns a value into an array whose dtype exists on the wire.

    Python strings become UTF-8 bytes in an object array; other text and bytes
    arrays become object arrays of bytes. Everything else is ``np.asarray``.

    Args:
        value: An array, a scalar, or nested lists.
        expected: What an error calls that which objects should have been.

    Raises:
        InvalidInputError: Nested lists of unequal length, objects that are
            neither text nor bytes, text that is not UTF-8, or masked values.
        UnsupportedError: A numpy dtype with no counterpart on the wire.
    """
    if isinstance(value, (str, bytes)):
        value = [value]
        return _bytes_array(value, ())
    if type(value) is not np.ndarray:
        refuse_masked(value)
    try:
        array = np.asarray(value)
    except ValueError as exc:
        raise InvalidInputError(f"Expected an array or equally long nested lists; numpy says: {exc}") from exc
    if array.dtype.kind in "SUT" and not isinstance(value, np.ndarray):
        # numpy drops trailing NUL bytes of fixed-width strings: go back to the values themselves.
        array = np.array(value, dtype=object)
    if array.dtype.kind in "SUOT":
        return _bytes_array(array.ravel().tolist(), array.shape, expected)
    dtype_by_numpy(array.dtype)
    return array


def refuse_masked(value: object) -> None:
    """Refuses arrays with masked values, alone or in lists: no tensor has a mask, and numpy drops it silently.

    Args:
        value: Anything.

    Raises:
        InvalidInputError: A value is masked.
    """
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (list, tuple, np.ndarray)):
            for item in value:
                refuse_masked(item)
    # numpy imports its masked arrays when they are named: only for those who use them.
    elif isinstance(value, np.ndarray) and type(value) is not np.ndarray and np.ma.is_masked(value):
        raise InvalidInputError(
            "Expected an array without a mask; received masked values. Fill it first: .filled(value)."
        )


def object_array(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    """Values as an array of objects ``[N]``, such as bytes, of which numpy would make another dtype.

    Args:
        values: Of any kind but arrays.
    """
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _bytes_array(
    values: Sequence[Any], shape: tuple[int, ...], expected: str = "text or bytes in a string tensor"
) -> npt.NDArray[Any]:
    result = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        if isinstance(value, str):
            try:
                result[index] = value.encode()
            except UnicodeEncodeError as exc:
                raise InvalidInputError(
                    f"Expected text that UTF-8 can write; received {value!r} at position {index}. Send bytes instead."
                ) from exc
        elif isinstance(value, (bytes, bytearray, memoryview)):
            result[index] = bytes(value)
        else:
            what = "an integer of more than 64 bits" if type(value) is int else type(value).__name__
            raise InvalidInputError(f"Expected {expected}; received {what} at position {index}.")
    return result.reshape(shape)


def array_to_tensor(array: npt.NDArray[Any], *, as_content: bool = False) -> tensorflow_pb2.TensorProto:
    """Encodes an array.

    Args:
        array: Any dtype of :func:`modelyard.wire.dtype_names`; strings as an
            object array of bytes.
        as_content: Numbers go to ``tensor_content`` instead of the typed
            field. Strings always use ``string_val``.

    Returns:
        The message, with every element written.

    Raises:
        InvalidInputError: A string tensor holds something else than text or bytes.
        UnsupportedError: The dtype has no counterpart on the wire.
    """
    dtype = dtype_by_numpy(array.dtype)
    tensor = tensorflow_pb2.TensorProto()
    if dtype.name == "string":
        strings = _bytes_array(array.ravel().tolist(), array.shape)
        tensor.string_val.extend(strings.ravel().tolist())
    elif as_content:
        tensor.tensor_content = _little_endian(array).tobytes()
    elif dtype.field in _PACKED_TAGS:
        data = _little_endian(array).tobytes()
        # The packed form of a float field is the array's own bytes: no Python object per value.
        tensor.MergeFromString(_PACKED_TAGS[dtype.field] + varint(len(data)) + data)
    elif dtype.field == "half_val":
        tensor.half_val.extend(_half_bits(array).ravel().tolist())
    else:
        getattr(tensor, dtype.field).extend(array.ravel().tolist())
    tensor.dtype = dtype.enum  # type: ignore[assignment]
    for size in array.shape:
        tensor.tensor_shape.dim.add().size = size
    return tensor


def tensor_to_array(tensor: tensorflow_pb2.TensorProto, *, name: str = "tensor") -> npt.NDArray[Any]:
    """Decodes a message.

    Args:
        tensor: Either form; any dtype of :func:`modelyard.wire.dtype_names`.
        name: What to call the tensor in an error.

    Returns:
        The array. One made from ``tensor_content`` views the message's bytes
        and is read-only.

    Raises:
        InvalidInputError: dtype or shape is invalid, or ``tensor_content`` has
            the wrong length.
        RequestTooLargeError: A few values were to fill a huge tensor.
        UnsupportedError: The dtype is known to TensorFlow but cannot be exchanged.
    """
    return _decode(tensor, name, MAX_FILLED_BYTES)[0]


def tensors_to_arrays(tensors: Mapping[str, tensorflow_pb2.TensorProto]) -> dict[str, npt.NDArray[Any]]:
    """Decodes the tensors of one message, which share what a few values may fill.

    Args:
        tensors: By name.

    Returns:
        The arrays by name, as :func:`tensor_to_array` makes them.

    Raises:
        InvalidInputError: As :func:`tensor_to_array`.
        RequestTooLargeError: A few values were to fill huge tensors, together.
        UnsupportedError: As :func:`tensor_to_array`.
    """
    arrays = {}
    room = MAX_FILLED_BYTES
    for name, tensor in tensors.items():
        arrays[name], filled = _decode(tensor, name, room)
        room -= filled
    return arrays


def _decode(tensor: tensorflow_pb2.TensorProto, name: str, room: int) -> tuple[npt.NDArray[Any], int]:
    """The array, and its bytes where fewer values than that were sent."""
    try:
        dtype = dtype_by_enum(tensor.dtype)
    except InvalidInputError as exc:
        raise InvalidInputError(f"tensor parsing error: {name} (dtype {tensor.dtype} is not valid)") from exc
    shape = _shape(tensor, name)
    count = math.prod(shape)
    if tensor.tensor_content:
        return _from_content(tensor.tensor_content, dtype, shape, name), 0
    values = getattr(tensor, dtype.field)
    filled = 0 if len(values) >= count else count * (8 if dtype.numpy is None else dtype.numpy.itemsize)
    if filled > room:
        raise RequestTooLargeError(
            f"tensor parsing error: {name} (shape {list(shape)} of {dtype.name} takes {filled} bytes, but only "
            f"{len(values)} values were sent; tensors larger than {MAX_FILLED_BYTES} bytes must be sent in full, and "
            "so must those that are larger together)"
        )
    if dtype.name == "string":
        strings = _bytes_array(list(values[:count]), (min(len(values), count),))
        return _fill(strings, count, b"").reshape(shape), filled
    if dtype.field == "half_val":
        flat = np.fromiter(values, dtype=np.int64, count=len(values)).astype(np.uint16).view(_storage(dtype, name))
    elif dtype.name in ("complex64", "complex128"):
        if len(values) % 2:
            raise InvalidInputError(
                f"tensor parsing error: {name} ({len(values)} values in {dtype.field}; expected pairs)"
            )
        parts = np.array(values, dtype=np.float32 if dtype.name == "complex64" else np.float64)
        flat = parts.view(_storage(dtype, name))
    elif dtype.field == "int_val":
        # Narrow integers wrap as upstream's static_cast does.
        flat = np.array(values, dtype=np.int32).astype(_storage(dtype, name))
    else:
        flat = np.array(values, dtype=_storage(dtype, name))
    return _fill(flat[:count], count, 0).reshape(shape), filled


def _storage(dtype: DType, name: str) -> np.dtype[Any]:
    if dtype.numpy is None:
        raise UnsupportedError(
            f"{name} has dtype {dtype.name}, which numpy lacks. Install the package ml_dtypes to exchange it."
        )
    return dtype.numpy


def _shape(tensor: tensorflow_pb2.TensorProto, name: str) -> tuple[int, ...]:
    if tensor.tensor_shape.unknown_rank:
        raise InvalidInputError(f"tensor parsing error: {name} (unknown rank; a tensor needs its shape)")
    dims = tensor.tensor_shape.dim
    if len(dims) > MAX_RANK:
        raise InvalidInputError(f"tensor parsing error: {name} ({len(dims)} dimensions; expected at most {MAX_RANK})")
    shape = tuple(dim.size for dim in dims)
    if any(size < 0 for size in shape):
        raise InvalidInputError(f"tensor parsing error: {name} (shape {list(shape)} has a negative size)")
    if not has_room(shape):
        raise InvalidInputError(
            f"tensor parsing error: {name} (shape {list(shape)} has more than {MAX_ELEMENTS} elements)"
        )
    return shape


def has_room(shape: Iterable[int]) -> bool:
    """Whether an array may have a shape: one with a size of 0 is no way around the limit of the others.

    Args:
        shape: The sizes, none of them negative.
    """
    count = 1
    for size in shape:
        count *= max(size, 1)
        if count > MAX_ELEMENTS:
            return False
    return True


def _fill(flat: npt.NDArray[Any], count: int, empty: Any) -> npt.NDArray[Any]:
    if len(flat) >= count:
        return flat
    last = flat[-1] if len(flat) else empty
    result = np.empty(count, dtype=flat.dtype)
    result[: len(flat)] = flat
    result[len(flat) :] = last
    return result


def _from_content(content: bytes, dtype: DType, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    count = math.prod(shape)
    if dtype.name == "string":
        return _strings_from_content(content, count, name).reshape(shape)
    storage = _storage(dtype, name)
    if len(content) != count * storage.itemsize:
        raise InvalidInputError(
            f"tensor parsing error: {name} (tensor_content has {len(content)} bytes; shape {list(shape)} of "
            f"{dtype.name} takes {count * storage.itemsize})"
        )
    return np.frombuffer(content, dtype=storage.newbyteorder("<")).reshape(shape)


def _strings_from_content(content: bytes, count: int, name: str) -> npt.NDArray[Any]:
    """All varint lengths come first, then all bytes."""
    position = 0
    lengths = []
    for _ in range(count):
        length = shift = 0
        while True:
            if position >= len(content) or shift > 63:
                raise InvalidInputError(f"tensor parsing error: {name} (tensor_content ends inside its lengths)")
            byte = content[position]
            position += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        lengths.append(length)
    if position + sum(lengths) != len(content):
        raise InvalidInputError(
            f"tensor parsing error: {name} (tensor_content has {len(content)} bytes; its {count} strings take "
            f"{position + sum(lengths)})"
        )
    values = []
    for length in lengths:
        values.append(content[position : position + length])
        position += length
    return _bytes_array(values, (count,))


def _little_endian(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind == "V":
        # bfloat16 is a dtype of ml_dtypes, which has no byte orders: its bits have.
        array = np.ascontiguousarray(array).view(np.uint16)
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def _half_bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).view(np.uint16)


def shape_to_proto(shape: Iterable[int] | None) -> tensorflow_pb2.TensorShapeProto:
    """Encodes the shape of a signature: ``-1`` is any size, None is an unknown rank.

    Args:
        shape: The sizes.
    """
    if shape is None:
        return tensorflow_pb2.TensorShapeProto(unknown_rank=True)
    return tensorflow_pb2.TensorShapeProto(dim=[tensorflow_pb2.TensorShapeProto.Dim(size=size) for size in shape])


def shape_from_proto(proto: tensorflow_pb2.TensorShapeProto) -> tuple[int, ...] | None:
    """Decodes the shape of a signature.

    Args:
        proto: The message.

    Returns:
        Sizes with ``-1`` for any size; None for an unknown rank.
    """
    return None if proto.unknown_rank else tuple(dim.size for dim in proto.dim)
