"""What tasks on Fashion-MNIST have in common: the data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import DataSource, FashionMnist, load_fashion_mnist, memory_images
from modelyard.training.user import Task

SIDE = 28
PIXELS = SIDE * SIDE


class FashionImagesTask(Task):
    """A task whose examples are the images and labels of Fashion-MNIST.

    Args:
        data: Images that are already loaded; None loads them when they are first needed.
    """

    def __init__(self, *, data: FashionMnist | None = None) -> None:
        self._given_data = data

    @cached_property
    def data(self) -> FashionMnist:
        """The images, loaded on first use."""
        return load_fashion_mnist() if self._given_data is None else self._given_data

    @cached_property
    def train(self) -> DataSource:
        """``(images, labels)`` of the training set, float32 ``[B, 28, 28, 1]`` and int64 ``[B]``."""
        return memory_images(self.data, "train")

    @cached_property
    def test(self) -> DataSource:
        """``(images, labels)`` of the test set, in the order of the files."""
        return memory_images(self.data, "test")

    def data_description(self) -> str:
        """Where the images came from."""
        return self.data.source

    def test_images(self, count: int) -> npt.NDArray[np.float32]:
        """The first test images, float32 ``[N, 28, 28, 1]`` from 0 to 1.

        Args:
            count: How many, at most.

        Raises:
            ConfigurationError: ``count`` is below 1.
        """
        if count < 1:
            raise ConfigurationError(f"count is {count}; expected at least one example.")
        return self.data.test_images[:count, ..., np.newaxis].astype(np.float32) / np.float32(255)

    def verification(self, inputs: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> VerificationData:
        """Examples made from the first test images.

        Args:
            inputs: By signature and input.
        """
        count = max(len(array) for arrays in inputs.values() for array in arrays.values())
        return VerificationData(inputs=inputs, description=f"first {count} test images; {self.data_description()}")


def takes(function: Any, **shapes: tuple[int, ...]) -> SignatureFunction:
    """A signature of float32 inputs.

    Args:
        function: Called with one keyword argument for each.
        **shapes: Of one example of each input.
    """
    inputs = (TensorSpec(name=name, dtype="float32", shape=(-1, *shape)) for name, shape in shapes.items())
    return SignatureFunction(inputs=tuple(inputs), function=function)


def hits(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Whether each example's largest logit is its label's.

    Args:
        labels: Integers, ``[B]``.
        logits: ``[B, classes]``.

    Returns:
        1 or 0 for each example, float32 ``[B]``.
    """
    return tf.cast(tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels, tf.float32)
