"""JSON values to arrays, by the rules of TensorFlow Serving's REST API."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import InvalidInputError, UnsupportedError
from modelyard.serving.handlers.rest._json import is_number, quote, type_name
from modelyard.serving.requests import cpp_dtype_name
from modelyard.wire import MAX_RANK, dtype_by_name

_B64 = "b64"


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """How values of one dtype are accepted.

    Attributes:
        accepts: Whether a JSON value is one.
        parse: dtype in which values are collected; narrowing to the tensor's
            own dtype wraps integers and saturates floats, as upstream does.
    """

    accepts: Callable[[Any], bool]
    parse: type[np.generic]


def _integers(low: int, high: int, parse: type[np.generic]) -> _Rule:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return _Rule(accepts=accepts, parse=parse)


_INT32 = _integers(-(1 << 31), (1 << 31) - 1, np.int64)
_FLOAT = _Rule(accepts=is_number, parse=np.float64)
_RULES = {
    "float32": _FLOAT,
    "float64": _FLOAT,
    "int32": _INT32,
    "int16": _INT32,
    "int8": _INT32,
    "uint8": _INT32,
    "int64": _integers(-(1 << 63), (1 << 63) - 1, np.int64),
    "uint32": _integers(0, (1 << 32) - 1, np.int64),
    "uint64": _integers(0, (1 << 64) - 1, np.uint64),
    "bool": _Rule(accepts=lambda value: isinstance(value, bool), parse=np.bool_),
    "string": _Rule(accepts=lambda value: isinstance(value, str), parse=np.object_),
}

_EXTRA_RULES = {"float16": _FLOAT, "bfloat16": _FLOAT, "uint16": _integers(0, (1 << 16) - 1, np.int64)}


def is_b64(value: Any) -> bool:
    """Whether a value is ``{"b64": "<text>"}``.

    Args:
        value: Any parsed value.
    """
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(_B64), str)


def value_to_array(value: Any, dtype: str, *, extensions: bool = False) -> npt.NDArray[Any]:
    """Converts a JSON value, nested lists included.

    Args:
        value: A scalar, or lists of equal lengths.
        dtype: The signature's dtype.
        extensions: Accept half, bfloat16 and uint16, which upstream refuses.

    Returns:
        The array; its shape is that of the lists.

    Raises:
        InvalidInputError: Ragged lists, more than 64 dimensions, or a value of another type.
        UnsupportedError: JSON has no form for this dtype.
    """
    kind = dtype_by_name(dtype).numpy
    rule = _RULES.get(dtype) or (_EXTRA_RULES.get(dtype) if extensions else None)
    if rule is None or kind is None:
        # Only what holds no value at all comes out of this.
        shape, _ = _walk(value, _unsupported(dtype))
        return np.zeros(shape, dtype=object if kind is None else kind)
    shape, values = _walk(value, _converter(rule, dtype))
    if dtype == "string":
        array = np.empty(len(values), dtype=object)
        array[:] = values
    else:
        array = np.array(values, dtype=rule.parse)
    array = array.reshape(shape)
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(kind, copy=False)


def _unsupported(dtype: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        raise UnsupportedError(f"Conversion of JSON Value: {quote(value)} to type: {cpp_dtype_name(dtype)}")

    return convert


def _converter(rule: _Rule, dtype: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if dtype == "string" and isinstance(value, dict):
            return decode_b64(value)
        if not rule.accepts(value):
            raise InvalidInputError(
                f"JSON Value: {quote(value)} Type: {type_name(value)} is not of expected type: {cpp_dtype_name(dtype)}"
            )
        return value.encode("utf-8", "surrogateescape") if dtype == "string" else value

    return convert


def decode_b64(value: Any) -> bytes:
    """Decodes ``{"b64": "<text>"}``.

    Args:
        value: A JSON object.

    Raises:
        InvalidInputError: Not such an object, or not base64.
    """
    if not is_b64(value):
        raise InvalidInputError(f"JSON Value: {quote(value)} not formatted correctly for base64 data")
    text = value[_B64]
    try:
        # Upstream does not insist on padding.
        return base64.b64decode(text + "=" * (-len(text) % 4) if "=" not in text else text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidInputError(f"Unable to base64 decode: {exc}") from exc


def _walk(value: Any, convert: Callable[[Any], Any]) -> tuple[tuple[int, ...], list[Any]]:
    """Shape from the first elements, then every value in order."""
    shape: list[int] = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if not first:
            break
        first = first[0]
    if len(shape) > MAX_RANK:
        raise InvalidInputError(f"JSON Value has {len(shape)} dimensions; expected at most {MAX_RANK}")
    values: list[Any] = []
    _fill(value, 0, shape, convert, values)
    return tuple(shape), values


def _fill(value: Any, level: int, shape: list[int], convert: Callable[[Any], Any], values: list[Any]) -> None:
    # The recursion is bounded by the cap on nesting that every body passed.
    rank = len(shape)
    if not isinstance(value, list):
        if level != rank:
            raise InvalidInputError(
                f"JSON Value: {quote(value)} found at incorrect level: {level + 1} in the JSON DOM. "
                f"Expected at level: {rank}"
            )
        values.append(convert(value))
        return
    if level >= rank:
        raise InvalidInputError(f"Encountered list at unexpected level: {level} expected < {rank}")
    if len(value) != shape[level]:
        raise InvalidInputError(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    for item in value:
        _fill(item, level + 1, shape, convert, values)
