"""A loop of one's own: the same numbers as the trainer's, and as exact a resume."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import CheckpointError, ConfigurationError, NonFiniteLossError
from modelyard.training import InputRequest, Loop, Trainer, TrainerOptions, average_loss, minimize
from tests.support.devices import LOGICAL_CPUS, separate_replicas
from tests.training.toy_task import STEPS_PER_EPOCH, ToyTask, same_values


class MinimizingToy(ToyTask):
    """The toy, with its update left to the library."""

    noise = 0.05
    rate = 0.3

    def train_step(self, batch: Any) -> Any:
        features, targets = batch
        noise = tf.random.get_global_generator().normal(tf.shape(features), stddev=self.noise)
        with tf.GradientTape() as tape:
            losses = tf.square(self.model(features + noise, training=self.rate > 0)[:, 0] - targets)
            loss = average_loss(losses)
        minimize(loss, self.model.trainable_variables, optimizer=self.optimizer, tape=tape)
        return {"loss": losses}


class QuietToy(MinimizingToy):
    """Without randomness in a step, so that it may be cut."""

    noise = 0.0
    rate = 0.0


class Own:
    """Everything that a user writes around the steps of a task."""

    def __init__(self, kind: type[MinimizingToy] = MinimizingToy, **options: Any) -> None:
        self.loop = Loop(**{"seed": 11, **options})
        self.task = kind()
        with self.loop.building():
            self.task.build()
        self.loop.track(**self.task.models)
        self.train = self.loop.train_step(self.task.train_step)
        self.test = self.loop.eval_step(self.task.eval_step)
        self.losses: list[float] = []

    def run(self, epochs: int = 2, *, save_at: int = 0, stop_at: int = 0) -> list[dict[str, float]]:
        found: list[dict[str, float]] = []
        with self.loop as loop:
            loop.resume()
            for epoch in loop.epochs(epochs):
                request = InputRequest(batch_size=8, seed=11, epoch=epoch)
                for batch in loop.batches(self.task.train_dataset(request)):
                    self.losses.append(self.train(batch)["loss"])
                    if loop.state.step == save_at:
                        loop.save()
                    if loop.state.step == stop_at:
                        return found
                for batch in loop.eval_batches(self.task.eval_dataset(InputRequest(batch_size=20))):
                    self.test(batch)
                found.append({**self.train.means(), **{f"test_{k}": v for k, v in self.test.means().items()}})
        return found


def trained(kind: type[MinimizingToy] = MinimizingToy, **options: Any) -> tuple[MinimizingToy, list[dict[str, float]]]:
    task = kind()
    result = Trainer(task, TrainerOptions(epochs=2, batch_size=8, eval_batch_size=20, seed=11, **options)).run()
    return task, [entry.metrics for entry in result.history]


def test_it_does_what_the_trainer_does() -> None:
    own = Own()
    numbers = own.run()
    task, expected = trained()
    assert same_values(own.task, task)
    assert numbers == [pytest.approx(each) for each in expected]
    assert (own.loop.state.step, own.loop.state.epoch) == (2 * STEPS_PER_EPOCH, 2)


def test_accumulation_and_clipping_are_the_trainers() -> None:
    own = Own(QuietToy, accumulate_steps=3, clip_norm=0.5)
    own.run()
    assert same_values(own.task, trained(QuietToy, accumulate_steps=3, clip_norm=0.5)[0])


def test_a_loop_that_was_stopped_ends_like_one_that_was_not(tmp_path: Path) -> None:
    whole = Own()
    expected = whole.run()
    Own(model_dir=tmp_path).run(save_at=8, stop_at=10)
    again = Own(model_dir=tmp_path)
    numbers = again.run()
    assert len(again.losses) == 2 * STEPS_PER_EPOCH - 8
    assert again.losses == whole.losses[8:]
    assert numbers == expected[1:]
    assert same_values(again.task, whole.task)


def test_a_loop_that_saves_after_each_epoch_can_be_started_again(tmp_path: Path) -> None:
    """As in the docs: its last checkpoint is of the end of an epoch, of which no batch is left."""
    saved = []
    for epochs in (2, 2, 3):
        own = Own(model_dir=tmp_path)
        with own.loop as loop:
            loop.resume()
            for epoch in loop.epochs(epochs):
                request = InputRequest(batch_size=8, seed=11, epoch=epoch)
                for batch in loop.batches(own.task.train_dataset(request)):
                    own.train(batch)
                saved.append((loop.state.step, loop.save().name))
    steps = [STEPS_PER_EPOCH * each for each in (1, 2, 2, 2, 3)]
    assert saved == [(step, f"step-{step:09d}") for step in steps]
    whole = Own()
    whole.run(3)
    assert same_values(own.task, whole.task)


def test_ctrl_c_waits_for_the_step_and_saves(tmp_path: Path) -> None:
    own = Own(model_dir=tmp_path)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), own.loop as loop:
        for _ in loop.epochs(2):
            for batch in loop.batches(own.task.train_dataset(InputRequest(batch_size=8))):
                if loop.state.step == 3:
                    signal.raise_signal(signal.SIGINT)
                own.train(batch)
    assert signal.getsignal(signal.SIGINT) is before
    newest = own.loop.newest()
    assert newest is not None and newest.name == "step-000000003"


@pytest.mark.parametrize("kept", [True, False], ids=["model_dir", "no model_dir"])
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)], ids=["SIGINT", "SIGTERM"]
)
def test_what_tells_it_to_end_outside_of_a_batch_is_heard(
    number: signal.Signals, error: type[BaseException], kept: bool, tmp_path: Path
) -> None:
    own = Own(model_dir=tmp_path if kept else None)
    request = InputRequest(batch_size=8)
    begun: list[int] = []
    for ended in (1, 2):
        # Between two epochs; then, entered again, in the evaluation after the last batch of all.
        with pytest.raises(error), own.loop as loop:
            for epoch in loop.epochs(2):
                begun.append(epoch)
                for batch in loop.batches(own.task.train_dataset(request)):
                    own.train(batch)
                for batch in loop.eval_batches(own.task.eval_dataset(request)):
                    own.test(batch)
                if epoch == ended - 1:
                    signal.raise_signal(number)
        assert loop.state.step == ended * STEPS_PER_EPOCH
        newest = loop.newest()
        assert (newest.name if newest else None) == (f"step-{loop.state.step:09d}" if kept else None)
    assert begun == [0, 0, 1]


def test_ctrl_c_without_a_folder_is_ctrl_c() -> None:
    own = Own()
    with pytest.raises(KeyboardInterrupt), own.loop as loop:
        for batch in loop.batches(own.task.train_dataset(InputRequest(batch_size=8))):
            own.train(batch)
            signal.raise_signal(signal.SIGINT)
    assert own.loop.state.step == 1


def test_replicas_share_a_batch() -> None:
    separate_replicas()
    strategy = tf.distribute.MirroredStrategy(LOGICAL_CPUS[:2])
    own, alone = Own(QuietToy, strategy=strategy), Own(QuietToy)
    own.run(1)
    alone.run(1)
    for one, other in zip(own.task.values(), alone.task.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_precision_is_that_of_the_build() -> None:
    own = Own(precision="mixed_bfloat16")
    assert own.task.model.layers[0].compute_dtype == "bfloat16"
    assert keras.config.dtype_policy().name == "float32"


def test_mistakes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="LoopOptions has no field 'epochs'"):
        Loop(epochs=3)
    with pytest.raises(ConfigurationError, match="save\\(\\) needs model_dir"):
        Own().loop.save()
    own = Own(model_dir=tmp_path)
    own.task.model.trainable_variables[0].assign(own.task.model.trainable_variables[0] * np.inf)
    with pytest.raises(NonFiniteLossError, match="no longer finite after step 0"):
        own.loop.save()
    with pytest.raises(NonFiniteLossError, match="loss of train_step is (nan|inf) at step 1. The batch was: float32"):
        own.run()
    plain = Loop(clip_norm=1.0)
    updates_itself = ToyTask()
    with plain.building():
        updates_itself.build()
    step = plain.train_step(updates_itself.train_step)
    with pytest.raises(ConfigurationError, match="updates its variables by itself"):
        step(next(plain.batches(updates_itself.train_dataset(InputRequest(batch_size=8)))))
    saved = Own(model_dir=tmp_path)
    saved.loop.save()
    with saved.loop, pytest.raises(CheckpointError, match="run with seed 11; this one has 12"):
        Own(model_dir=tmp_path, seed=12).loop.resume()
    shutil.rmtree(tmp_path)
    Trainer(ToyTask(), TrainerOptions(max_steps=1, batch_size=8, model_dir=tmp_path)).run()
    with pytest.raises(CheckpointError, match="is of the task 'toy'; expected one of a Loop"):
        Own(model_dir=tmp_path).loop.resume()
