"""The task ``maml``: weights from which one step of gradient descent solves a new problem.

Source: Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017, with
second-order gradients through the inner update. Two families of problems:

- ``sinusoid``: ``y = a sin(x + p)``, a from 0.1 to 5, p from 0 to pi, x from -5 to 5; 10 points to adapt to, 10 to be
  judged on; net 1-40-40-1, squared error.
- ``fashion``: 5-way classification of Fashion-MNIST, 10 images of each class to adapt to and 10 to be judged on; net
  784-64-64-5, cross-entropy. Five classes are for training, in any order; the other five are the new problems. It
  learns slowly: 31 % of new images after 500 steps, where 20 % is chance.

A second net of the same size is trained jointly on the same points with the same optimizer, without an inner step: what
adaptation is worth is the difference. One batch is ``[problems, points, ...]``; the loss is that of the points to be
judged on, after one inner step.

Measured: ``loss``, the loss on new problems after one inner step; ``joint_loss``, the same of the jointly trained net
after the same step; ``before_loss``, without a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.tasks.inputs import PIXELS, FashionImagesTask, takes
from modelyard.training.user import InputRequest, average_loss, minimize

#: Small initial weights for numbers up to 5, as the source has them: large ones make an inner step overshoot.
_SPREAD = {"sinusoid": 0.3, "fashion": 1.0}
_POINTS = 10
_WAYS = 5
_BATCHES = 500
_EVAL_PROBLEMS = 200
_EVAL_SEED = 7_654_321
#: Of each class, to draw from: a permutation of all of them would cost more than a step.
_MOST_IMAGES = 500


class MamlTask(FashionImagesTask):
    """Meta-learning, with a jointly trained net beside it.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        problem: ``sinusoid`` or ``fashion``.
        inner_rate: Step size of the inner update.
        learning_rate: Step size of Adam, of the outer one.

    Raises:
        ConfigurationError: An unknown family of problems.
    """

    name = "maml"
    recipe = {"batch_size": 25, "epochs": 10}
    full_recipe = {"epochs": 140}

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        problem: Literal["sinusoid", "fashion"] = "sinusoid",
        inner_rate: float = 0.01,
        learning_rate: float = 1e-3,
    ) -> None:
        super().__init__(data=data)
        if problem not in ("sinusoid", "fashion"):
            raise ConfigurationError(f"problem is {problem!r}; expected sinusoid or fashion.")
        self._problem = problem
        self._inner_rate = inner_rate
        self._learning_rate = learning_rate
        self._sizes = (1, 40, 40, 1) if problem == "sinusoid" else (PIXELS, 64, 64, _WAYS)

    def build(self) -> None:
        """Creates both nets and an optimizer each."""
        self.meta, self.joint = (
            _Net(self._sizes, spread=_SPREAD[self._problem], name=name) for name in ("meta", "joint")
        )
        self.optimizer, self.joint_optimizer = (keras.optimizers.Adam(self._learning_rate) for _ in range(2))
        self.optimizer.build(list(self.meta.weights))
        self.joint_optimizer.build(list(self.joint.weights))

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """500 batches ``(x, y, judged_x, judged_y)``, ``[problems, points, ...]``, drawn anew in each epoch."""
        first = request.epoch * _BATCHES
        numbers = tf.data.Dataset.range(first + request.skip_batches, first + _BATCHES)
        count = request.num_shards * request.batch_size
        mine = slice(request.shard_index * request.batch_size, (request.shard_index + 1) * request.batch_size)

        def draw(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
            seed = tf.stack([tf.constant(request.seed, tf.int64), number])
            return tuple(part[mine] for part in self._problems(seed, count, new=False))

        return numbers.map(draw, num_parallel_calls=2).prefetch(4)

    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """200 new problems, the same each time."""
        problems = self._problems(tf.constant([_EVAL_SEED, 0], tf.int64), _EVAL_PROBLEMS, new=True)
        size = min(request.batch_size, _EVAL_PROBLEMS)
        return tf.data.Dataset.from_tensor_slices(problems).batch(size, drop_remainder=request.drop_remainder)

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """One outer step of both nets; ``loss`` and ``joint_loss`` of each problem, float32 ``[problems]``."""
        x, y, judged_x, judged_y = batch
        meta, joint = self.meta, self.joint
        with tf.GradientTape() as tape:
            adapted = self._adapt(_tiled(meta.weights, tf.shape(x)[0]), x, y)
            losses = self._losses(adapted, judged_x, judged_y)
            loss = average_loss(losses)
        minimize(loss, list(meta.weights), optimizer=self.optimizer, tape=tape)
        with tf.GradientTape() as tape:
            both = tf.concat([x, judged_x], 1), tf.concat([y, judged_y], 1)
            joint_losses = self._losses(_tiled(joint.weights, tf.shape(x)[0]), *both)
            loss = average_loss(joint_losses)
        minimize(loss, list(joint.weights), optimizer=self.joint_optimizer, tape=tape)
        return {"loss": losses, "joint_loss": joint_losses}

    def eval_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """Losses on new problems, after one inner step of each net and before it.

        Returns:
            ``loss``, ``joint_loss``, ``before_loss`` and ``joint_before_loss`` of each problem, float32 ``[problems]``;
            for images ``accuracy`` and ``joint_accuracy`` too.
        """
        x, y, judged_x, judged_y = batch
        values: dict[str, tf.Tensor] = {}
        for prefix, net in (("", self.meta), ("joint_", self.joint)):
            weights = _tiled(net.weights, tf.shape(x)[0])
            adapted = self._adapt(weights, x, y)
            values[f"{prefix}loss"] = self._losses(adapted, judged_x, judged_y)
            if self._problem == "fashion":
                guesses = tf.argmax(_forward(adapted, judged_x), axis=-1, output_type=judged_y.dtype)
                values[f"{prefix}accuracy"] = tf.reduce_mean(tf.cast(guesses == judged_y, tf.float32), axis=1)
            values[f"{prefix}before_loss"] = self._losses(weights, judged_x, judged_y)
        return values

    def signatures(self) -> Mapping[str, SignatureFunction]:
        """``serving_default``: the net before adaptation.

        Adaptation is not served: the gradients of its inner step have operations that neither ONNX nor TFLite has.
        """
        return {DEFAULT_SIGNATURE: takes(self._unadapted, x=(self._sizes[0],))}

    def verification_data(self, count: int) -> VerificationData:
        """New problems.

        Raises:
            ConfigurationError: ``count`` is below 1.
        """
        if count < 1:
            raise ConfigurationError(f"count is {count}; expected at least one example to verify with.")
        problems = self._problems(tf.constant([_EVAL_SEED, 1], tf.int64), count, new=True)
        return VerificationData(
            inputs={DEFAULT_SIGNATURE: {"x": problems[0].numpy()[:, 0]}},
            description=f"{count} new problems; {self.data_description()}",
        )

    def data_description(self) -> str:
        """Which problems."""
        if self._problem == "sinusoid":
            return "sinusoids with amplitudes from 0.1 to 5 and phases from 0 to pi"
        return f"{_WAYS} of 10 classes at a time; {super().data_description()}"

    def _unadapted(self, x: tf.Tensor) -> Mapping[str, tf.Tensor]:
        weights = [weight[tf.newaxis] for weight in self.meta.weights]
        return {"y": _forward(weights, x[tf.newaxis])[0]}

    def _adapt(self, weights: Sequence[tf.Tensor], x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        """One step of gradient descent for each problem at once; the outer tape sees through it."""
        with tf.GradientTape() as tape:
            tape.watch(weights)
            # Weights are one set for each problem: the sum's gradients do not mix them.
            total = tf.reduce_sum(self._losses(weights, x, y))
        gradients = tape.gradient(total, list(weights))
        return [weight - self._inner_rate * gradient for weight, gradient in zip(weights, gradients, strict=True)]

    def _losses(self, weights: Sequence[tf.Tensor], x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        answers = _forward(weights, x)
        if self._problem == "sinusoid":
            return tf.reduce_mean(tf.square(answers - y), axis=[1, 2])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, answers), axis=1)

    def _problems(self, seed: tf.Tensor, count: int, *, new: bool) -> tuple[tf.Tensor, ...]:
        return self._sinusoids(seed, count) if self._problem == "sinusoid" else self._few_shots(seed, count, new=new)

    def _sinusoids(self, seed: tf.Tensor, count: int) -> tuple[tf.Tensor, ...]:
        draws = tf.random.stateless_uniform([count, 2 + 2 * _POINTS], seed)
        amplitude, phase = 0.1 + 4.9 * draws[:, :1], math.pi * draws[:, 1:2]
        x = 10.0 * draws[:, 2:] - 5.0
        y = amplitude * tf.sin(x + phase)
        halves = [tf.split(part[..., tf.newaxis], 2, axis=1) for part in (x, y)]
        return halves[0][0], halves[1][0], halves[0][1], halves[1][1]

    def _few_shots(self, seed: tf.Tensor, count: int, *, new: bool) -> tuple[tf.Tensor, ...]:
        pixels, rows = self._classes(new=new)
        order = tf.argsort(tf.random.stateless_uniform([count, _WAYS], seed))
        shuffled = tf.argsort(tf.random.stateless_uniform([count, _WAYS, rows.shape[1]], seed + 1))
        picked = tf.gather(tf.gather(rows, order), shuffled[..., : 2 * _POINTS], batch_dims=2)
        x = tf.cast(tf.gather(pixels, picked), tf.float32) / 255.0
        y = tf.tile(tf.range(_WAYS, dtype=tf.int64)[tf.newaxis, :, tf.newaxis], [count, 1, 2 * _POINTS])
        parts = []
        for half in range(2):
            chosen = slice(half * _POINTS, (half + 1) * _POINTS)
            parts += [
                tf.reshape(x[:, :, chosen], [count, _WAYS * _POINTS, PIXELS]),
                tf.reshape(y[:, :, chosen], [count, _WAYS * _POINTS]),
            ]
        return tuple(parts)

    def _classes(self, *, new: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """All images, ``[N, 784]``, and for each of five classes the numbers of its images, ``[5, M]``."""
        data = self.data
        images, labels = (data.test_images, data.test_labels) if new else (data.train_images, data.train_labels)
        classes = np.arange(_WAYS, 2 * _WAYS) if new else np.arange(_WAYS)
        members = [np.flatnonzero(labels == index) for index in classes]
        smallest = min(_MOST_IMAGES, *(len(rows) for rows in members))
        return tf.constant(images.reshape(len(images), PIXELS)), tf.constant(np.stack([m[:smallest] for m in members]))


class _Net(tf.Module):
    """Weights of a perceptron with ReLU."""

    def __init__(self, sizes: Sequence[int], *, spread: float, name: str) -> None:
        super().__init__(name=name)
        self.weights = []
        for number, (inputs, outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
            stddev = spread / math.sqrt(inputs)
            kernel = tf.random.get_global_generator().normal([inputs, outputs], stddev=stddev)
            self.weights += [
                tf.Variable(kernel, name=f"kernel_{number}"),
                tf.Variable(tf.zeros([outputs]), name=f"bias_{number}"),
            ]


def _tiled(weights: Sequence[tf.Variable], problems: tf.Tensor) -> list[tf.Tensor]:
    """A copy of each weight for each problem, ``[problems, ...]``."""
    return [
        tf.tile(weight[tf.newaxis], tf.concat([[problems], tf.ones_like(tf.shape(weight))], 0)) for weight in weights
    ]


def _forward(weights: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Each problem's points by its own weights: ``[problems, points, inputs]`` to ``[problems, points, outputs]``."""
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    for number, (kernel, bias) in enumerate(layers):
        x = tf.matmul(x, kernel) + bias[:, tf.newaxis]
        if number + 1 < len(layers):
            x = tf.nn.relu(x)
    return x
