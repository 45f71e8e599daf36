"""Architectures of keras-hub, small, with random weights. Without keras-hub they are skipped."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.zoo._kind import Kind

__all__ = ["Kind"]
NEEDS = ("keras_hub",)


def _tokens(length: int = 8, high: int = 40, **more: int) -> Any:
    def sample(rng: Any, n: int) -> Any:
        mask = (np.arange(length) < rng.integers(2, length + 1, (n, 1))).astype(np.int32)
        arrays = {"token_ids": rng.integers(0, high, (n, length)).astype(np.int32), "padding_mask": mask}
        return arrays | {name: rng.integers(0, top, (n, length)).astype(np.int32) for name, top in more.items()}

    return sample


def _images(size: int) -> Any:
    return lambda rng, n: rng.normal(size=(n, size, size, 3)).astype(np.float32)


def _spread(backbone: Any) -> Any:
    """Weights that are large enough for answers to differ: keras-hub begins with a deviation of 0.02."""
    rng = np.random.default_rng(0)
    for variable in backbone.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(rng.normal(0.0, 0.2, variable.shape))
    return backbone
