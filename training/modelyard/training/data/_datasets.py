"""``tf.data`` input functions."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.data._fashion_mnist import FashionMnist, load_fashion_mnist

_PREFETCH = 4


def fashion_dataset(
    split: Literal["train", "test"],
    *,
    batch_size: int,
    seed: int | None = None,
    epoch: int = 0,
    skip_batches: int = 0,
    data: FashionMnist | None = None,
) -> tf.data.Dataset:
    """One epoch of Fashion-MNIST as a ``tf.data`` data set of known length.

    The order is a function of ``seed`` and ``epoch`` alone, and starting in the
    middle costs nothing: that is what makes a resumed run equal to one that was
    never stopped.

    Args:
        split: Which images.
        batch_size: Examples in each batch; the last one may be smaller.
        seed: Shuffles, differently in each epoch; None keeps the files' order.
        epoch: Number of the epoch, from 0.
        skip_batches: Batches at the start of the epoch to leave out.
        data: Images that are already loaded; None loads them.

    Returns:
        Batches ``(images, labels)``: float32 ``[B, 28, 28, 1]`` from 0 to 1,
        and int64 ``[B]``.

    Raises:
        ConfigurationError: An unknown split, a batch size below 1, or a
            negative ``epoch`` or ``skip_batches``.
        DatasetNotFoundError: ``data`` is None and no copy was found.
    """
    if split not in ("train", "test"):
        raise ConfigurationError(f"Unknown split {split!r} of Fashion-MNIST; expected 'train' or 'test'.")
    data = load_fashion_mnist() if data is None else data
    images, labels = (
        (data.train_images, data.train_labels) if split == "train" else (data.test_images, data.test_labels)
    )
    order = epoch_order(len(images), seed=seed, epoch=epoch)
    return gather_dataset(images, labels, order, batch_size=batch_size, skip_batches=skip_batches)


def epoch_order(count: int, *, seed: int | None, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which one epoch visits its examples.

    Args:
        count: Number of examples.
        seed: Shuffles, differently in each epoch; None keeps the order.
        epoch: Number of the epoch, from 0.

    Returns:
        int64 ``[count]``, a permutation.

    Raises:
        ConfigurationError: ``seed`` or ``epoch`` is negative.
    """
    if epoch < 0 or (seed is not None and seed < 0):
        raise ConfigurationError(f"Received epoch {epoch} and seed {seed}; expected numbers >= 0.")
    if seed is None:
        return np.arange(count, dtype=np.int64)
    return np.random.default_rng([seed, epoch]).permutation(count).astype(np.int64)


def gather_dataset(
    images: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.uint8],
    order: npt.NDArray[np.int64],
    *,
    batch_size: int,
    skip_batches: int,
) -> tf.data.Dataset:
    """Batches of images that stay in memory, in a given order.

    Args:
        images: uint8 ``[N, H, W]``.
        labels: uint8 ``[N]``.
        order: int64 positions, ``[M]``.
        batch_size: Examples in each batch; the last one may be smaller.
        skip_batches: Batches to leave out at the start.

    Returns:
        Batches of float32 ``[B, H, W, 1]`` from 0 to 1, and int64 ``[B]``.

    Raises:
        ConfigurationError: ``batch_size`` is below 1 or ``skip_batches`` negative.
    """
    if batch_size < 1 or skip_batches < 0:
        raise ConfigurationError(
            f"Received batch_size {batch_size} and skip_batches {skip_batches}; expected batch_size >= 1, "
            "skip_batches >= 0."
        )
    # One op for each batch, not one for each image: indices are sliced, and images gathered from memory.
    with tf.device("CPU"):
        pixels, classes, positions = tf.constant(images[..., np.newaxis]), tf.constant(labels), tf.constant(order)
    steps = -(-len(order) // batch_size)

    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        chosen = positions[step * batch_size : (step + 1) * batch_size]
        return tf.cast(tf.gather(pixels, chosen), tf.float32) / 255.0, tf.cast(tf.gather(classes, chosen), tf.int64)

    return tf.data.Dataset.range(min(skip_batches, steps), steps).map(batch).prefetch(_PREFETCH)
