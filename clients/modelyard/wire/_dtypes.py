"""Dtypes: TensorFlow's names and numbers beside numpy's types."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from modelyard.errors import InvalidInputError, UnsupportedError
from modelyard.wire._generated import tensorflow_pb2

#: Numbers above this are TF1's reference dtypes: the value plus 100.
_REF_OFFSET = 100


@dataclass(frozen=True, kw_only=True)
class DType:
    """One dtype on the wire.

    Attributes:
        name: TensorFlow's Python name, such as ``float32``.
        enum: Number in ``tensorflow.DataType``.
        field: The ``*_val`` field of ``TensorProto`` that holds its values.
        numpy: The numpy dtype; None where numpy (or ml_dtypes) has none.
    """

    name: str
    enum: int
    field: str
    numpy: np.dtype[Any] | None


def _bfloat16() -> np.dtype[Any] | None:
    # ml_dtypes is no dependency of the thin client; where it is absent, bfloat16 travels as uint16 bit patterns.
    try:
        import ml_dtypes
    except ModuleNotFoundError as exc:
        if exc.name != "ml_dtypes":
            raise
        return None
    kind: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return kind


@cache
def _table() -> tuple[DType, ...]:
    rows: list[tuple[str, int, str, Any]] = [
        ("float32", 1, "float_val", np.float32),
        ("float64", 2, "double_val", np.float64),
        ("int32", 3, "int_val", np.int32),
        ("uint8", 4, "int_val", np.uint8),
        ("int16", 5, "int_val", np.int16),
        ("int8", 6, "int_val", np.int8),
        ("string", 7, "string_val", np.object_),
        ("complex64", 8, "scomplex_val", np.complex64),
        ("int64", 9, "int64_val", np.int64),
        ("bool", 10, "bool_val", np.bool_),
        ("bfloat16", 14, "half_val", _bfloat16()),
        ("uint16", 17, "int_val", np.uint16),
        ("complex128", 18, "dcomplex_val", np.complex128),
        ("float16", 19, "half_val", np.float16),
        ("uint32", 22, "uint32_val", np.uint32),
        ("uint64", 23, "uint64_val", np.uint64),
    ]
    return tuple(
        DType(name=name, enum=enum, field=field, numpy=None if kind is None else np.dtype(kind))
        for name, enum, field, kind in rows
    )


@cache
def _by_name() -> dict[str, DType]:
    return {row.name: row for row in _table()}


@cache
def _by_enum() -> dict[int, DType]:
    return {row.enum: row for row in _table()}


@cache
def _by_numpy() -> dict[np.dtype[Any], DType]:
    return {row.numpy: row for row in _table() if row.numpy is not None}


@cache
def dtype_names() -> tuple[str, ...]:
    """Names of every dtype that a tensor on the wire may have, sorted."""
    return tuple(sorted(_by_name()))


def dtype_by_name(name: str) -> DType:
    """Looks a dtype up by TensorFlow's name.

    Args:
        name: Such as ``float32``.

    Raises:
        UnsupportedError: There is no such dtype on the wire.
    """
    try:
        return _by_name()[name]
    except KeyError:
        raise UnsupportedError(f"Unknown dtype {name!r}; expected one of {', '.join(dtype_names())}.") from None


def dtype_by_enum(number: int) -> DType:
    """Looks a dtype up by its number in ``tensorflow.DataType``; reference dtypes count as their base.

    Args:
        number: Such as 1 for ``DT_FLOAT``.

    Raises:
        InvalidInputError: The number is ``DT_INVALID`` or unknown.
        UnsupportedError: The dtype is known but no tensor of it can be exchanged.
    """
    base = number - _REF_OFFSET if number > _REF_OFFSET else number
    row = _by_enum().get(base)
    if row is not None:
        return row
    if base == 0 or base not in tensorflow_pb2.DataType.values():
        raise InvalidInputError(f"tensor parsing error: dtype {number} is not a valid tensorflow.DataType.")
    raise UnsupportedError(
        f"Tensors of dtype {tensorflow_pb2.DataType.Name(base)} cannot be exchanged; "
        f"expected one of {', '.join(dtype_names())}."
    )


def dtype_by_numpy(kind: np.dtype[Any]) -> DType:
    """Looks a dtype up by its numpy dtype; every text and bytes dtype counts as ``string``.

    Args:
        kind: A numpy dtype.

    Raises:
        UnsupportedError: There is no such dtype on the wire.
    """
    if kind.kind in "SUOT":
        return _by_name()["string"]
    known = _by_numpy()
    row = known.get(kind) or known.get(kind.newbyteorder("="))
    if row is None:
        raise UnsupportedError(f"numpy dtype {kind} has no counterpart; expected one of {', '.join(dtype_names())}.")
    return row
