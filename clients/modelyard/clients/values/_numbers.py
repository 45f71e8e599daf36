"""Arrays as JSON text, without a Python object for each value where that is possible."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.wire import decimal_digits

#: Below so many values the plain way is faster.
_FEW = 64
#: Significant digits after which every float32 is told apart from its neighbours (IEEE 754-2019, 5.12.2).
_DIGITS = 9
_LOWEST, _HIGHEST = -45, 38
#: A value is four words of four bytes: sign, digit, point, digit; four digits; three digits and e; exponent and comma.
_WORDS = 4
#: Values of no more digits than this are shorter written one by one.
_SHORT = 10**6
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_COMMA = np.frombuffer(b"\0\0\0,", np.uint32)[0] ^ np.frombuffer(b"\0\0\0 ", np.uint32)[0]


def array_json(array: npt.NDArray[Any]) -> str:
    """Writes an array of numbers or booleans as nested JSON lists.

    float32 and narrower floats have nine significant digits at most, which is what it takes to read the same value
    back; float64 has as many as it takes. NaN and infinities are the bare words that TensorFlow Serving reads.
    """
    if array.dtype.kind in "fV" and array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    if array.dtype == np.float32 and array.size >= _FEW and np.isfinite(array).all():
        digits, exponent = _decimal(array)
        if (digits % _SHORT).any():
            return _text(array, digits, exponent)
    return _ENCODER.encode(array.tolist())


def _words(texts: list[str]) -> npt.NDArray[np.uint32]:
    return np.frombuffer("".join(texts).encode("ascii"), np.uint32)


@cache
def _tables() -> tuple[npt.NDArray[np.uint32], ...]:
    """The four words by what they say."""
    heads = [f"{sign}{number // 10}.{number % 10}" for sign in " -" for number in range(100)]
    middles = [f"{number:04d}" for number in range(10_000)]
    tails = [f"{number:03d}e" for number in range(1000)]
    exponents = [f"{exponent:+03d}," for exponent in range(_LOWEST - 1, _HIGHEST + 2)]
    return _words(heads), _words(middles), _words(tails), _words(exponents)


def _decimal(array: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Nine digits of each value, as a whole number, and its exponent."""
    size = np.abs(np.ascontiguousarray(array).ravel().astype(np.float64))
    zero = size == 0
    size[zero] = 1.0
    digits, exponent, _ = decimal_digits(size, _DIGITS)
    digits[zero] = 0
    return digits.astype(np.uint32), exponent


def _text(array: npt.NDArray[np.float32], digits: npt.NDArray[np.uint32], exponent: npt.NDArray[np.int64]) -> str:
    heads, middles, tails, exponents = _tables()
    # Spaces may stand before numbers and beside brackets, so that every value is as long as the others.
    # The brackets of a single row are written around it: to leave room for them at every value costs a third more.
    before, after = (0, 0) if array.ndim == 1 else (-(-array.ndim // 4), -(-(array.ndim + 1) // 4))
    text = np.empty((digits.size, before + _WORDS + after), np.uint32)
    value = text[:, before : before + _WORDS]
    rest, tail = np.divmod(digits, 1000)
    head, middle = np.divmod(rest, 10_000)
    value[:, 0] = heads[head + 100 * np.signbit(array).ravel()]
    value[:, 1] = middles[middle]
    value[:, 2] = tails[tail]
    value[:, 3] = exponents[exponent - (_LOWEST - 1)]
    row = array.shape[-1]
    value[row - 1 :: row, 3] ^= _COMMA
    if array.ndim == 1:
        return f"[{text.tobytes().decode('ascii').rstrip(' ')}]"
    keep = np.zeros(text.shape, np.bool_)
    keep[:, before : before + _WORDS] = True
    for depth in range(1, array.ndim + 1):
        # From the innermost dimension outwards: longer rows overwrite what shorter ones have written.
        step = math.prod(array.shape[array.ndim - depth :])
        text[::step, :before] = _words(["[" * depth + " " * (4 * before - depth)])
        text[step - 1 :: step, before + _WORDS :] = _words(["]" * depth + "," + " " * (4 * after - depth - 1)])
    keep[::row, :before] = True
    keep[row - 1 :: row, before + _WORDS :] = True
    return text[keep].tobytes().decode("ascii").rstrip(" ,")
