"""What tasks on Fashion-MNIST have in common: the data, and the check that a model was built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import VerificationData
from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training._task import InputRequest, Task
from modelyard.training.data import FashionMnist, fashion_dataset, load_fashion_mnist

SIDE = 28
PIXELS = SIDE * SIDE


class FashionImagesTask(Task):
    """A task whose examples are the images and labels of Fashion-MNIST.

    Args:
        data: Images that are already loaded; None loads them when they are first needed.
    """

    def __init__(self, *, data: FashionMnist | None = None) -> None:
        self._given_data = data
        self._parts: dict[str, Any] = {}

    @cached_property
    def data(self) -> FashionMnist:
        """The images, loaded on first use."""
        return load_fashion_mnist() if self._given_data is None else self._given_data

    def part(self, name: str) -> Any:
        """A model, an optimizer or a variable that :meth:`build` made.

        Args:
            name: As it was given to :meth:`keep`.

        Raises:
            TrainingError: ``build`` was not called.
        """
        if name not in self._parts:
            raise TrainingError(
                f"The task {self.name!r} has no {name} yet; call build(), run a Trainer, or restore() first."
            )
        return self._parts[name]

    def keep(self, **parts: Any) -> None:
        """Takes what :meth:`build` made: all of it goes into checkpoints, by these names.

        Args:
            **parts: Models, optimizers, generators and variables.
        """
        self._parts = parts

    def trackables(self) -> Mapping[str, Any]:
        """All that was built."""
        return dict(self._parts)

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """``(images, labels)`` of the training set, float32 ``[B, 28, 28, 1]`` and int64 ``[B]``.

        Args:
            request: Which part of which epoch.
        """
        return fashion_dataset(
            "train",
            **asdict(request),
            data=self.data,
        )

    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """``(images, labels)`` of the test set, in the order of the files.

        Args:
            request: The batch size.
        """
        return fashion_dataset(
            "test", batch_size=request.batch_size, drop_remainder=request.drop_remainder, data=self.data
        )

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

    def verification(
        self, inputs: Mapping[str, Mapping[str, npt.NDArray[Any]]], *, classes: bool = False
    ) -> VerificationData:
        """Examples made from the first test images.

        Args:
            inputs: By signature and input.
            classes: Whether a signature has the output ``class_id``, to be held against the labels.
        """
        count = max(len(array) for arrays in inputs.values() for array in arrays.values())
        description = f"first {count} test images; {self.data.source}"
        if not classes:
            return VerificationData(inputs=inputs, description=description)
        return VerificationData(
            inputs=inputs,
            labels=self.data.test_labels[:count].astype(np.int64),
            class_names=self.data.class_names,
            description=description,
        )


def hits(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Whether each example's largest logit is its label's.

    Args:
        labels: Integers, ``[B]``.
        logits: ``[B, classes]``.

    Returns:
        1 or 0 for each example, float32 ``[B]``.
    """
    return tf.cast(tf.argmax(logits, axis=-1, output_type=labels.dtype) == labels, tf.float32)
