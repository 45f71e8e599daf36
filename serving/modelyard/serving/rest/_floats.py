"""Floats as decimal text, by upstream's rule: six digits where they suffice, else as many as a round trip needs."""

from __future__ import annotations

from array import array as packed
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.wire import decimal_digits

#: Below so many values the plain way is faster; measured.
_MANY = 512
#: Digits of which upstream hopes that they suffice, and those that always do, for float32.
_SHORT, _LONG = 6, 9
#: Below the first exponent, and from the second on, numbers are written with an exponent, as by printf's ``%g``.
_LOWEST_PLAIN, _HIGHEST_PLAIN = -4, 6
#: So close to the middle between two decimal numbers, the rounding of products in double may have decided.
_CLOSE = 1e-6
#: Where in its line of bytes a number has its sign, the number itself, an exponent, and the comma behind it.
_WIDTH, _FIRST, _EXPONENT = 20, 1, slice(12, 16)
_NOT_FINITE = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def float_texts(values: npt.NDArray[Any]) -> list[str]:
    """Decimal text of floats.

    Args:
        values: float32 (or narrower) or float64, of any shape.

    Returns:
        One JSON number each, in order; NaN, Infinity and -Infinity bare, as upstream.
    """
    single = values.dtype.itemsize <= np.dtype(np.float32).itemsize
    if single and values.size >= _MANY:
        return _many(values.ravel())
    return _few(values.ravel().tolist(), single=single)


def _few(values: list[float], *, single: bool) -> list[str]:
    count, together = len(values), tuple(values)
    # All at once: a call for each costs more than its digits.
    texts = ("%g " * count % together).split()
    read: Iterable[float] = map(float, texts)
    if single:
        read = packed("f", read)
    longer = (("%.9g " if single else "%.17g ") * count % together).split()
    chosen = [
        text if value == again else long for value, text, again, long in zip(values, texts, read, longer, strict=True)
    ]
    return [text if "." in text or "e" in text else _whole(text) for text in chosen]


def _whole(text: str) -> str:
    return _NOT_FINITE.get(text) or text + ".0"


def _many(values: npt.NDArray[Any]) -> list[str]:
    """The same texts, without a Python float for each; what is rare takes the plain way."""
    with np.errstate(invalid="ignore"):
        sizes = np.abs(values.astype(np.float64))
    # Six digits of what is just below are a million too.
    rare = ~(sizes < 0.999 * 10.0**_HIGHEST_PLAIN)
    zero = sizes == 0
    sizes[rare | zero] = 1.0
    digits, exponents, distance = decimal_digits(sizes, _LONG)
    short, short_exponents, short_distance = decimal_digits(sizes, _SHORT)
    rare |= (np.abs(distance - 0.5) < _CLOSE) | (np.abs(short_distance - 0.5) < _CLOSE)
    with np.errstate(under="ignore"):
        again = (short * _powers()[short_exponents]).astype(np.float32)
        suffices = again == sizes.astype(np.float32)
    exponents = np.where(suffices, short_exponents, exponents)
    digits = np.where(suffices, short * 10.0 ** (_LONG - _SHORT), digits)
    digits[zero] = 0.0
    texts = _lines(digits.astype(np.int64), exponents, np.signbit(values))
    for index in np.flatnonzero(rare).tolist():
        (texts[index],) = _few([float(values[index])], single=True)
    return texts


def _lines(
    digits: npt.NDArray[np.int64], exponents: npt.NDArray[np.int64], negative: npt.NDArray[np.bool_]
) -> list[str]:
    """Writes each number in a line of bytes, and takes what counts of each line."""
    hundreds, exponent_texts = _texts()
    rest, low = np.divmod(digits, 1000)
    high, middle = np.divmod(rest, 1000)
    each = np.concatenate([hundreds[high], hundreds[middle], hundreds[low]], axis=1)
    # Zeros at the end are not written.
    count = _LONG - np.argmax(each[:, ::-1] != ord("0"), axis=1)
    count[digits == 0] = 1
    lines = np.empty((digits.size, _WIDTH), np.uint8)
    ends = np.empty(digits.size, np.int64)
    for exponent in range(max(_LOWEST_PLAIN, int(exponents.min())), int(exponents.max()) + 1):
        rows = np.flatnonzero(exponents == exponent)
        if rows.size:
            lines[rows], ends[rows] = _plain(each[rows], count[rows], exponent)
    tiny = exponents < _LOWEST_PLAIN
    rows = np.flatnonzero(tiny)
    if rows.size:
        lines[rows], ends[rows] = _plain(each[rows], count[rows], 0)
        lines[rows, _EXPONENT] = exponent_texts[-exponents[rows]]
        # Nothing follows the only digit: "1e-05".
        ends[rows] = np.where(count[rows] > 1, ends[rows], _FIRST + 1)
    lines[:, 0], lines[:, -1] = ord("-"), ord(",")
    keep = np.arange(_WIDTH) < ends[:, np.newaxis]
    keep[:, 0], keep[:, -1] = negative, True
    keep[tiny, _EXPONENT] = True
    return lines[keep].tobytes().decode("ascii").split(",")[:-1]


def _plain(
    digits: npt.NDArray[np.uint8], count: npt.NDArray[np.int64], exponent: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Lines of numbers of one exponent, written without it, and where each ends."""
    lines = np.empty((len(digits), _WIDTH), np.uint8)
    whole = max(0, exponent + 1)
    zeros = max(0, -1 - exponent)
    lines[:, _FIRST] = ord("0")
    lines[:, _FIRST : _FIRST + whole] = digits[:, :whole]
    point = _FIRST + max(1, whole)
    lines[:, point] = ord(".")
    start = point + 1 + zeros
    lines[:, point + 1 : start] = ord("0")
    lines[:, start : start + _LONG - whole] = digits[:, whole:]
    return lines, start + np.maximum(count - whole, 1)


@cache
def _texts() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Numbers of three digits, and negative exponents."""
    hundreds = "".join(f"{number:03d}" for number in range(1000))
    exponents = "".join(f"e-{number:02d}" for number in range(100))
    return (
        np.frombuffer(hundreds.encode("ascii"), np.uint8).reshape(-1, 3),
        np.frombuffer(exponents.encode("ascii"), np.uint8).reshape(-1, 4),
    )


@cache
def _powers() -> npt.NDArray[np.float64]:
    """What the last of six digits stands for, by exponent; negative ones from the end."""
    # Read from text, because numpy's own powers are not the nearest ones.
    exponents = [*range(_HIGHEST_PLAIN + 1), *range(-60, 0)]
    return np.array([float(f"1e{exponent + 1 - _SHORT}") for exponent in exponents])
