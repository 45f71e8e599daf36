"""The networks that ``nas`` chooses among: stacks of two kinds of cells, and how one is trained inside a graph.

What a child looks like is a tensor, int32 ``[choices]``, so that one trace serves all of them: its weights are cut out
of arrays that have room for the largest, of :attr:`CellSpace.shapes`, and its operations are chosen by a switch. A
child costs what its own size costs.
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

#: What each half of a block does to its input; a skip connection leaves it as it is.
OPERATIONS = ("skip", "max 3x3", "average 3x3", "separable 3x3", "separable 5x5")
_SEPARABLE = {"separable 3x3": 3, "separable 5x5": 5}
_LARGEST = max(_SEPARABLE.values())
#: The cells of a child, from the images on. A reduction halves height and width.
_KINDS = ("normal", "reduction")
_STACK = ("reduction", "normal", "reduction")
#: How many times larger, in each direction, the outputs of the two cells before each are than its own.
_POOLS = ((2, 2), (2, 1), (2, 2))
#: Choices of each block: two inputs, each with an operation.
_PER_BLOCK = 4
#: Weights of each half of a block: depthwise and pointwise kernels and biases, of separable convolutions.
_PER_HALF = 3
_MOST_BLOCKS = 5
_ADAM = (0.9, 0.999, 1e-7)
#: Between the seeds of two steps of a child: more than there are children.
_STRIDE = 1 << 32
#: The classifier sees the mean of each quarter of the image: where things are matters.
_QUARTERS = 2
#: Children see means of 2 x 2 pixels, with a border to make 16 x 16 of 14 x 14: it can be halved.
_BORDER = [[0, 0], [1, 1], [1, 1], [0, 0]]


@dataclass(frozen=True, kw_only=True)
class CellSpace:
    """Networks of one normal and one reduction cell, repeated.

    A cell takes the outputs of the two cells before it, brought to its size by means and to its number of filters by
    1x1 convolutions. Each of its blocks chooses two of these and of the blocks before it, and an operation for each,
    and is the mean of both results. The cell's output is all its blocks, concatenated.

    Attributes:
        blocks: Of each cell.
        filters: Numbers of filters to choose among; a child has one of them everywhere.
        classes: Of the classifier, which sees the means over the quarters of the image.
    """

    blocks: int
    filters: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        if not 1 <= self.blocks <= _MOST_BLOCKS:
            raise ConfigurationError(f"blocks is {self.blocks}; expected a number from 1 to {_MOST_BLOCKS}.")
        if not self.filters or any(count < 1 for count in self.filters):
            raise ConfigurationError(f"filters is {list(self.filters)}; expected numbers above 0.")

    @property
    def options(self) -> tuple[int, ...]:
        """How many options each choice has: the filters first, then those of the normal cell, then of the other."""
        cell = [count for block in range(self.blocks) for count in (block + 2, len(OPERATIONS)) * 2]
        return (len(self.filters), *cell, *cell)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the largest child's weights.

        Kernel and bias of the first convolution; of each cell the two 1x1 convolutions and, for each half of a block,
        what a separable one needs; of the classifier.
        """
        most = max(self.filters)
        shapes: list[tuple[int, ...]] = [(3, 3, 1, most), (most,)]
        for number in range(len(_STACK)):
            # The first convolution stands for the cells that the first ones lack.
            shapes += [(self.blocks if number > before else 1, most, most) for before in (1, 0)]
            shapes += [(_LARGEST, _LARGEST, most, 1), (most, most), (most,)] * 2 * self.blocks
        return [*shapes, (_QUARTERS**2, self.blocks, most, self.classes), (self.classes,)]

    def forward(self, weights: Sequence[Any], choices: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
        """Logits of one child, float32 ``[B, classes]``, for images, float32 ``[B, H, W, 1]``."""
        parts, count = iter(weights), tf.constant(self.filters)[choices[0]]
        x = tf.pad(tf.nn.avg_pool2d(images, 2, 2, "VALID"), _BORDER)
        x = tf.nn.relu(tf.nn.conv2d(x, next(parts)[..., :count], 1, "SAME") + next(parts)[:count])
        older = newer = x
        for kind, pools in zip(_STACK, _POOLS, strict=True):
            states = [_adapted(x, pool, next(parts), count) for x, pool in zip((older, newer), pools, strict=True)]
            for halves in self._halves(choices, kind):
                known = tf.stack(states)
                results = [
                    _apply(_one_of(known, source), operation, [next(parts) for _ in range(_PER_HALF)], count)
                    for source, operation in halves
                ]
                states.append(tf.add_n(results) / len(results))
            older, newer = newer, tf.concat(states[2:], axis=-1)
        features = _QUARTERS**2 * self.blocks * count
        head = tf.reshape(next(parts)[:, :, :count], [features, self.classes])
        size = newer.shape[1] // _QUARTERS
        means = tf.nn.avg_pool2d(newer, size, size, "VALID")
        return tf.reshape(means, [-1, features]) @ head + next(parts)

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

    def accuracy(self, weights: Sequence[Any], choices: tf.Tensor, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Share of images, uint8 ``[N, H, W, 1]``, whose class a child finds."""
        return tf.reduce_mean(
            keras.metrics.sparse_categorical_accuracy(
                labels, self.forward(weights, choices, tf.cast(images, tf.float32) / 255.0)
            )
        )

    def keras_model(
        self, choices: npt.NDArray[np.int32], weights: Sequence[npt.NDArray[np.float32]] | None = None
    ) -> keras.Model:
        """The child as a network of its own size, with what is its of the weights, or with new ones."""
        layers, count = keras.layers, self.filters[choices[0]]
        image = keras.Input((SIDE, SIDE, 1))
        x = layers.ZeroPadding2D(1)(layers.AveragePooling2D(2)(image))
        made = [layers.Conv2D(count, 3, padding="same", activation="relu")]
        older = newer = made[0](x)
        for kind, pools in zip(_STACK, _POOLS, strict=True):
            states = []
            for x, pool in zip((older, newer), pools, strict=True):
                made.append(layers.Conv2D(count, 1, use_bias=False))
                states.append(made[-1](layers.AveragePooling2D(pool)(x) if pool > 1 else x))
            for halves in self._halves(choices, kind):
                results = []
                for source, operation in halves:
                    layer = _keras_layer(OPERATIONS[operation], count)
                    made.append(layer)
                    results.append(layer(states[source]))
                states.append(layers.Average()(results))
            older, newer = newer, layers.Concatenate()(states[2:]) if self.blocks > 1 else states[2]
        made.append(layers.Dense(self.classes))
        means = layers.AveragePooling2D(newer.shape[1] // _QUARTERS)(newer)
        model = keras.Model(image, made[-1](layers.Flatten()(means)), name="child")
        if weights is not None:
            self._set_weights(made, weights, count)
        return model

    def describe(self, choices: npt.NDArray[np.int32]) -> str:
        """A child in words, such as ``16 filters; normal: skip of 0 + separable 3x3 of 1; reduction: ...``.

        Inputs are numbered: 0 and 1 are the cell before the last one and the last one, 2 the first block of the cell.
        """
        cells = [
            f"{kind}: "
            + ", ".join(
                " + ".join(f"{OPERATIONS[operation]} of {source}" for source, operation in halves)
                for halves in self._halves(choices, kind)
            )
            for kind in _KINDS
        ]
        return "; ".join([f"{self.filters[choices[0]]} filters", *cells])

    def _halves(self, choices: Any, kind: str) -> list[tuple[tuple[Any, Any], tuple[Any, Any]]]:
        """Input and operation of both halves of each block of a cell."""
        first = 1 + _KINDS.index(kind) * self.blocks * _PER_BLOCK
        blocks = [first + block * _PER_BLOCK for block in range(self.blocks)]
        return [((choices[at], choices[at + 1]), (choices[at + 2], choices[at + 3])) for at in blocks]

    def _set_weights(self, made: Sequence[Any], weights: Sequence[npt.NDArray[np.float32]], count: int) -> None:
        parts = iter(weights)
        for number, layer in enumerate(made):
            if isinstance(layer, keras.layers.Dense):
                head = next(parts)[:, :, :count]
                layer.set_weights([head.reshape(-1, self.classes), next(parts)])
            elif number == 0:
                layer.set_weights([next(parts)[..., :count], next(parts)[:count]])
            elif isinstance(layer, keras.layers.SeparableConv2D):
                depth, point, bias = (next(parts) for _ in range(_PER_HALF))
                inner = _inner(layer.kernel_size[0])
                layer.set_weights(
                    [depth[inner, inner, :count], point[np.newaxis, np.newaxis, :count, :count], bias[:count]]
                )
            elif isinstance(layer, keras.layers.Conv2D):
                kernel = next(parts)[:, :count, :count]
                layer.set_weights([kernel.reshape(1, 1, -1, count)])
            else:
                # Nothing to learn; the child's places for it stay empty.
                for _ in range(_PER_HALF):
                    next(parts)

    def _initial(self, choices: tf.Tensor, seed: tf.Tensor) -> list[tf.Tensor]:
        """Normal weights with a variance of 2 by what one unit of this very child sums up; biases 0."""
        count = tf.cast(tf.constant(self.filters)[choices[0]], tf.float32)
        weights = []
        for number, shape in enumerate(self.shapes):
            if len(shape) == 1:
                weights.append(tf.zeros(shape))
                continue
            # Pixels of one filter; or this child's filters, of blocks and quarters.
            pixels = len(shape) == 4 and shape[0] != _QUARTERS**2
            inputs = float(shape[0] * shape[1]) if pixels else count * float(np.prod(shape[:-2]))
            deviation = tf.sqrt(2.0 / inputs)
            weights.append(deviation * tf.random.stateless_normal(shape, seed + tf.constant([number + 1, 0], tf.int64)))
        return weights


@dataclass(frozen=True, kw_only=True)
class ChildPlan:
    """How each child is trained: how many steps of Adam, on how many images each."""

    steps: int
    batch_size: int
    learning_rate: float


def _adapted(x: tf.Tensor, pool: int, kernel: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """An earlier output as input of a cell: of its size, and with as many filters."""
    pooled = tf.nn.avg_pool2d(x, pool, pool, "VALID") if pool > 1 else x
    return tf.nn.conv2d(pooled, tf.reshape(kernel[:, :count, :count], [1, 1, -1, count]), 1, "SAME")


def _one_of(known: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """One of stacked tensors; an index in brackets has a gradient that costs ten times as much as this one's."""
    begin = tf.pad(tf.reshape(number, [1]), [[0, len(known.shape) - 1]])
    found = tf.squeeze(tf.slice(known, begin, [1, *[-1] * (len(known.shape) - 1)]), axis=0)
    return tf.ensure_shape(found, known.shape[1:])


def _apply(x: tf.Tensor, operation: tf.Tensor, weights: Sequence[Any], count: tf.Tensor) -> tf.Tensor:
    """What one of :data:`OPERATIONS` makes of an input."""
    depth, point, bias = weights

    def separable() -> tf.Tensor:
        # One branch for both sizes: each one costs time in tracing.
        size = tf.gather([_SEPARABLE.get(name, 0) for name in OPERATIONS], operation)
        inner = _inner(size)
        filtered = tf.nn.depthwise_conv2d(x, depth[inner, inner, :count], [1, 1, 1, 1], "SAME")
        mixed = tf.nn.conv2d(filtered, point[tf.newaxis, tf.newaxis, :count, :count], 1, "SAME")
        return tf.nn.relu(mixed + bias[:count])

    branches = [
        lambda: x,
        lambda: tf.nn.max_pool2d(x, 3, 1, "SAME"),
        lambda: tf.nn.avg_pool2d(x, 3, 1, "SAME"),
        separable,
    ]
    applied: tf.Tensor = tf.switch_case(tf.minimum(operation, len(branches) - 1), branches)
    return applied


def _keras_layer(operation: str, count: int) -> Any:
    """The same as a layer."""
    layers = keras.layers
    if operation in _SEPARABLE:
        return layers.SeparableConv2D(count, _SEPARABLE[operation], padding="same", activation="relu")
    if operation == "skip":
        return layers.Identity()
    kind = layers.MaxPooling2D if operation.startswith("max") else layers.AveragePooling2D
    return kind(3, strides=1, padding="same")


def _inner(size: Any) -> slice:
    """Where a smaller kernel lies in the largest."""
    start = (_LARGEST - size) // 2
    return slice(start, start + size)
