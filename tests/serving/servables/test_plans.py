"""What a plan reads from a signature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from modelyard.artifact import TensorSpec
from modelyard.serving.metrics import Metrics
from modelyard.serving.servables import plan_of
from tests.support.doubler import Doubler, servable

BATCHED = TensorSpec(name="x", dtype="float32", shape=(-1, 2))


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((), 5), ((3,), 5), ((-1,), 3), (None, 3)],
    ids=["a scalar", "a constant size", "rows", "any shape"],
)
def test_the_first_input_with_rows_says_how_many_there_are(shape: tuple[int, ...] | None, rows: int) -> None:
    """Quotas and batches count them: an input without rows before it hides none."""
    backend = Doubler()
    first = TensorSpec(name="first", dtype="float32", shape=shape)
    backend.signature = replace(backend.signature, inputs=(first, BATCHED))
    plan = plan_of(servable(backend), "serving_default", (), Metrics())
    value = np.zeros((), np.float32) if shape == () else np.zeros(3, np.float32)
    assert plan.rows({"first": value, "x": np.zeros((5, 2), np.float32)}) == rows
