"""Decimal digits of many numbers at once."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

#: Decimal exponents of the smallest and the largest float32.
_LOWEST, _HIGHEST = -45, 38


def decimal_digits(
    sizes: npt.NDArray[np.float64], count: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Rounds positive numbers of float32's range to significant decimal digits.

    A number is about ``digits * 10 ** (exponent + 1 - count)``.

    Args:
        sizes: The numbers, all greater than 0.
        count: How many digits; 9 tell every float32 from its neighbours
            (IEEE 754-2019, 5.12.2).

    Returns:
        The digits as whole numbers of so many digits; the exponents; and how far
        from the whole number each was, where 0.5 is as far as it gets: so close
        to it that the products' own rounding may have decided, printf may say
        otherwise.
    """
    powers = _powers(count)
    exponents = np.floor(np.log10(sizes)).astype(np.int64)
    scaled = sizes * powers[exponents - (_LOWEST - 1)]
    digits = np.rint(scaled)
    # Beside a power of ten the logarithm, or the rounding, may be off by one.
    off = (digits >= 10.0**count).astype(np.int64) - (digits < 10.0 ** (count - 1))
    if off.any():
        exponents += off
        scaled = sizes * powers[exponents - (_LOWEST - 1)]
        digits = np.rint(scaled)
    distance: Any = np.abs(scaled - digits)
    return digits, exponents, distance


@cache
def _powers(count: int) -> npt.NDArray[np.float64]:
    # Read from text, because numpy's own powers are not the nearest ones.
    return np.array([float(f"1e{count - 1 - exponent}") for exponent in range(_LOWEST - 1, _HIGHEST + 2)])
