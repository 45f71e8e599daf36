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
_MANY = 256
#: Digits of which upstream hopes that they suffice, and those that always do, for float32.
_SHORT, _LONG = 6, 9
#: Below the first exponent, and from the second on, numbers are written with an exponent, as by printf's ``%g``.
_LOWEST_PLAIN, _HIGHEST_PLAIN = -4, 6
#: So close to the middle between two decimal numbers, the rounding of products in double may have decided.
_CLOSE = 1e-6
#: Where in the tables of words other ways to write the same digits begin.
_NEGATIVE = 1000.0
_AFTER_THOUSANDS, _BARE = 1000.0, 2000.0
_TRIMMED, _FIRST, _EMPTY = 10_000.0, 20_000.0, 30_000.0
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
    texts = _lines(digits, exponents, np.signbit(values))
    for index in np.flatnonzero(rare).tolist():
        (texts[index],) = _few([float(values[index])], single=True)
    return texts


def _lines(
    digits: npt.NDArray[np.float64], exponents: npt.NDArray[np.int64], negative: npt.NDArray[np.bool_]
) -> list[str]:
    """Writes each number as words of four bytes, looked up, and takes what counts of them."""
    heads, wholes, fractions, endings = _words()
    units, shifts = _places()
    # Below the lowest one, the digits are written as of exponent 0, and the exponent behind them.
    tiny = exponents < _LOWEST_PLAIN
    some = bool(tiny.any())
    place = (np.where(tiny, 0, exponents) if some else exponents) - _LOWEST_PLAIN
    unit = units[place]
    whole = np.floor(digits / unit)
    # Twelve digits after the point, in fours. All are whole numbers that float64 holds.
    fraction = (digits - whole * unit) * shifts[place]
    first = np.floor(fraction / 1e8)
    fraction -= first * 1e8
    second = np.floor(fraction / 1e4)
    third = fraction - second * 1e4
    thousands = np.floor(whole / 1e3)
    whole -= thousands * 1e3
    # Zeros at the end are not written, but for the one that makes a float of a whole number.
    none_third = third == 0
    none_behind = none_third & (second == 0)
    second += _TRIMMED * none_third
    third += _TRIMMED
    whole += _AFTER_THOUSANDS * (thousands > 0)
    lines = np.empty((digits.size, 7 if some else 6), np.uint32)
    if some:
        # Nothing follows the only digit: "1e-05".
        bare = tiny & none_behind & (first == 0)
        whole += _BARE * bare
        first += (_EMPTY - _FIRST) * bare
        lines[:, 5] = endings[np.where(tiny, -exponents, 0)]
    first += _FIRST * none_behind
    for column, (texts, indices) in enumerate(
        [(heads, thousands + _NEGATIVE * negative), (wholes, whole), (fractions, first), (fractions, second),
         (fractions, third)]
    ):  # fmt: skip
        lines[:, column] = texts[indices.astype(np.intp)]
    lines[:, -1] = endings[-1]
    return lines.tobytes().translate(None, b"\0").decode("ascii").split(",")[:-1]


@cache
def _words() -> tuple[npt.NDArray[np.uint32], ...]:
    """Signs and thousands; what is before the point; four digits after it; exponents, and the comma."""
    thousands = ["", *map(str, range(1, 1000))]
    heads = [*thousands, *(f"-{text}" for text in thousands)]
    wholes = [*(f"{number}." for number in range(1000)), *(f"{number:03d}." for number in range(1000))]
    wholes += [str(number) for number in range(10)]
    fours = [f"{number:04d}" for number in range(10_000)]
    trimmed = [text.rstrip("0") for text in fours]
    fractions = [*fours, *trimmed, *(text or "0" for text in trimmed), ""]
    endings = [*[""] * -_LOWEST_PLAIN, *(f"e-{number:02d}" for number in range(-_LOWEST_PLAIN, 100)), ","]
    return tuple(
        np.frombuffer("".join(text.ljust(4, "\0") for text in texts).encode("ascii"), np.uint32)
        for texts in (heads, wholes, fractions, endings)
    )


@cache
def _places() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """By exponent, from the lowest that is written plainly: what 1 is in nine digits, and how far to shift the rest."""
    exponents = range(_LOWEST_PLAIN, _HIGHEST_PLAIN)
    units = [float(10 ** (_LONG - 1 - exponent)) for exponent in exponents]
    return np.array(units), np.array([float(10 ** (exponent - _LOWEST_PLAIN)) for exponent in exponents])


@cache
def _powers() -> npt.NDArray[np.float64]:
    """What the last of six digits stands for, by exponent; negative ones from the end."""
    # Read from text, because numpy's own powers are not the nearest ones.
    exponents = [*range(_HIGHEST_PLAIN + 1), *range(-60, 0)]
    return np.array([float(f"1e{exponent + 1 - _SHORT}") for exponent in exponents])
