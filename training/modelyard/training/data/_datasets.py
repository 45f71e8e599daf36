"""``tf.data`` input functions over images that are in memory."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.data._fashion_mnist import FashionMnist, load_fashion_mnist
from modelyard.training.data._mnist import Mnist, load_mnist
from modelyard.training.data._plan import BatchPlan

_PREFETCH = 4


def fashion_dataset(
    split: Literal["train", "test"],
    *,
    batch_size: int,
    seed: int | None = None,
    epoch: int = 0,
    skip_batches: int = 0,
    num_shards: int = 1,
    shard_index: int = 0,
    drop_remainder: bool = False,
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
        num_shards: Workers that share the epoch; ``batch_size`` is that of each.
        shard_index: Which of them this is, from 0.
        drop_remainder: Leaves out a last batch that is not full, for static shapes.
        data: Images that are already loaded; None loads them.

    Returns:
        Batches ``(images, labels)``: float32 ``[B, 28, 28, 1]`` from 0 to 1,
        and int64 ``[B]``.

    Raises:
        ConfigurationError: An unknown split, or a number out of its range.
        DatasetNotFoundError: ``data`` is None and no copy was found.
        TrainingError: ``data`` is None and a file was found that is damaged.
    """
    _check_split(split, "Fashion-MNIST")
    data = load_fashion_mnist() if data is None else data
    images, labels = (
        (data.train_images, data.train_labels) if split == "train" else (data.test_images, data.test_labels)
    )
    plan = BatchPlan(
        count=len(images),
        batch_size=batch_size,
        seed=seed,
        epoch=epoch,
        skip_batches=skip_batches,
        num_shards=num_shards,
        shard_index=shard_index,
        drop_remainder=drop_remainder,
    )
    return gather_dataset(images, labels, plan)


def mnist_dataset(
    split: Literal["train", "test"],
    *,
    batch_size: int,
    seed: int | None = None,
    epoch: int = 0,
    skip_batches: int = 0,
    num_shards: int = 1,
    shard_index: int = 0,
    drop_remainder: bool = False,
    data: Mnist | None = None,
) -> tf.data.Dataset:
    """One epoch of MNIST, in all else as :func:`fashion_dataset`.

    Args:
        split: Which images.
        batch_size: Examples in each batch; the last one may be smaller.
        seed: Shuffles, differently in each epoch; None keeps the file's order.
        epoch: Number of the epoch, from 0.
        skip_batches: Batches at the start of the epoch to leave out.
        num_shards: Workers that share the epoch; ``batch_size`` is that of each.
        shard_index: Which of them this is, from 0.
        drop_remainder: Leaves out a last batch that is not full, for static shapes.
        data: Images that are already loaded; None loads them.

    Returns:
        Batches ``(images, labels)``: float32 ``[B, 28, 28, 1]`` from 0 to 1,
        and int64 ``[B]``.

    Raises:
        ConfigurationError: An unknown split, or a number out of its range.
        DatasetNotFoundError: ``data`` is None and no copy was found.
        TrainingError: ``data`` is None and a file was found that is damaged.
    """
    _check_split(split, "MNIST")
    data = load_mnist() if data is None else data
    images, labels = (
        (data.train_images, data.train_labels) if split == "train" else (data.test_images, data.test_labels)
    )
    plan = BatchPlan(
        count=len(images),
        batch_size=batch_size,
        seed=seed,
        epoch=epoch,
        skip_batches=skip_batches,
        num_shards=num_shards,
        shard_index=shard_index,
        drop_remainder=drop_remainder,
    )
    return gather_dataset(images, labels, plan)


def gather_dataset(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], plan: BatchPlan) -> tf.data.Dataset:
    """Batches of grey images that stay in memory.

    Args:
        images: uint8 ``[N, H, W]``.
        labels: uint8 ``[N]``.
        plan: Which examples each batch has.

    Returns:
        Batches of float32 ``[B, H, W, 1]`` from 0 to 1, and int64 ``[B]``.
    """
    size, local = plan.batch_size, plan.local(plan.order())
    # One op for each batch, not one for each image: indices are sliced, and images gathered from memory.
    with tf.device("CPU"):
        pixels, classes, positions = tf.constant(images[..., np.newaxis]), tf.constant(labels), tf.constant(local)

    def batch(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        chosen = positions[index * size : (index + 1) * size]
        if plan.drop_remainder:
            chosen = tf.ensure_shape(chosen, [size])
        return tf.cast(tf.gather(pixels, chosen), tf.float32) / 255.0, tf.cast(tf.gather(classes, chosen), tf.int64)

    return tf.data.Dataset.range(plan.steps - plan.start).map(batch).prefetch(_PREFETCH)


def _check_split(split: str, name: str) -> None:
    if split not in ("train", "test"):
        raise ConfigurationError(f"Unknown split {split!r} of {name}; expected 'train' or 'test'.")
