"""The families of problems that ``maml`` learns to learn: how they are drawn, and the net that is to solve them.

A net's weights are a list of tensors with one more dimension in front, ``[problems, ...]``: after an inner step each
problem has weights of its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.training.data import Mnist
from modelyard.training.tasks.inputs._images import SIDE

#: ``(x, y, judged_x, judged_y)``, each ``[problems, points, ...]``: points to adapt to, and points to be judged on.
Problems = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]

_WAYS = 5
_TURNS = 4
#: Of each class, to draw from: a permutation of all of them would cost more than a step.
_MOST_IMAGES = 500


class Family(ABC):
    """Problems of one kind.

    Attributes:
        example_shape: Of what the net takes, without the batch.
        weight_shapes: Of the net: kernel and bias of each layer.
        spread: Initial kernels have ``spread / sqrt(inputs)`` for a standard deviation.
        steps: Inner steps for new problems; training takes one.
    """

    example_shape: tuple[int, ...]
    weight_shapes: Sequence[tuple[int, ...]]
    spread: float
    steps: int

    @abstractmethod
    def draw(self, seed: tf.Tensor, count: int, *, new: bool) -> Problems:
        """Problems for training, or new ones, by a seed, int64 ``[2]``."""

    @abstractmethod
    def forward(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """The net's answers, ``[problems, points, outputs]``."""

    @abstractmethod
    def losses(self, answers: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """The mean loss over the points of each problem, float32 ``[problems]``."""


class Sinusoids(Family):
    """``y = a sin(x + p)``, a from 0.1 to 5, p from 0 to pi, x from -5 to 5; 10 points each, net 1-40-40-1."""

    example_shape = (1,)
    weight_shapes = ((1, 40), (40,), (40, 40), (40,), (40, 1), (1,))
    #: Small, as the source has them: with large ones an inner step for numbers up to 5 overshoots.
    spread = 0.3
    steps = 1
    points = 10

    def draw(self, seed: tf.Tensor, count: int, *, new: bool) -> Problems:
        """New ones are of the same kind: there is a continuum of them."""
        draws = tf.random.stateless_uniform([count, 2 + 2 * self.points], seed)
        amplitude, phase = 0.1 + 4.9 * draws[:, :1], math.pi * draws[:, 1:2]
        x = 10.0 * draws[:, 2:] - 5.0
        y = amplitude * tf.sin(x + phase)
        (x, judged_x), (y, judged_y) = (tf.split(part[..., tf.newaxis], 2, axis=1) for part in (x, y))
        return x, y, judged_x, judged_y

    def forward(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """A perceptron with ReLU."""
        for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
            x = tf.nn.relu(tf.matmul(x, kernel) + bias[:, tf.newaxis])
        return tf.matmul(x, weights[-2]) + weights[-1][:, tf.newaxis]

    def losses(self, answers: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Squared errors."""
        return tf.reduce_mean(tf.square(answers - y), axis=[1, 2])


class FewShots(Family):
    """Five classes, so many images of each to adapt to, and 5 of each to be judged on.

    The classes of training are the first five of Fashion-MNIST, each in four quarter turns: 20, of which a problem has
    five in any order. New problems are of the other five, upright, in any order, from the test images. Images come at
    half their size, ``[14, 14, 1]`` from 0 to 1; the net has two convolutions of 32 filters, 3 x 3 with stride 2, and a
    linear layer.

    Args:
        data: Loads the images.
        shots: Images of each class to adapt to.
    """

    example_shape = (SIDE // 2, SIDE // 2, 1)
    weight_shapes = ((9, 32), (32,), (9 * 32, 32), (32,), (4 * 4 * 32, _WAYS), (_WAYS,))
    spread = 1.4
    #: As the source has it for its letters: training with one, new problems with three.
    steps = 3
    judged = 5

    def __init__(self, data: Callable[[], Mnist], *, shots: int) -> None:
        self._data = data
        self._shots = shots

    def draw(self, seed: tf.Tensor, count: int, *, new: bool) -> Problems:
        """Draws five classes, their order, and their images."""
        images = tf.constant(self._new if new else self._known)
        classes, each = images.shape[:2]
        order = tf.argsort(tf.random.stateless_uniform([count, classes], seed))[:, :_WAYS, tf.newaxis]
        shuffled = tf.argsort(tf.random.stateless_uniform([count, _WAYS, each], seed + 1))
        rows = order * each + shuffled[..., : self._shots + self.judged]
        x = tf.gather(tf.reshape(images, [-1, *self.example_shape]), rows)
        y = tf.broadcast_to(tf.range(_WAYS, dtype=tf.int64)[:, tf.newaxis], tf.shape(rows))
        parts = []
        for size, chosen in ((self._shots, slice(self._shots)), (self.judged, slice(self._shots, None))):
            parts += [
                tf.reshape(x[:, :, chosen], [count, _WAYS * size, *self.example_shape]),
                tf.reshape(y[:, :, chosen], [count, _WAYS * size]),
            ]
        return tuple(parts)

    def forward(self, weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """A small convolutional network."""
        for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
            x = tf.nn.relu(_convolve(x, kernel) + bias[:, tf.newaxis, tf.newaxis, tf.newaxis])
        shape = tf.shape(x)
        flat = tf.reshape(x, [shape[0], shape[1], weights[-2].shape[1]])
        return tf.matmul(flat, weights[-2]) + weights[-1][:, tf.newaxis]

    def losses(self, answers: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Cross-entropies."""
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, answers), axis=1)

    @cached_property
    def _known(self) -> npt.NDArray[np.float32]:
        data = self._data()
        upright = _by_class(data.train_images, data.train_labels, range(_WAYS))
        turned = [np.rot90(upright, turns, axes=(2, 3)) for turns in range(_TURNS)]
        return np.concatenate(turned)

    @cached_property
    def _new(self) -> npt.NDArray[np.float32]:
        data = self._data()
        return _by_class(data.test_images, data.test_labels, range(_WAYS, 2 * _WAYS))


def nearest(x: tf.Tensor, y: tf.Tensor, judged_x: tf.Tensor) -> tf.Tensor:
    """The class of the nearest image, pixel by pixel, int64 ``[problems, points]``: what no learning at all gives."""
    known, asked = (tf.reshape(part, [tf.shape(part)[0], part.shape[1], -1]) for part in (x, judged_x))
    distances = tf.reduce_sum(tf.square(asked[:, :, tf.newaxis] - known[:, tf.newaxis]), axis=-1)
    return tf.gather(y, tf.argmin(distances, axis=-1), batch_dims=1)


def _by_class(
    images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8], classes: Sequence[int]
) -> npt.NDArray[np.float32]:
    """As many images of each class, at half their size: float32 ``[classes, M, 14, 14, 1]``."""
    members = [np.flatnonzero(labels == index)[:_MOST_IMAGES] for index in classes]
    rows = np.stack([rows[: min(map(len, members))] for rows in members])
    halves = images[rows].reshape(*rows.shape, SIDE // 2, 2, SIDE // 2, 2, 1).mean(axis=(3, 5))
    return (halves / 255).astype(np.float32)


def _convolve(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """3 x 3 with stride 2, each problem by its own kernel: ``[P, N, H, W, C]`` and ``[P, 9 C, F]``.

    As a product of matrices: TensorFlow's convolutions have one kernel for the whole batch.
    """
    height, width = ((size + 1) // 2 for size in x.shape[2:4])
    below, right = 2 * height + 1 - x.shape[2], 2 * width + 1 - x.shape[3]
    shape, channels = tf.shape(x), x.shape[4]
    flat = tf.reshape(x, [-1, *x.shape[2:]])
    # Beside each other what is two pixels long and wide: slices with a stride of 2, and their gradients, cost far more.
    squares = tf.nn.space_to_depth(tf.pad(flat, [[0, 0], [1, below], [1, right], [0, 0]]), 2)
    views = [
        tf.slice(squares, [0, row // 2, column // 2, row % 2 * 2 * channels], [-1, height, width, count * channels])
        for row in range(3)
        for column, count in ((0, 2), (2, 1))
    ]
    patches = tf.reshape(tf.concat(views, axis=-1), [shape[0], -1, kernel.shape[1]])
    return tf.reshape(tf.matmul(patches, kernel), [shape[0], shape[1], height, width, kernel.shape[2]])
