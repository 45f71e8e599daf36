"""Numbers as JSON text: what is read back is bit for bit what was written."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from modelyard.clients.values import array_json


def read(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.array(json.loads(array_json(array)), dtype=np.float64).astype(array.dtype)


def test_any_bits_of_float32() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    values = bits[np.isfinite(bits)]
    np.testing.assert_array_equal(read(values).view(np.uint32), values.view(np.uint32))


def test_the_values_beside_powers_of_ten() -> None:
    powers = np.array([float(f"1e{exponent}") for exponent in range(-45, 39)]).astype(np.float32)
    limits = np.finfo(np.float32)
    special = np.array([0.0, -0.0, limits.max, limits.min, limits.tiny, limits.smallest_subnormal], np.float32)
    values = np.concatenate(
        [powers, -powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, limits.max), special]
    )
    np.testing.assert_array_equal(read(values).view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize("shape", [(64,), (4, 4, 4, 1), (1, 70), (70, 1), (2, 3, 5, 7)])
def test_nesting(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).random(shape, dtype=np.float32)
    np.testing.assert_array_equal(np.array(json.loads(array_json(array)), np.float32), array)


def test_views_that_are_not_contiguous() -> None:
    array = np.arange(400, dtype=np.float32).reshape(20, 20)[::2, ::-3].T
    np.testing.assert_array_equal(read(array), array)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("count", [3, 100])
def test_other_dtypes(kind: Any, count: int) -> None:
    array = (np.arange(count) - 7).astype(kind) if kind is not np.uint8 else np.arange(count, dtype=np.uint8)
    np.testing.assert_array_equal(np.array(json.loads(array_json(array))).astype(kind), array)


def test_floats_stay_floats_and_words_stay_words() -> None:
    text = array_json(np.arange(100, dtype=np.float32))
    assert all(type(value) is float for value in json.loads(text))
    assert "NaN" in array_json(np.array([np.nan] + [0] * 99, np.float32))
    assert array_json(np.array([np.inf, -np.inf], np.float32)) == "[Infinity,-Infinity]"


def test_text_is_short_where_all_values_are() -> None:
    assert array_json(np.full(64, 0.5, np.float32)) == f"[{','.join(['0.5'] * 64)}]"
    assert array_json(np.full(64, 2, np.float32)) == f"[{','.join(['2.0'] * 64)}]"
    third = array_json(np.full(64, -1 / 3, np.float32))
    assert third == f"[{','.join(['-0.33333334'] * 64)}]"


def test_scalars_and_arrays_of_nothing() -> None:
    assert array_json(np.array(1.5, np.float32)) == "1.5"
    assert array_json(np.zeros((0, 4), np.float32)) == "[]"
    assert array_json(np.zeros((2, 0), np.int64)) == "[[],[]]"
    assert array_json(np.arange(3, dtype=">i4")) == "[0,1,2]"
