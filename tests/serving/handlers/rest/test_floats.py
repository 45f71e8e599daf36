"""Floats of answers: printf's texts, by upstream's rule."""

from __future__ import annotations

import numpy as np
import pytest

from modelyard.serving.handlers.rest import float_texts

RNG = np.random.default_rng(7)
SETS = {
    "probabilities": RNG.dirichlet(np.full(2000, 0.1)).astype(np.float32),
    "any bits": RNG.integers(0, 1 << 32, 20_000, dtype=np.uint32).view(np.float32),
    "all sizes": (10.0 ** RNG.uniform(-45, 38, 5000)).astype(np.float32),
    "rounded": np.round(RNG.normal(size=3000) * 100, 2).astype(np.float32),
    "whole": RNG.integers(-300, 300, 3000).astype(np.float32),
    "edges": np.array(
        [0.0, -0.0, 1.0, 1e6, 999_999.5, 999_999.4, 1e-5, 9.9999e-5, 1e-4, 0.1, 123_456, 1_234_567, 1e-45, 3e38,
         np.nan, -np.nan, np.inf, -np.inf] * 64, np.float32,
    ),
}  # fmt: skip


def one_by_one(value: np.float32) -> str:
    """Upstream's rule in the plainest words."""
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    text = f"{float(value):g}"
    if np.float32(text) != value:
        text = f"{float(value):.9g}"
    return text if "." in text or "e" in text else f"{text}.0"


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("name", SETS)
def test_every_float_is_written_by_the_rule(name: str) -> None:
    values = SETS[name]
    assert float_texts(values) == [one_by_one(value) for value in values]


def test_what_is_written_is_read_as_the_same_float() -> None:
    values = SETS["any bits"]
    finite = values[np.isfinite(values)]
    np.testing.assert_array_equal(np.array(list(map(float, float_texts(finite)))).astype(np.float32), finite)


def test_shapes_and_double_precision() -> None:
    double = RNG.normal(size=(30, 20))
    texts = float_texts(double)
    np.testing.assert_array_equal(np.array(list(map(float, texts))), double.ravel())
    single = double.astype(np.float32)
    assert float_texts(single) == float_texts(single.ravel())
    assert float_texts(single[:, ::2]) == [one_by_one(value) for value in single[:, ::2].ravel()]
