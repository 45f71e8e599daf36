from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training import (
    Trainer,
    TrainerOptions,
    apply_gradients,
    average_loss,
    loss_scaled,
    minimize,
    regularization_loss,
)
from tests.training.library_task import LibraryTask
from tests.training.toy_task import WIDTH, ToyTask

OPTIONS = TrainerOptions(epochs=2, batch_size=8, steps_per_loop=4, seed=11)


def train(task: Any, **changes: Any) -> list[np.ndarray[Any, Any]]:
    Trainer(task, replace(OPTIONS, **changes)).run()
    return [np.asarray(variable) for variable in task.model.trainable_variables]


def apart(one: list[np.ndarray[Any, Any]], other: list[np.ndarray[Any, Any]]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def test_average_loss_is_the_mean_over_examples_and_their_places() -> None:
    losses = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert float(average_loss(losses)) == losses.mean()
    assert float(average_loss([2.0, 4.0], sample_weight=[1.0, 0.5])) == 2.0
    assert float(average_loss(tf.zeros([0, 3]))) == 0.0 or np.isnan(float(average_loss(tf.zeros([0, 3]))))
    with pytest.raises(ConfigurationError, match="received a scalar"):
        average_loss(1.0)


def test_weights_of_examples_are_no_weights_of_places() -> None:
    losses = np.arange(9, dtype=np.float32).reshape(3, 3)
    weights = np.array([1.0, 0.0, 2.0], np.float32)
    expected = pytest.approx(np.mean(losses * weights[:, np.newaxis]))
    assert float(average_loss(losses, sample_weight=weights)) == expected
    assert float(average_loss(losses, sample_weight=weights[:, np.newaxis])) == expected
    assert float(average_loss(losses, sample_weight=losses)) == pytest.approx(np.mean(losses**2))
    assert float(average_loss(losses, sample_weight=2.0)) == 2.0 * losses.mean()
    for places in (3, 1):
        with pytest.raises(ConfigurationError, match=r"weights of shape \(3, \d\) for losses of shape \(3,\)"):
            average_loss(losses[:, 0], sample_weight=losses[:, :places])
    for step in (average_loss, tf.function(average_loss)):
        with pytest.raises(ConfigurationError, match=r"weights of shape \(2,\) for losses of shape \(3,\)"):
            step(tf.constant(losses[:, 0]), sample_weight=tf.constant([1.0, 2.0]))
    with pytest.raises(ConfigurationError, match=r"weights of shape \(3, 3\) for losses of shape \(3, 1\)"):
        average_loss(losses[:, :1], sample_weight=losses)


def test_regularization_is_the_sum_of_what_there_is() -> None:
    assert float(regularization_loss([])) == 0.0
    assert float(regularization_loss([tf.constant(1.0), tf.constant(2.0, tf.float64)])) == 3.0


def test_every_gradient_needs_its_variable() -> None:
    with pytest.raises(ConfigurationError, match="1 gradients for 2 variables"):
        apply_gradients(keras.optimizers.SGD(), [tf.constant(1.0)], [tf.Variable(1.0), tf.Variable(1.0)])


class TwoOptimizers(ToyTask):
    """Two layers, two learning rates, L1 on the first only."""

    def build(self) -> None:
        self.first, self.second = keras.layers.Dense(4, use_bias=False), keras.layers.Dense(1, use_bias=False)
        self.model = keras.Sequential([keras.Input((WIDTH,)), self.first, self.second])
        self.optimizer = keras.optimizers.SGD(0.1)
        self.other = keras.optimizers.SGD(0.01)
        self.optimizer.build([self.first.kernel])
        self.other.build([self.second.kernel])

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        features, targets = batch
        with tf.GradientTape(persistent=True) as tape:
            losses = tf.square(self.model(features, training=True)[:, 0] - targets)
            loss = average_loss(losses)
            penalized = loss + regularization_loss([0.05 * tf.reduce_sum(tf.abs(self.first.kernel))])
        minimize(penalized, [self.first.kernel], optimizer=self.optimizer, tape=tape)
        minimize(loss, [self.second.kernel], optimizer=self.other, tape=tape)
        return {"loss": losses}


@pytest.mark.parametrize("parts", [1, 4])
def test_two_layers_two_learning_rates_and_l1_on_the_first_only(parts: int) -> None:
    task = TwoOptimizers()
    task.build()
    task.first.kernel.assign(np.linspace(-0.5, 0.6, WIDTH * 4).reshape(WIDTH, 4))
    task.second.kernel.assign(np.linspace(-0.4, 0.5, 4).reshape(4, 1))
    a, b = np.asarray(task.first.kernel, np.float64), np.asarray(task.second.kernel, np.float64)
    task.build = lambda: None  # type: ignore[method-assign]
    trained = train(task, epochs=1, batch_size=44, accumulate_steps=parts)
    x, y = task.features.astype(np.float64), task.targets.astype(np.float64)
    error = 2 * ((x @ a @ b)[:, 0] - y)[:, None] / len(x)
    np.testing.assert_allclose(trained[0], a - 0.1 * (x.T @ error @ b.T + 0.05 * np.sign(a)), atol=1e-5)
    np.testing.assert_allclose(trained[1], b - 0.01 * ((x @ a).T @ error), atol=1e-5)


def test_micro_batches_give_the_numbers_of_the_whole_batch() -> None:
    whole = train(LibraryTask())
    for parts in (2, 3, 20):
        assert apart(train(LibraryTask(), accumulate_steps=parts), whole) < 1e-5, parts
    assert apart(train(LibraryTask(), accumulate_steps=3, clip_norm=0.5), whole) > 1e-3


def test_clipping_limits_the_global_norm_of_an_update() -> None:
    class Sgd(LibraryTask):
        def build(self) -> None:
            super().build()
            self.optimizer = keras.optimizers.SGD(1.0)
            self.optimizer.build(self.model.trainable_variables)
            self.before = [np.asarray(variable) for variable in self.model.trainable_variables]

    task = Sgd()
    after = train(task, epochs=1, batch_size=44, clip_norm=0.25)
    moved = [a - b for a, b in zip(after, task.before, strict=True)]
    assert np.sqrt(sum((m**2).sum() for m in moved)) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("change", [{"clip_norm": 1.0}, {"accumulate_steps": 2}])
def test_a_step_that_updates_by_itself_cannot_be_told_how(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"updates its variables by itself.*minimize or apply_gradients"):
        train(ToyTask(), **change)


def test_updating_a_variable_twice_in_a_step_needs_whole_batches() -> None:
    class Twice(LibraryTask):
        def train_step(self, batch: Any) -> Mapping[str, Any]:
            super().train_step(batch)
            return super().train_step(batch)

    train(Twice(), epochs=1)
    with pytest.raises(ConfigurationError, match="updates a variable twice"):
        train(Twice(), accumulate_steps=2)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_computes_small_and_keeps_weights_whole(precision: str) -> None:
    class Mixed(LibraryTask):
        def build(self) -> None:
            super().build()
            self.optimizer = loss_scaled(keras.optimizers.Adam(0.05))
            self.optimizer.build(self.model.trainable_variables)

        def losses(self, batch: Any) -> Any:
            outputs = self.model(batch[0], training=False)
            assert outputs.dtype == precision.removeprefix("mixed_")
            return tf.square(tf.cast(outputs[:, 0], tf.float32) - batch[1])

        def eval_step(self, batch: Any) -> Mapping[str, Any]:
            return {"loss": self.losses(batch)}

    task = Mixed()
    result = Trainer(task, replace(OPTIONS, epochs=8, precision=precision, clip_norm=5.0)).run()  # type: ignore[arg-type]
    assert result.history[-1].train["loss"] < 0.3 * result.history[0].train["loss"]
    assert {variable.dtype for variable in task.model.variables if "seed" not in variable.path} == {"float32"}
    assert isinstance(task.optimizer, keras.optimizers.LossScaleOptimizer) == (precision == "mixed_float16")
    assert keras.config.dtype_policy().name == "float32"
