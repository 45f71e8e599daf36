"""What tasks on small grey images have in common: the data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import DataSource, Mnist, load_fashion_mnist, load_idx_folder, memory_images
from modelyard.training.user import Task, average_loss, minimize, regularization_loss

SIDE = 28
PIXELS = SIDE * SIDE
_Vectors = npt.NDArray[np.floating[Any]]
#: What long sleeves do to a dress, a shaft to a sandal, legs to a pullover.
_SUMS = (
    ("Pullover", "T-shirt/top", "Dress"),
    ("Ankle boot", "Sneaker", "Sandal"),
    ("Trouser", "T-shirt/top", "Pullover"),
)


class ClassifierTask(Task):
    """A task with one model from images to logits, and one optimizer."""

    model: keras.Model
    optimizer: keras.Optimizer

    def train_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """A step of the optimizer on the cross-entropy of the logits, and on the losses that layers add.

        Returns:
            ``loss``, the cross-entropy, and ``accuracy`` of each example, float32 ``[B]``; and ``regularization``, a
            scalar, where layers add losses.
        """
        images, labels = batch
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=self.training), tf.float32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            added = {"regularization": regularization_loss(self.model.losses)} if self.model.losses else {}
            loss = tf.add_n([average_loss(losses), *added.values()])
        minimize(loss, self.model.trainable_variables, optimizer=self.optimizer, tape=tape)
        accuracy = keras.metrics.sparse_categorical_accuracy(labels, logits)
        return {"loss": losses, "accuracy": accuracy, **added}


class FashionImagesTask(Task):
    """A task whose examples are the images and labels of Fashion-MNIST, or of another data set of the same shape.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.

    Raises:
        ConfigurationError: The data is something else.
    """

    def __init__(self, *, data: Mnist | str | None = None) -> None:
        if not isinstance(data, Mnist | str | None):
            raise ConfigurationError(f"data is {data!r}; expected a folder of idx files, or images that are loaded.")
        self._given_data = data

    @cached_property
    def data(self) -> Mnist:
        """The images, loaded on first use."""
        given = self._given_data
        if isinstance(given, str):
            return load_idx_folder(Path(given))
        return load_fashion_mnist() if given is None else given

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
        """The first test images, float32 ``[N, 28, 28, 1]`` from 0 to 1."""
        if count < 1:
            raise ConfigurationError(f"count is {count}; expected at least one example.")
        return as_floats(self.data.test_images[:count])

    def verification(self, inputs: Mapping[str, Mapping[str, npt.NDArray[Any]]]) -> VerificationData:
        """Examples made from the first test images."""
        count = max(len(array) for arrays in inputs.values() for array in arrays.values())
        return VerificationData(inputs=inputs, description=f"first {count} test images; {self.data_description()}")


def as_floats(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Grey images, uint8 ``[N, H, W]``, to ``[N, H, W, 1]`` from 0 to 1."""
    return images[..., np.newaxis].astype(np.float32) / np.float32(255)


def edge_maps(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Drawings of uint8 ``[N, H, W]``: 255 less a quarter of ``|gx| + |gy|``, Sobel's gradients, not below 0."""
    # int16 is enough: neither gradient exceeds 4 * 255.
    padded = np.pad(images.astype(np.int16), ((0, 0), (1, 1), (1, 1)))
    down = padded[:, 2:] - padded[:, :-2]
    right = padded[:, :, 2:] - padded[:, :, :-2]
    vertical = down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:]
    horizontal = right[:, :-2] + 2 * right[:, 1:-1] + right[:, 2:]
    return (255 - np.minimum((np.abs(vertical) + np.abs(horizontal)) // 4, 255)).astype(np.uint8)


def ways(first: _Vectors, last: _Vectors, weights: _Vectors) -> npt.NDArray[np.float32]:
    """Vectors on the ways from the first to the last ones: ``[N, L]`` twice, weights ``[S, 2]``, to ``[N * S, L]``."""
    mixed: npt.NDArray[np.float32] = np.einsum("sk,knl->nsl", weights, np.stack([first, last])).astype(np.float32)
    return mixed.reshape(-1, first.shape[1])


def sums(vectors: Mapping[str, _Vectors]) -> npt.NDArray[np.float32]:
    """From a vector of each class, ``[L]``, to rows of ``a``, ``b``, ``c`` and ``a - b + c``: ``[4 R, L]``."""
    rows = [(vectors[a], vectors[b], vectors[c], vectors[a] - vectors[b] + vectors[c]) for a, b, c in _SUMS]
    return np.concatenate(rows).astype(np.float32)


def takes(function: Any, **shapes: tuple[int, ...]) -> SignatureFunction:
    """A signature of float32 inputs."""
    inputs = (TensorSpec(name=name, dtype="float32", shape=(-1, *shape)) for name, shape in shapes.items())
    return SignatureFunction(inputs=tuple(inputs), function=function)
