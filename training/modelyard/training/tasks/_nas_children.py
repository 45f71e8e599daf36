"""The networks that ``nas`` chooses among: a space of small ones, and how one of them is trained inside a graph.

What a child looks like is a tensor, int32 ``[choices]``, so that one trace serves all of them: its weights are cut out
of arrays that have room for the largest, of :attr:`ChildSpace.shapes`, and convolutions of any size run on what was
cut. A child costs what its own size costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.tasks.inputs import SIDE

_ADAM = (0.9, 0.999, 1e-7)
#: Between the seeds of two steps of a child: more than there are children.
_STRIDE = 1 << 32
#: Choices of each layer: kernel, filters, pooling.
_PER_LAYER = 3
#: Children see means of 2 x 2 pixels, with a border to make 16 x 16 of 14 x 14: it can be halved three times.
_MOST_LAYERS = 3
#: The classifier sees the mean of each quarter of the image: where things are matters.
_QUARTERS = 2
_BORDER = [[0, 0], [1, 1], [1, 1], [0, 0]]


@dataclass(frozen=True, kw_only=True)
class ChildSpace:
    """Convolutional networks: up to so many layers, each with a kernel, filters, ReLU, and pooling or none.

    Images come at half their size. After the layers come the means over each quarter of the image and a linear
    classifier. Kernels are odd.
    """

    layers: int
    kernels: tuple[int, ...]
    filters: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        if not 1 <= self.layers <= _MOST_LAYERS:
            raise ConfigurationError(f"layers is {self.layers}; expected a number from 1 to {_MOST_LAYERS}.")
        if not self.kernels or any(size < 1 or size % 2 == 0 for size in self.kernels):
            raise ConfigurationError(f"kernels is {list(self.kernels)}; expected odd numbers of pixels.")
        if not self.filters or any(count < 1 for count in self.filters):
            raise ConfigurationError(f"filters is {list(self.filters)}; expected numbers above 0.")

    @property
    def options(self) -> tuple[int, ...]:
        """How many options each choice has: the number of layers first, then each layer's three."""
        return (self.layers, *(len(self.kernels), len(self.filters), 2) * self.layers)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the largest child's weights: kernel and bias of each layer, then of the classifier."""
        kernel, filters = max(self.kernels), max(self.filters)
        shapes: list[tuple[int, ...]] = []
        for number in range(self.layers):
            shapes += [(kernel, kernel, filters if number else 1, filters), (filters,)]
        return [*shapes, (_QUARTERS**2, filters, self.classes), (self.classes,)]

    def matters(self, choices: tf.Tensor) -> tf.Tensor:
        """Which choices, int32 ``[M, choices]``, belong to a layer that the child has: 1 or 0, float32."""
        layer = (tf.range(len(self.options)) - 1) // _PER_LAYER
        return tf.cast(layer[tf.newaxis] <= choices[:, :1], tf.float32)

    def forward(self, weights: Sequence[tf.Tensor], choices: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
        """Logits of one child, float32 ``[B, classes]``, for images, float32 ``[B, H, W, 1]``."""
        x, channels = tf.pad(tf.nn.avg_pool2d(images, 2, 2, "VALID"), _BORDER), tf.constant(1)
        largest = max(self.kernels)
        for number in range(self.layers):
            size, filters, pooled = self._layer(choices, number)
            start = (largest - size) // 2
            kernel = weights[2 * number][start : start + size, start : start + size, :channels, :filters]
            bias = weights[2 * number + 1][:filters]

            def apply(
                x: tf.Tensor = x,
                kernel: tf.Tensor = kernel,
                bias: tf.Tensor = bias,
                filters: tf.Tensor = filters,
                pooled: tf.Tensor = pooled,
            ) -> tuple[tf.Tensor, tf.Tensor]:
                y = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME") + bias)
                return tf.cond(pooled, lambda: tf.nn.max_pool2d(y, 2, 2, "VALID"), lambda: y), filters

            x, channels = tf.cond(number <= choices[0], apply, lambda x=x, channels=channels: (x, channels))
        cell = tf.shape(x)[1] // _QUARTERS
        means = tf.reduce_mean(tf.reshape(x, [-1, _QUARTERS, cell, _QUARTERS, cell, channels]), axis=[2, 4])
        features = _QUARTERS**2 * channels
        head = tf.reshape(weights[-2][:, :channels], [features, self.classes])
        return tf.reshape(means, [-1, features]) @ head + weights[-1]

    def train(
        self, choices: tf.Tensor, seed: tf.Tensor, *, images: tf.Tensor, labels: tf.Tensor, plan: ChildPlan
    ) -> list[tf.Tensor]:
        """Trains one child from nothing, with Adam on cross-entropy; everything random comes of the seed."""
        start = self._initial(choices, seed)
        zeros = [tf.zeros_like(weight) for weight in start]
        first, second, tiny = _ADAM

        def step(number: tf.Tensor, weights: Any, means: Any, squares: Any) -> tuple[Any, ...]:
            draw = seed + tf.stack([tf.constant(0, tf.int64), (number + 1) * _STRIDE])
            rows = tf.random.stateless_uniform([plan.batch_size], draw, maxval=len(labels), dtype=tf.int32)
            with tf.GradientTape() as tape:
                tape.watch(weights)
                logits = self.forward(weights, choices, tf.cast(tf.gather(images, rows), tf.float32) / 255.0)
                loss = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(labels, rows), logits)
                loss = tf.reduce_mean(loss)
            gradients = tape.gradient(loss, list(weights), unconnected_gradients=tf.UnconnectedGradients.ZERO)
            means = [first * m + (1 - first) * g for m, g in zip(means, gradients, strict=True)]
            squares = [second * s + (1 - second) * g * g for s, g in zip(squares, gradients, strict=True)]
            done = tf.cast(number + 1, tf.float32)
            rate = plan.learning_rate * tf.sqrt(1 - second**done) / (1 - first**done)
            moves = zip(weights, means, squares, strict=True)
            return number + 1, [w - rate * m / (tf.sqrt(s) + tiny) for w, m, s in moves], means, squares

        state = (tf.constant(0, tf.int64), start, zeros, zeros)
        weights: list[tf.Tensor] = tf.while_loop(lambda number, *_: number < plan.steps, step, state)[1]
        return weights

    def accuracy(
        self, weights: Sequence[tf.Tensor], choices: tf.Tensor, images: tf.Tensor, labels: tf.Tensor
    ) -> tf.Tensor:
        """Share of images, uint8 ``[N, H, W, 1]``, whose class a child finds."""
        return tf.reduce_mean(
            keras.metrics.sparse_categorical_accuracy(
                labels, self.forward(weights, choices, tf.cast(images, tf.float32) / 255.0)
            )
        )

    def keras_model(self, choices: npt.NDArray[np.int32], weights: Sequence[npt.NDArray[np.float32]]) -> keras.Model:
        """The child as a network of its own size."""
        layers = keras.layers
        stem = [keras.Input((SIDE, SIDE, 1)), layers.AveragePooling2D(2), layers.ZeroPadding2D(1)]
        model = keras.Sequential(stem, name="child")
        values, channels, largest = [], 1, max(self.kernels)
        for number, (size, filters, pooled) in enumerate(self.layer_sizes(choices)):
            model.add(layers.Conv2D(filters, size, padding="same", activation="relu"))
            if pooled:
                model.add(layers.MaxPooling2D(2))
            inner = slice((largest - size) // 2, (largest - size) // 2 + size)
            values += [weights[2 * number][inner, inner, :channels, :filters], weights[2 * number + 1][:filters]]
            channels = filters
        model.add(layers.AveragePooling2D(model.output_shape[1] // _QUARTERS))
        model.add(layers.Flatten())
        model.add(layers.Dense(self.classes))
        model.set_weights([*values, weights[-2][:, :channels].reshape(-1, self.classes), weights[-1]])
        return model

    def layer_sizes(self, choices: npt.NDArray[np.int32]) -> list[tuple[int, int, bool]]:
        """Kernel, filters and whether it pools, of each layer that the child has."""
        rows = choices[1:].reshape(self.layers, _PER_LAYER)[: choices[0] + 1]
        return [(self.kernels[kernel], self.filters[filters], bool(pool)) for kernel, filters, pool in rows]

    def _layer(self, choices: tf.Tensor, number: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        kernel, filters, pool = tf.unstack(choices[1 + _PER_LAYER * number :][:_PER_LAYER])
        return tf.constant(self.kernels)[kernel], tf.constant(self.filters)[filters], pool > 0

    def _initial(self, choices: tf.Tensor, seed: tf.Tensor) -> list[tf.Tensor]:
        """Normal weights with a variance of 2 by what one unit of this very child sums up; biases 0."""
        weights, channels = [], tf.constant(1)
        for number, shape in enumerate(self.shapes):
            if len(shape) == 1:
                weights.append(tf.zeros(shape))
                continue
            inputs = _QUARTERS**2 * channels
            if len(shape) == 4:
                size, filters, _ = self._layer(choices, number // 2)
                inputs = size * size * channels
                channels = tf.where(number // 2 <= choices[0], filters, channels)
            deviation = tf.sqrt(2.0 / tf.cast(inputs, tf.float32))
            weights.append(deviation * tf.random.stateless_normal(shape, seed + tf.constant([number + 1, 0], tf.int64)))
        return weights


@dataclass(frozen=True, kw_only=True)
class ChildPlan:
    """How each child is trained: how many steps of Adam, on how many images each."""

    steps: int
    batch_size: int
    learning_rate: float
