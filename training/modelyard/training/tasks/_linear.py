"""The task ``linear``: a straight line, by gradient descent written out by hand.

Source: TensorFlow's guide "Basic training loops". 1,000 points of ``y = 3 x + 2 + N(0, 1)``, x from N(0, 1); ``W``
starts at 5 and ``b`` at 0; the loss is the mean squared error of all points, ``[1000]``, and each epoch is one step
with a learning rate of 0.1: ``W -= 0.1 dL/dW``. After ten epochs the guide has W = 3.23, b = 1.80 and a loss of 1.14,
up to sampling noise.

Measured: W, b and the loss by epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import keras
import numpy as np
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.data import Arrays
from modelyard.training.plots import save_curves, save_fit
from modelyard.training.run import TrainResult
from modelyard.training.user import InputRequest, Task

SLOPE, INTERCEPT = 3.0, 2.0
START_SLOPE, START_INTERCEPT = 5.0, 0.0
POINTS = 1000


class _Line(tf.Module):
    """``y = w x + b``, as a plain module."""

    def __init__(self, slope: float, intercept: float) -> None:
        super().__init__(name="line")
        self.w = tf.Variable(slope, name="w")
        self.b = tf.Variable(intercept, name="b")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return self.w * x + self.b


class _KerasLine(keras.Model):
    """The same as a Keras model."""

    def __init__(self, slope: float, intercept: float) -> None:
        super().__init__(name="line")
        self.w = self.add_weight(name="w", shape=(), initializer=keras.initializers.Constant(slope))
        self.b = self.add_weight(name="b", shape=(), initializer=keras.initializers.Constant(intercept))
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.w * x + self.b


class LinearTask(Task):
    """A line through noisy points.

    Args:
        form: ``module`` for a ``tf.Module``, ``keras`` for a Keras model; both learn the same.
        learning_rate: Of gradient descent.
        data_seed: Of the points.

    Raises:
        ConfigurationError: An unknown form, or a learning rate that is not above 0.
    """

    name = "linear"
    recipe = {"batch_size": POINTS, "epochs": 10}

    def __init__(
        self, *, form: Literal["module", "keras"] = "module", learning_rate: float = 0.1, data_seed: int = 0
    ) -> None:
        if form not in ("module", "keras"):
            raise ConfigurationError(f"form is {form!r}; expected module or keras.")
        if not learning_rate > 0:
            raise ConfigurationError(f"learning_rate is {learning_rate}; expected a number above 0.")
        self._form = form
        self._learning_rate = learning_rate
        self._data_seed = data_seed
        random = np.random.default_rng(data_seed)
        self.x = random.normal(size=POINTS).astype(np.float32)
        self.y = (SLOPE * self.x + INTERCEPT + random.normal(size=POINTS)).astype(np.float32)
        self.train = self.test = Arrays((self.x, self.y))

    def build(self) -> None:
        """Creates ``w`` and ``b``; gradient descent has no state of its own."""
        self.line = (_Line if self._form == "module" else _KerasLine)(START_SLOPE, START_INTERCEPT)

    @property
    def parameters(self) -> tuple[float, float]:
        """``W`` and ``b`` as they are now."""
        return float(self.line.w.numpy()), float(self.line.b.numpy())

    def train_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """``loss`` of each point, ``w`` and ``b`` after a step ``W -= lr dL/dW``, ``b -= lr dL/db``."""
        x, y = batch
        line = self.line
        with tf.GradientTape() as tape:
            errors = tf.square(line(x) - y)
            loss = tf.nn.compute_average_loss(errors)
        dw, db = tape.gradient(loss, [line.w, line.b])
        replica = tf.distribute.get_replica_context()
        # By hand there is no optimizer that would add up the replicas' gradients.
        dw, db = replica.all_reduce(tf.distribute.ReduceOp.SUM, [dw, db])
        line.w.assign_sub(self._learning_rate * dw)
        line.b.assign_sub(self._learning_rate * db)
        return {"loss": errors, "w": tf.identity(line.w), "b": tf.identity(line.b)}

    def eval_step(self, batch: tuple[tf.Tensor, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """The same without the step."""
        x, y = batch
        line = self.line
        return {"loss": tf.square(line(x) - y), "w": tf.identity(line.w), "b": tf.identity(line.b)}

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """The points in their order; with the recipe's batch size, all of them in one batch."""
        return self.train.batches(request, training=False)

    def predict(self, inputs: tf.Tensor) -> Mapping[str, tf.Tensor]:
        """From ``x`` to ``y``, float32 ``[B]``."""
        return {"y": self.line(inputs)}

    def draw(self, result: TrainResult, folder: Path) -> list[Path]:
        """Draws the points with both lines, and W, b and loss by epoch."""
        slope, intercept = self.parameters
        ends = np.array([self.x.min(), self.x.max()])
        lines = {
            f"start: {START_SLOPE:g} x + {START_INTERCEPT:g}": (ends, START_SLOPE * ends + START_INTERCEPT),
            f"learned: {slope:.2f} x + {intercept:.2f}": (ends, slope * ends + intercept),
        }
        fit, curves = folder / "fit.png", folder / "parameters.png"
        save_fit(self.x, self.y, fit, lines=lines, title=f"y = {SLOPE:g} x + {INTERCEPT:g} + noise")
        w, b, loss = ([epoch.evaluation[name] for epoch in result.history] for name in ("w", "b", "loss"))
        panels = {"parameters": {"W": w, "b": b}, "mean squared error": {"loss": loss}}
        save_curves(panels, curves, title="Gradient descent by hand")
        return [fit, curves]

    def data_description(self) -> str:
        """How the points were made."""
        return f"{POINTS:,} points of y = {SLOPE:g} x + {INTERCEPT:g} + N(0, 1), seed {self._data_seed}"
