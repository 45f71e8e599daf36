"""Casts that change no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelyard.errors import UnsupportedError
from modelyard.wire import cast_unchanged


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (np.array([0.1, np.nan, np.inf]), "float32"),
        (np.array([1.5], np.float32), "float64"),
        (np.array([3, -4]), "int32"),
        (np.array([3, 4]), "float32"),
        (np.array([200], np.uint8), "int16"),
        (np.array([1.0]), "complex64"),
        (np.empty((0, 2)), "int32"),
        (np.array([True]), "bool"),
    ],
)
def test_what_keeps_its_values_is_cast(array: Any, name: str) -> None:
    cast = cast_unchanged(array, name)
    assert cast is not None and cast.dtype.name == name and cast.shape == array.shape
    np.testing.assert_allclose(cast, array, rtol=1e-7)


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (np.array([1.0]), "int32"),
        (np.array([1e300]), "float32"),
        (np.array([2**40]), "int32"),
        (np.array([2**24 + 1]), "float32"),
        (np.array([2**53 + 1]), "float64"),
        (np.array([-1]), "uint8"),
        (np.array([1]), "bool"),
        (np.array([True]), "float32"),
        (np.array([1j]), "float32"),
        (np.array([b"1"], object), "float32"),
        (np.array([1]), "string"),
    ],
)
def test_what_would_change_is_not(array: Any, name: str) -> None:
    assert cast_unchanged(array, name) is None


def test_dtypes_that_are_none() -> None:
    with pytest.raises(UnsupportedError):
        cast_unchanged(np.array([1]), "float99")
    with pytest.raises(UnsupportedError):
        cast_unchanged(np.array(["2026-01-02"], "datetime64[D]"), "float32")
