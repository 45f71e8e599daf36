"""Casts that change no value: what a signature's dtype can hold of what somebody has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.wire._dtypes import dtype_by_name, dtype_by_numpy


def cast_unchanged(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any] | None:
    """An array in another dtype, where its values allow that.

    Integers become wider ones, narrower ones that hold every value, and floats
    that hold every value exactly; floats become other floats, rounded as
    everywhere. No float becomes an integer, no value infinite, nothing a boolean
    or text.

    Args:
        array: Of a dtype that exists on the wire.
        name: TensorFlow's name of the dtype wanted.

    Returns:
        The array, itself where it has the dtype already; None where a value would change.

    Raises:
        UnsupportedError: One of the two dtypes does not exist on the wire.
    """
    received = dtype_by_numpy(array.dtype).name
    if received == name:
        return array
    wanted = dtype_by_name(name).numpy
    if wanted is None or "string" in (received, name):
        return None
    if array.size == 0:
        return array.astype(wanted)
    if "b" in (array.dtype.kind, wanted.kind) or (array.dtype.kind == "c" and wanted.kind != "c"):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(wanted)
    return cast if _holds_all(array.dtype, cast.dtype) or _unchanged(array, cast) else None


def _holds_all(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether a dtype has every value of another; numpy says so of float64 and the integers of 64 bits, too."""
    return np.can_cast(source, target) and (source.itemsize < 8 or source.kind == target.kind)


def _unchanged(array: npt.NDArray[Any], cast: npt.NDArray[Any]) -> bool:
    source, target = array.dtype, cast.dtype
    if target.kind in "iu":
        if source.kind not in "iu":
            return False
        limits = np.iinfo(target)
        return bool(array.min() >= limits.min and array.max() <= limits.max)
    if source.kind in "iu":
        # Through Python's integers where numpy would compare both as float64, which holds 53 bits.
        if source.itemsize < 8:
            return bool((cast.astype(np.float64) == array).all())
        return (
            bool(np.isfinite(cast.astype(np.float64)).all())
            and [int(item) for item in cast.ravel().tolist()] == array.ravel().tolist()
        )
    return bool((np.isfinite(cast.astype(np.complex128)) == np.isfinite(array.astype(np.complex128))).all())
