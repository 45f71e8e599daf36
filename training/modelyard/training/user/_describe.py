"""Words for batches and models, for messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from modelyard.training.loop import describe_shape


def describe_models(trackables: Mapping[str, object]) -> str:
    """What the models of a task take, such as ``model 'fashion' takes float32 [?, 28, 28, 1]``."""
    found = []
    for name, item in trackables.items():
        inputs = getattr(item, "inputs", None)
        if inputs:
            takes = ", ".join(f"{tensor.dtype} {describe_shape(tensor.shape)}" for tensor in tf.nest.flatten(inputs))
            found.append(f"model {getattr(item, 'name', name)!r} takes {takes}")
    return "; ".join(found) if found else "the task has no model that says what it takes"


def describe_batch(batch: object) -> str:
    """The numbers of a batch: what to look at where a loss is not finite."""
    return "; ".join(_describe(np.asarray(tensor)) for tensor in tf.nest.flatten(batch))


def _describe(values: np.ndarray[Any, Any]) -> str:
    text = f"{values.dtype} {describe_shape(values.shape)}"
    if values.dtype.kind not in "fiub" or not values.size:
        return text
    numbers = values.astype(np.float64)
    nan, infinite = int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum())
    finite = numbers[np.isfinite(numbers)]
    if finite.size:
        text += f" from {finite.min():.6g} to {finite.max():.6g}, mean {finite.mean():.6g}"
    if nan or infinite:
        text += f", {nan} NaN, {infinite} infinite"
    return text
