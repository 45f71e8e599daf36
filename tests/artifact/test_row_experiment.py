"""Rows that depend on each other are seen by computing them beside others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from modelyard.artifact import EXPERIMENT_ROWS, row_experiment
from modelyard.errors import InvalidInputError

Array = npt.NDArray[Any]
X = np.random.default_rng(0).random((EXPERIMENT_ROWS, 3)).astype(np.float32)


def seen(function: Callable[[Array], Array], x: Array = X) -> str | None:
    def run(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": function(arrays["x"])}

    return row_experiment(run, {"x": x})


def quantized(x: Array) -> Array:
    """As dynamic quantization: one range for the activations of the whole batch."""
    scale = max(float(np.abs(x).max()), 1e-9) / 127
    return np.round(x / scale) * np.float32(scale)


def refusing(x: Array) -> Array:
    if np.abs(x).max() > 50:
        raise InvalidInputError("too large")
    return 2 * x


@pytest.mark.parametrize(
    "function",
    [
        lambda x: 2 * x,
        lambda x: np.tanh(x @ np.ones((3, 2), np.float32)),
        # Rounded as runtimes round in batches of different sizes.
        lambda x: x * np.float32(1 + 1e-6 * len(x)),
        refusing,
        lambda x: np.argmax(x, axis=1),
        lambda x: np.full(len(x), np.nan),
    ],
)
def test_rows_of_their_own(function: Callable[[Array], Array]) -> None:
    assert seen(function) is None


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: np.cumsum(x, axis=0), "another one in a batch than alone"),
        (lambda x: x - x.mean(axis=0), "another one in a batch than alone"),
        (lambda x: np.exp(x) / np.exp(x).sum(axis=0), "another one in a batch than alone"),
        (lambda x: np.sort(x, axis=0), "another one in a batch than alone"),
        (lambda x: x * len(x), "another one in a batch than alone"),
        (lambda x: x * np.where(x.max() > 10, 2, 1), "beside a row 10000 times as large"),
        (lambda x: x * np.where(x.min() < -10, 2, 1), "beside a row 10000 times as large"),
        (lambda x: np.unique(x, axis=0), "of 4 rows has shape [3, 3]"),
        (lambda x: x.sum(axis=0), "of 4 rows has shape [3]"),
        (lambda x: x + (np.arange(len(x)) == 3)[:, None], "alone"),
    ],
)
def test_rows_that_depend_on_each_other(function: Callable[[Array], Array], what: str) -> None:
    found = seen(function)
    assert found is not None and what in found


def test_dynamic_ranges_are_seen_beside_an_outlier() -> None:
    # Among rows of one size the range is nearly the same, and so are the answers.
    x = np.float32(1) + X / 1000
    found = seen(lambda x: np.round(quantized(x), 1), x)
    assert found is not None and "beside a row 10000 times as large" in found


def test_a_row_that_is_refused_alone() -> None:
    def pairs(x: Array) -> Array:
        if len(x) % 2:
            raise InvalidInputError("an odd number of rows")
        return x

    found = seen(pairs)
    assert found is not None and "refused" in found


def test_strings_and_integers_have_no_outliers() -> None:
    words = np.array([b"a", b"b", b"c", b"d"], object)
    assert seen(lambda x: x, words) is None
    assert "alone" in str(seen(lambda x: np.array([b"".join(x.tolist())] * len(x), object), words))
    assert seen(lambda x: 2 * x, np.arange(EXPERIMENT_ROWS)) is None


def test_a_batch_that_is_refused_is_an_error() -> None:
    def refuse(x: Array) -> Array:
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError):
        seen(refuse)
