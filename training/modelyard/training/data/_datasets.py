"""Images that are in memory, as a source."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.data._mnist import Mnist
from modelyard.training.data._source import Arrays


def memory_images(data: Mnist, split: Literal["train", "test"]) -> Arrays:
    """One split of Fashion-MNIST or MNIST: float32 ``[B, 28, 28, 1]`` from 0 to 1, and int64 ``[B]``.

    Raises:
        ConfigurationError: An unknown split.
    """
    if split not in ("train", "test"):
        raise ConfigurationError(f"Unknown split {split!r}; expected 'train' or 'test'.")
    images, labels = (getattr(data, f"{split}_{part}") for part in ("images", "labels"))
    return Arrays(
        (images[..., np.newaxis], labels), prepare=_floats, class_names=data.class_names, description=data.source
    )


def _floats(batch: Any) -> Any:
    return tf.cast(batch[0], tf.float32) / 255.0, tf.cast(batch[1], tf.int64)
