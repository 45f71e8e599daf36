"""JSON values to arrays, by the rules of TensorFlow Serving's REST API."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from modelyard.errors import InvalidInputError, UnsupportedError
from modelyard.serving.handlers.rest._json import quote, type_name
from modelyard.serving.requests import cpp_dtype_name
from modelyard.wire import MAX_RANK, dtype_by_name

_B64 = "b64"
_SPACE = b" \t\n\v\f\r"
#: How many numbers are looked at while no other thread has its turn: about a millisecond.
_SLICE = 1 << 15


class _Rule(NamedTuple):
    """Which JSON values a dtype takes.

    They are collected as ``parse``: narrowing to the tensor's own dtype wraps integers and saturates floats, as
    upstream does.
    """

    kinds: frozenset[type]
    parse: type[np.generic]
    low: int | None = None
    high: int = 0

    def accepts(self, values: list[object]) -> bool:
        if len(values) > _SLICE:
            return all(self.accepts(values[at : at + _SLICE]) for at in range(0, len(values), _SLICE))
        if not self.kinds.issuperset(map(type, values)):
            return False
        whole = cast("Sequence[int]", values)
        return self.low is None or not whole or (self.low <= min(whole) and max(whole) <= self.high)


_NUMBERS, _WHOLE = frozenset((int, float)), frozenset((int,))
_INT32 = _Rule(_WHOLE, np.int64, -(1 << 31), (1 << 31) - 1)
_FLOAT = _Rule(_NUMBERS, np.float64)
_RULES = {
    "float32": _FLOAT,
    "float64": _FLOAT,
    "int32": _INT32,
    "int16": _INT32,
    "int8": _INT32,
    "uint8": _INT32,
    "int64": _Rule(_WHOLE, np.int64, -(1 << 63), (1 << 63) - 1),
    "uint32": _Rule(_WHOLE, np.int64, 0, (1 << 32) - 1),
    "uint64": _Rule(_WHOLE, np.uint64, 0, (1 << 64) - 1),
    "bool": _Rule(frozenset((bool,)), np.bool_),
    "string": _Rule(frozenset((str,)), np.object_),
}

_EXTRA_RULES = {"float16": _FLOAT, "bfloat16": _FLOAT, "uint16": _Rule(_WHOLE, np.int64, 0, (1 << 16) - 1)}


def is_b64(value: object) -> TypeGuard[dict[str, str]]:
    """Whether a value is ``{"b64": "<text>"}``."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_B64), str)


def value_to_array(value: object, dtype: str, *, extensions: bool = False) -> npt.NDArray[Any]:
    """Converts a JSON value, nested lists included.

    ``extensions`` accepts half, bfloat16 and uint16, which upstream refuses.
    """
    kind = dtype_by_name(dtype).numpy
    rule = _RULES.get(dtype) or (_EXTRA_RULES.get(dtype) if extensions else None)
    shape = _shape_of(value)
    values: list[object] = []
    _fill(value, 0, shape, dtype, None if kind is None else rule, values)
    if rule is None or kind is None:
        # Only what holds no value at all comes here.
        return np.zeros(shape, dtype=object if kind is None else kind)
    array = np.empty(len(values), dtype=rule.parse)
    for at in range(0, len(values), _SLICE):
        array[at : at + _SLICE] = values[at : at + _SLICE]
    array = array.reshape(shape)
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(kind, copy=False)


def _convert(value: object, dtype: str, rule: _Rule | None) -> object:
    if rule is None:
        raise UnsupportedError(f"Conversion of JSON Value: {quote(value)} to type: {cpp_dtype_name(dtype)}")
    if dtype == "string" and isinstance(value, dict):
        return decode_b64(value)
    if not rule.accepts([value]):
        raise InvalidInputError(
            f"JSON Value: {quote(value)} Type: {type_name(value)} is not of expected type: {cpp_dtype_name(dtype)}"
        )
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def decode_b64(value: Mapping[str, object]) -> bytes:
    """Decodes ``{"b64": "<text>"}``."""
    if not is_b64(value):
        raise InvalidInputError(f"JSON Value: {quote(value)} not formatted correctly for base64 data")
    try:
        # Upstream skips white space, such as the line breaks that many tools write, and does not insist on padding.
        text = value[_B64].encode("ascii").translate(None, _SPACE)
        return base64.b64decode(text if b"=" in text else text + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidInputError(f"Unable to base64 decode: {exc}") from exc


def _shape_of(value: object) -> list[int]:
    """The lengths of the first lists: those of the others must be equal."""
    shape: list[int] = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    if len(shape) > MAX_RANK:
        raise InvalidInputError(f"JSON Value has {len(shape)} dimensions; expected at most {MAX_RANK}")
    return shape


def _fill(
    value: object, level: int, shape: Sequence[int], dtype: str, rule: _Rule | None, values: list[object]
) -> None:
    # The recursion is bounded by the cap on nesting that every body passed.
    rank = len(shape)
    if not isinstance(value, list):
        if level != rank:
            raise InvalidInputError(
                f"JSON Value: {quote(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {rank}"
            )
        values.append(_convert(value, dtype, rule))
        return
    if level >= rank:
        raise InvalidInputError(f"Encountered list at unexpected level: {level} expected < {rank}")
    if len(value) != shape[level]:
        raise InvalidInputError(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    if level == rank - 1 and rule is not None and dtype != "string" and rule.accepts(value):
        # A call for each number would take ten times as long.
        values += value
        return
    for item in value:
        _fill(item, level + 1, shape, dtype, rule, values)
