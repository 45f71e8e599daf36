"""The task ``maml``: weights from which one step of gradient descent solves a new problem.

Source: Finn, Abbeel and Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017. An
inner step on the points of problem i gives it weights of its own, and the outer step makes those good on other points
of the same problem, which judge it:

    w_i = w - a grad L_i(w)                     (inner)
    w  <- w - b grad_w mean_i L_i'(w_i)         (outer, by Adam)

The outer gradient goes through the inner step, ``dw_i/dw = I - a H_i(w)`` with second derivatives H. First-order MAML
(section 5.2 there) takes I in its place. Two families of problems:

- ``sinusoid``: ``y = a sin(x + p)``, a from 0.1 to 5, p from 0 to pi, x from -5 to 5; 10 points to adapt to, 10 to be
  judged on; net 1-40-40-1, squared error.
- ``fashion``: 5-way 1-shot classification. A problem is five classes in any order, one image of each to adapt to and
  five to be judged on. Training has the first five classes of Fashion-MNIST in four quarter turns each, 20 classes, as
  the source has letters turned; new problems have the other five, upright. Two convolutions and a linear layer,
  cross-entropy; new problems get three inner steps, as there.

On the same batches, from the same initial weights, with optimizers of the same kind: a net by first-order MAML, and one
trained jointly on all points without an inner step. Both adapt to new problems as the first one does. Where there are
few classes to train on, as here, all of them soon know those by heart: more epochs of ``fashion`` are not better.

Measured on new problems: ``loss``, ``first_order_loss`` and ``joint_loss`` after the inner steps, ``before_loss`` and
its like without; for images the same of ``accuracy`` and ``nearest_accuracy``, which is that of the nearest image by
its pixels, without any net. Picture: a new problem, and what the nets make of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction, VerificationData
from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.plots import image_grid, save_fit, save_image
from modelyard.training.run import TrainResult
from modelyard.training.tasks.inputs import Family, FashionImagesTask, FewShots, Sinusoids, nearest, takes
from modelyard.training.user import InputRequest, average_loss, minimize

_BATCHES = 500
_EVAL_PROBLEMS = 200
_EVAL_SEED = 7_654_321
#: What the numbers of each net begin with.
_PREFIXES = {"meta": "", "first_order": "first_order_", "joint": "joint_"}
_RATES = {"sinusoid": (0.01, 1e-3), "fashion": (0.1, 2e-3)}


class MamlTask(FashionImagesTask):
    """Meta-learning, beside its first-order form and a jointly trained net.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        problem: ``sinusoid`` or ``fashion``.
        inner_rate: Step size of the inner steps, a above; None for 0.01 with sinusoids and 0.1 with images.
        learning_rate: Step size of Adam, b above; None for 0.001 with sinusoids and 0.002 with images.
        shots: Images of each class to adapt to.

    Raises:
        ConfigurationError: An unknown family of problems, or no shots.
    """

    name = "maml"
    recipe = {"batch_size": 25, "epochs": 10}
    full_recipe = {"epochs": 140}

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        problem: Literal["sinusoid", "fashion"] = "sinusoid",
        inner_rate: float | None = None,
        learning_rate: float | None = None,
        shots: int = 1,
    ) -> None:
        super().__init__(data=data)
        if problem not in _RATES:
            raise ConfigurationError(f"problem is {problem!r}; expected sinusoid or fashion.")
        if shots < 1:
            raise ConfigurationError(f"shots is {shots}; expected at least one image of each class.")
        self._images = problem == "fashion"
        self._family: Family = FewShots(lambda: self.data, shots=shots) if self._images else Sinusoids()
        inner, outer = _RATES[problem]
        self._inner_rate = inner if inner_rate is None else inner_rate
        self._learning_rate = outer if learning_rate is None else learning_rate

    def build(self) -> None:
        """Creates the three nets, of the same initial weights, and an optimizer each."""
        weights = _initial(self._family)
        self.nets = {name: _Net(weights, name=name) for name in _PREFIXES}
        self.optimizers = {f"{name}_optimizer": keras.optimizers.Adam(self._learning_rate) for name in _PREFIXES}
        for net, optimizer in zip(self.nets.values(), self.optimizers.values(), strict=True):
            optimizer.build(net.weights)

    @property
    def exported(self) -> Mapping[str, Any]:
        """The net of second-order MAML."""
        return {"meta": super().exported["meta"]}

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """500 batches ``(x, y, judged_x, judged_y)``, ``[problems, points, ...]``, drawn anew in each epoch."""
        first = request.epoch * _BATCHES
        numbers = tf.data.Dataset.range(first + request.skip_batches, first + _BATCHES)
        count = request.num_shards * request.batch_size
        mine = slice(request.shard_index * request.batch_size, (request.shard_index + 1) * request.batch_size)

        def draw(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
            seed = tf.stack([tf.constant(request.seed, tf.int64), number])
            return tuple(part[mine] for part in self._family.draw(seed, count, new=False))

        return numbers.map(draw, num_parallel_calls=2).prefetch(4)

    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """200 new problems, the same each time."""
        problems = self._new_problems(_EVAL_PROBLEMS)
        size = min(request.batch_size, _EVAL_PROBLEMS)
        return tf.data.Dataset.from_tensor_slices(problems).batch(size, drop_remainder=request.drop_remainder)

    def train_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """One outer step of each net; ``loss``, ``first_order_loss`` and ``joint_loss``, float32 ``[problems]``."""
        x, y, judged_x, judged_y = batch
        values = {}
        for (name, net), optimizer in zip(self.nets.items(), self.optimizers.values(), strict=True):
            with tf.GradientTape() as tape:
                weights = _tiled(net.weights, tf.shape(x)[0])
                if name == "joint":
                    losses = self._losses(weights, tf.concat([x, judged_x], 1), tf.concat([y, judged_y], 1))
                else:
                    adapted = self._adapt(weights, x, y, second_order=name == "meta")
                    losses = self._losses(adapted, judged_x, judged_y)
                loss = average_loss(losses)
            minimize(loss, net.weights, optimizer=optimizer, tape=tape)
            values[f"{_PREFIXES[name]}loss"] = losses
        return values

    def eval_step(self, batch: tuple[tf.Tensor, ...]) -> Mapping[str, tf.Tensor]:
        """Losses, and for images accuracies, on new problems.

        Returns:
            ``loss`` and ``before_loss`` of each problem, and for images ``accuracy``, float32 ``[problems]``; the same
            with ``first_order_`` and ``joint_`` before them; and ``nearest_accuracy``.
        """
        x, y, judged_x, judged_y = batch
        values = {}
        for name, prefix in _PREFIXES.items():
            before = _tiled(self.nets[name].weights, tf.shape(x)[0])
            values[f"{prefix}before_loss"] = self._losses(before, judged_x, judged_y)
            answers = self._family.forward(self._adapted(name, x, y), judged_x)
            values[f"{prefix}loss"] = self._family.losses(answers, judged_y)
            if self._images:
                values[f"{prefix}accuracy"] = _accuracy(tf.argmax(answers, axis=-1), judged_y)
        if self._images:
            values["nearest_accuracy"] = _accuracy(nearest(x, y, judged_x), judged_y)
        return values

    def measurements(self) -> Mapping[str, float]:
        """Means of what :meth:`eval_step` returns over 200 new problems, and half the width of their 95 % intervals."""
        values = self.eval_step(self._new_problems(_EVAL_PROBLEMS))
        means = {name: float(np.mean(value)) for name, value in values.items()}
        widths = {name: 1.96 * float(np.std(value)) / math.sqrt(_EVAL_PROBLEMS) for name, value in values.items()}
        return {**means, **{f"{name}_interval": width for name, width in widths.items()}}

    def signatures(self) -> Mapping[str, SignatureFunction]:
        """``serving_default``: the net before adaptation.

        Adaptation is not served: the gradients of its inner step have operations that neither ONNX nor TFLite has.
        """
        return {DEFAULT_SIGNATURE: takes(self._unadapted, x=self._family.example_shape)}

    def verification_data(self, count: int) -> VerificationData:
        """New problems, the first point of each.

        Raises:
            ConfigurationError: ``count`` is below 1.
        """
        if count < 1:
            raise ConfigurationError(f"count is {count}; expected at least one example to verify with.")
        x = self._new_problems(count, number=1)[0]
        return VerificationData(
            inputs={DEFAULT_SIGNATURE: {"x": x.numpy()[:, 0]}},
            description=f"{count} new problems; {self.data_description()}",
        )

    def data_description(self) -> str:
        """Which problems."""
        if not self._images:
            return "sinusoids with amplitudes from 0.1 to 5 and phases from 0 to pi"
        return f"5 of 20 classes to train on, 5 other classes as new problems; {super().data_description()}"

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Draws a new sinusoid with each net's curve after adaptation; or a new problem of images.

        Of images the top rows are what the net adapted to, and below are those to be judged, a column for each class;
        what it takes for another class is inverted.
        """
        x, y, judged_x, judged_y = self._new_problems(1)
        path = folder / "problem.png"
        if self._images:
            answers = self._family.forward(self._adapted("meta", x, y), judged_x)
            right = (tf.argmax(answers, axis=-1) == judged_y).numpy()[0, :, np.newaxis, np.newaxis, np.newaxis]
            judged = np.where(right, judged_x[0], 1 - judged_x[0])
            ways, side = answers.shape[-1], x.shape[2:]
            # From class by class to row by row.
            rows = [part.reshape(ways, -1, *side).swapaxes(0, 1).reshape(-1, *side) for part in (x[0].numpy(), judged)]
            save_image(image_grid(np.concatenate(rows), columns=ways), path, scale=4)
            return [path]
        grid = np.linspace(-5, 5, 200, dtype=np.float32)

        def curve(weights: Sequence[tf.Tensor]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
            return grid, self._family.forward(weights, grid[np.newaxis, :, np.newaxis]).numpy().ravel()

        lines = {f"{name}, adapted": curve(self._adapted(name, x, y)) for name in self.nets}
        lines["meta, before"] = curve(_tiled(self.nets["meta"].weights, tf.constant(1)))
        save_fit(x.numpy().ravel(), y.numpy().ravel(), path, lines=lines, title="A new sinusoid, from ten points")
        return [path]

    def _new_problems(self, count: int, number: int = 0) -> tuple[tf.Tensor, ...]:
        return self._family.draw(tf.constant([_EVAL_SEED, number], tf.int64), count, new=True)

    def _unadapted(self, x: tf.Tensor) -> Mapping[str, tf.Tensor]:
        weights = [weight[tf.newaxis] for weight in self.nets["meta"].weights]
        return {"y": self._family.forward(weights, x[tf.newaxis])[0]}

    def _adapted(self, name: str, x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        weights = _tiled(self.nets[name].weights, tf.shape(x)[0])
        for _ in range(self._family.steps):
            weights = self._adapt(weights, x, y)
        return weights

    def _adapt(
        self, weights: Sequence[tf.Tensor], x: tf.Tensor, y: tf.Tensor, *, second_order: bool = True
    ) -> list[tf.Tensor]:
        """One step of gradient descent for each problem at once; the outer tape sees through it."""
        with tf.GradientTape() as tape:
            tape.watch(weights)
            # Weights are one set for each problem: the sum's gradients do not mix them.
            total = tf.reduce_sum(self._losses(weights, x, y))
        gradients = tape.gradient(total, list(weights))
        if not second_order:
            gradients = [tf.stop_gradient(gradient) for gradient in gradients]
        return [weight - self._inner_rate * gradient for weight, gradient in zip(weights, gradients, strict=True)]

    def _losses(self, weights: Sequence[tf.Tensor], x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return self._family.losses(self._family.forward(weights, x), y)


class _Net(tf.Module):
    """Weights that any number of problems start from."""

    def __init__(self, weights: Sequence[npt.NDArray[np.float32]], *, name: str) -> None:
        super().__init__(name=name)
        self.weights = [tf.Variable(value, name=f"weight_{number}") for number, value in enumerate(weights)]


def _initial(family: Family) -> list[npt.NDArray[np.float32]]:
    """Normal kernels, by the number of their inputs, and biases of 0."""
    draw = tf.random.get_global_generator().normal
    return [
        (draw(shape, stddev=family.spread / math.sqrt(shape[0])) if len(shape) > 1 else tf.zeros(shape)).numpy()
        for shape in family.weight_shapes
    ]


def _tiled(weights: Sequence[tf.Variable], problems: tf.Tensor) -> list[tf.Tensor]:
    """A copy of each weight for each problem, ``[problems, ...]``."""
    return [
        tf.tile(weight[tf.newaxis], tf.concat([[problems], tf.ones_like(tf.shape(weight))], 0)) for weight in weights
    ]


def _accuracy(guesses: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.cast(guesses == labels, tf.float32), axis=1)
