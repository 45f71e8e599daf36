"""Arrays as JSON text, without a Python object for each value where that is possible."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

#: Below so many values the plain way is faster.
_FEW = 64
#: Significant digits after which every float32 is told apart from its neighbours (IEEE 754-2019, 5.12.2).
_DIGITS = 9
_LOWEST, _HIGHEST = -45, 38
# Columns of one value: sign, first digit, point, eight digits, e, sign and two digits of the exponent.
_SIGN, _FIRST, _POINT, _REST, _E = 0, 1, 2, 3, 11
_WIDTH = 15


def array_json(array: npt.NDArray[Any]) -> str:
    """Writes an array of numbers or booleans as nested JSON lists.

    float32 and narrower floats have nine significant digits at most, which is
    what it takes to read the same value back; float64 has as many as it takes.
    NaN and infinities are the bare words that TensorFlow Serving reads.

    Args:
        array: Of any shape; not of strings or complex numbers.
    """
    if array.dtype.kind in "fV" and array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    if array.dtype == np.float32 and array.size >= _FEW and np.isfinite(array).all():
        return _floats(array)
    return json.dumps(array.tolist(), separators=(",", ":"))


@cache
def _tables() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Powers of ten, the digits of 0 to 999, and exponents."""
    # Read from text, because numpy's own powers are not the nearest ones.
    powers = np.array([float(f"1e{_DIGITS - 1 - exponent}") for exponent in range(_LOWEST - 1, _HIGHEST + 2)])
    triples = np.frombuffer("".join(f"{number:03d}" for number in range(1000)).encode(), np.uint8).reshape(1000, 3)
    texts = "".join(f"e{exponent:+03d}" for exponent in range(_LOWEST - 1, _HIGHEST + 2))
    return powers, triples, np.frombuffer(texts.encode(), np.uint8).reshape(-1, 4)


def _floats(array: npt.NDArray[np.float32]) -> str:
    powers, triples, exponents = _tables()
    flat = np.ascontiguousarray(array).ravel().astype(np.float64)
    size = np.abs(flat)
    zero = size == 0
    size[zero] = 1.0
    exponent = np.floor(np.log10(size)).astype(np.int64)
    digits = np.rint(size * powers[exponent - (_LOWEST - 1)]).astype(np.int64)
    # Beside a power of ten the logarithm, or the rounding, may be off by one.
    off = np.where(digits >= 10**_DIGITS, 1, np.where(digits < 10 ** (_DIGITS - 1), -1, 0))
    if off.any():
        exponent += off
        digits = np.rint(size * powers[exponent - (_LOWEST - 1)]).astype(np.int64)
    digits[zero] = 0
    number = digits.astype(np.uint32)

    depth = array.ndim
    text = np.empty((flat.size, depth + _WIDTH + depth + 1), np.uint8)
    keep = np.ones(text.shape, np.bool_)
    text[:, :depth] = ord("[")
    body, shown = text[:, depth : depth + _WIDTH], keep[:, depth : depth + _WIDTH]
    body[:, _SIGN] = ord("-")
    shown[:, _SIGN] = np.signbit(flat)
    high = triples[number // 1_000_000]
    body[:, _FIRST] = high[:, 0]
    body[:, _POINT] = ord(".")
    body[:, _REST : _REST + 2] = high[:, 1:]
    body[:, _REST + 2 : _REST + 5] = triples[number // 1000 % 1000]
    body[:, _REST + 5 : _E] = triples[number % 1000]
    significant = body[:, _REST:_E] != ord("0")
    shown[:, _REST:_E] = np.logical_or.accumulate(significant[:, ::-1], axis=1)[:, ::-1]
    body[:, _E:] = exponents[exponent - (_LOWEST - 1)]
    shown[:, _E:] = (exponent != 0)[:, None]
    # A float that looks like a whole number keeps its point: servers take those without for integers.
    shown[:, _REST] |= exponent == 0
    shown[:, _POINT] = shown[:, _REST]
    text[:, depth + _WIDTH : -1] = ord("]")
    text[:, -1] = ord(",")
    keep[-1, -1] = False
    for axis in range(depth):
        step = math.prod(array.shape[axis:])
        first = np.zeros(flat.size, np.bool_)
        first[::step] = True
        keep[:, axis] = first
        last = np.zeros(flat.size, np.bool_)
        last[step - 1 :: step] = True
        keep[:, depth + _WIDTH + axis] = last
    return text[keep].tobytes().decode("ascii")
