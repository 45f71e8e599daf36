"""Every mode of the loop, and what the options around it do, on the same small task."""

from __future__ import annotations

import functools
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError, NonFiniteLossError
from modelyard.training import (
    Evaluated,
    Event,
    InputRequest,
    ResidentData,
    RunStarted,
    Trainer,
    TrainerOptions,
    TrainResult,
    restore,
)
from modelyard.training.checkpoint import list_checkpoints
from modelyard.training.loop import LoopName
from tests.training.library_task import LibraryTask
from tests.training.test_trainer import StopAt, _Stop, numbers
from tests.training.toy_task import EXAMPLES, STEPS_PER_EPOCH, ToyTask, same_values

OPTIONS = TrainerOptions(epochs=3, batch_size=8, steps_per_loop=4, seed=11)


class Scheduled(ToyTask):
    """The toy with a learning rate that falls."""

    def build(self) -> None:
        super().build()
        self.optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 3 * STEPS_PER_EPOCH))
        self.optimizer.build(self.model.trainable_variables)


@pytest.fixture(scope="module")
def whole() -> Callable[[LoopName], TrainResult]:
    """The toy's run in a mode, from its beginning to its end."""

    @functools.cache
    def run(mode: LoopName) -> TrainResult:
        return Trainer(ToyTask(), replace(OPTIONS, loop=mode)).run()

    return run


@pytest.fixture(scope="module")
def in_a_loop() -> tuple[LibraryTask, TrainResult]:
    task = LibraryTask()
    return task, Trainer(task, OPTIONS).run()


@pytest.mark.parametrize("mode", ["eager", "step"])
def test_the_modes_give_the_same_numbers(mode: LoopName, in_a_loop: tuple[LibraryTask, TrainResult]) -> None:
    (one, expected), other = in_a_loop, LibraryTask()
    received = Trainer(other, replace(OPTIONS, loop=mode)).run()
    for a, b in zip(expected.history, received.history, strict=True):
        assert a.train["loss"] == pytest.approx(b.train["loss"], rel=1e-6)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(one.values(), other.values(), strict=True))


def test_eager_steps_run_in_python() -> None:
    seen: list[bool] = []

    class Debugged(ToyTask):
        def train_step(self, batch: Any) -> Mapping[str, Any]:
            seen.append(tf.executing_eagerly())
            return super().train_step(batch)

    Trainer(Debugged(), replace(OPTIONS, epochs=1, loop="eager")).run()
    assert seen.count(True) == STEPS_PER_EPOCH


@pytest.mark.parametrize(
    "changes",
    [{"loop": "epoch"}, {"loop": "epoch", "ema_decay": 0.9}, {"ema_decay": 0.9, "async_checkpoints": False}],
    ids=["epoch", "epoch averaged", "averaged"],
)
def test_a_run_that_was_stopped_ends_like_one_that_was_not(changes: dict[str, Any], tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)
    whole_task, task = Scheduled(), Scheduled()
    whole = Trainer(whole_task, options).run()
    kept = replace(options, model_dir=tmp_path, checkpoint_every_steps=4)
    with pytest.raises(_Stop):
        Trainer(Scheduled(), kept, [StopAt(9)]).run()
    resumed = Trainer(task, kept).run()
    assert resumed.resumed_from == 8
    assert numbers(resumed) == numbers(whole)
    assert same_values(task, whole_task)


def test_an_epoch_in_the_graph_sees_every_example_once_in_an_order_of_its_own() -> None:
    orders: list[list[float]] = []

    class Resident(ToyTask):
        def train_step(self, batch: Any) -> Mapping[str, Any]:
            tf.numpy_function(lambda x: orders[-1].extend(x.tolist()), [batch[1]], [])
            return super().train_step(batch)

        def resident_data(self, request: InputRequest) -> ResidentData:
            tensors = (tf.constant(self.features), tf.range(EXAMPLES))
            return ResidentData(
                tensors=tensors, batch_size=request.batch_size, prepare=lambda b: (b[0], tf.cast(b[1], tf.float32))
            )

    def next_epoch(event: Event) -> None:
        if isinstance(event, RunStarted | Evaluated):
            orders.append([])

    Trainer(Resident(), replace(OPTIONS, epochs=2, loop="epoch"), [next_epoch]).run()
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(EXAMPLES))
    assert orders[0] != orders[1] != sorted(orders[1])
    # What comes of another seed is another order, and of the same one the same.
    before = orders[:2]
    for seed, same in ((OPTIONS.seed, True), (12, False)):
        orders.clear()
        Trainer(Resident(), replace(OPTIONS, epochs=2, loop="epoch", seed=seed), [next_epoch]).run()
        assert sorted(orders[0]) == list(range(EXAMPLES))
        assert [one == other for one, other in zip(orders, before, strict=False)] == [same, same]


def test_resident_tensors_must_be_as_long_as_each_other() -> None:
    with pytest.raises(ConfigurationError, match=r"tensors of \[3, 4\] examples"):
        ResidentData(tensors=(tf.zeros([3]), tf.zeros([4])), batch_size=2)


class Gated(ToyTask):
    """After its first step it waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.steps = 0

    def _wait(self, values: Any) -> Any:
        self.steps += 1
        if self.steps > 1:
            assert self.gate.wait(30), "nothing was streamed before the loop's end"
        return values

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        targets = tf.ensure_shape(tf.numpy_function(self._wait, [batch[1]], tf.float32), batch[1].shape)
        return super().train_step((batch[0], targets))


@pytest.mark.parametrize("mode", ["loop", "epoch"])
def test_values_are_streamed_while_the_device_loop_runs(mode: LoopName) -> None:
    task = Gated()
    events: list[str] = []
    options = replace(OPTIONS, steps_per_loop=100, epochs=1, loop=mode)
    stream = Trainer(task, options, [lambda event: events.append(event.name)]).stream()
    step, values = next(stream)
    assert (step, list(values), events) == (1, ["loss"], ["start"])
    task.gate.set()
    assert [step for step, _ in stream] == list(range(2, STEPS_PER_EPOCH + 1))
    assert events == ["start", "steps", "evaluation", "stop"]


@pytest.mark.parametrize("mode", ["eager", "step", "loop", "epoch"])
def test_streaming_changes_nothing_and_ends_with_the_result(
    mode: LoopName, whole: Callable[[LoopName], TrainResult]
) -> None:
    stream = Trainer(ToyTask(), replace(OPTIONS, loop=mode)).stream()
    received: list[tuple[int, dict[str, float]]] = []
    while True:
        try:
            received.append(next(stream))
        except StopIteration as end:
            result = end.value
            break
    assert numbers(result) == numbers(whole(mode))
    assert [step for step, _ in received] == list(range(1, 3 * STEPS_PER_EPOCH + 1))
    sizes = np.array([8, 8, 8, 8, 8, 4])
    losses = np.array([values["loss"] for _, values in received[:STEPS_PER_EPOCH]])
    assert (losses * sizes).sum() / EXAMPLES == pytest.approx(result.history[0].train["loss"], rel=1e-9)


def test_a_consumer_that_has_had_enough_leaves_a_checkpoint(
    tmp_path: Path, whole: Callable[[LoopName], TrainResult]
) -> None:
    events: list[Any] = []
    options = replace(OPTIONS, model_dir=tmp_path, steps_per_loop=100)
    for step, _ in Trainer(ToyTask(), options, [events.append]).stream():
        if step == 3:
            break
    assert (events[-1].name, events[-1].reason) == ("stop", "interrupted")
    resumed = Trainer(ToyTask(), options).run()
    assert resumed.resumed_from is not None and resumed.resumed_from >= 3
    assert numbers(resumed) == numbers(whole(OPTIONS.loop))


def test_the_average_of_the_weights_is_what_is_evaluated_and_restored(
    tmp_path: Path, in_a_loop: tuple[LibraryTask, TrainResult]
) -> None:
    decay = 0.5
    averages: list[Any] = []
    last: list[Any] = []

    class Followed(LibraryTask):
        def train_step(self, batch: Any) -> Mapping[str, Any]:
            values = super().train_step(batch)
            tf.numpy_function(self.follow, [tf.convert_to_tensor(v) for v in self.model.trainable_variables], [])
            return values

        def build(self) -> None:
            super().build()
            averages[:] = [np.asarray(v, np.float64) for v in self.model.trainable_variables]
            self.done = 0

        def follow(self, *now: Any) -> None:
            keep = min(decay, (1 + self.done) / (10 + self.done))
            self.done += 1
            last[:] = now
            averages[:] = [keep * old + (1 - keep) * new for old, new in zip(averages, now, strict=True)]

    options = replace(OPTIONS, ema_decay=decay, model_dir=tmp_path)
    task, restored = Followed(), LibraryTask()
    result = Trainer(task, options).run()
    expected = list(averages)
    # The weights themselves went on from evaluation to evaluation as without an average.
    for weight, other in zip(last, in_a_loop[0].model.trainable_variables, strict=True):
        np.testing.assert_allclose(weight, np.asarray(other), atol=1e-6)
    restore(tmp_path, restored)
    for one in (task, restored):
        values = [np.asarray(v) for v in one.model.trainable_variables]
        assert max(np.abs(a - b).max() for a, b in zip(values, expected, strict=True)) < 1e-5
    predicted = np.asarray(restored.model(task.features, training=False))[:, 0]
    assert result.history[-1].evaluation["loss"] == pytest.approx(np.mean((predicted - task.targets) ** 2), rel=1e-4)


@pytest.mark.parametrize("mode", ["loop", "epoch"])
def test_sigterm_in_a_loop_ends_after_its_current_step_with_a_checkpoint(
    mode: LoopName, tmp_path: Path, whole: Callable[[LoopName], TrainResult]
) -> None:
    events: list[Any] = []

    class Preempted(Gated):
        def _wait(self, values: Any) -> Any:
            self.steps += 1
            if self.steps == 2:
                # From the loop's own thread; the main one, which waits for the loop, handles it.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                time.sleep(0.5)
            return values

    task = Preempted()
    options = replace(OPTIONS, model_dir=tmp_path, steps_per_loop=100, loop=mode)
    trainer = Trainer(task, options, [events.append])
    with pytest.raises(SystemExit) as caught:
        trainer.run()
    assert caught.value.code == 143
    assert (events[-1].name, events[-1].reason, events[-1].step) == ("stop", "terminated", 2)
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-000000002"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    resumed = Trainer(ToyTask(), options).run()
    assert resumed.resumed_from == 2
    assert numbers(resumed) == numbers(whole(mode))


def test_a_loss_that_is_not_finite_comes_with_its_batch() -> None:
    class Poisoned(ToyTask):
        def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
            self.targets[7] = np.nan
            return super().train_dataset(request)

    for mode in ("loop", "epoch"):
        with pytest.raises(NonFiniteLossError, match=r"The batch was: float32 \[\d, 6\] from .*, 1 NaN, 0 infinite\. "):
            Trainer(Poisoned(), replace(OPTIONS, loop=mode)).run()


def test_an_input_of_another_shape_than_the_models_is_an_error_that_names_both() -> None:
    class Narrow(ToyTask):
        def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
            return super().train_dataset(request).map(lambda x, y: (x[:, :4], y))

    with pytest.raises(ConfigurationError) as caught:
        Trainer(Narrow(), OPTIONS).run()
    message = caught.value.message
    assert "train_step of task 'toy' cannot run on its input" in message
    assert "batches of float32 [?, 4], float32 [?]" in message
    assert "takes float32 [?, 6]" in message
    # The error alone, without the lines of code that AutoGraph quotes before it.
    assert re.search(r"What failed: \w+Error: ", message), message


class TwoModels(LibraryTask):
    """Serves one of its models; the other is a module that holds a Keras layer and a variable."""

    def __init__(self, *, spoil_at: int | None = None) -> None:
        super().__init__()
        self.spoil_at = spoil_at

    def build(self) -> None:
        super().build()
        self.critic = tf.Module()
        self.critic.layer = keras.layers.Dense(1)
        self.critic.layer.build((None, 6))
        self.critic.scale = tf.Variable(1.0)
        self.steps = tf.Variable(0, trainable=False)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        kernel, scale = self.critic.layer.kernel, self.critic.scale
        kernel.assign(kernel + 1.0)
        spoilt = tf.constant(np.inf if self.spoil_at else 0.0)
        scale.assign_add(tf.where(tf.equal(self.steps.assign_add(1), self.spoil_at or 0), spoilt, 1.0))
        return super().train_step(batch)


def test_the_average_is_of_all_models() -> None:
    # One step: a tenth of the first weights is left, the rest is of the new ones.
    task = TwoModels()
    Trainer(task, replace(OPTIONS, epochs=1, batch_size=EXAMPLES, ema_decay=0.9)).run()
    first = TwoModels()
    keras.utils.set_random_seed(OPTIONS.seed)
    first.build()
    np.testing.assert_allclose(
        np.asarray(task.critic.layer.kernel), np.asarray(first.critic.layer.kernel) + 0.9, rtol=1e-5
    )
    assert float(task.critic.scale) == pytest.approx(1.9)


def test_no_checkpoint_has_weights_that_are_not_finite_in_any_model(tmp_path: Path) -> None:
    options = replace(OPTIONS, model_dir=tmp_path, checkpoint_every_steps=4)
    with pytest.raises(NonFiniteLossError, match="weights of task 'toy' are no longer finite after step 8"):
        Trainer(TwoModels(spoil_at=8), options).run()
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-000000004", "step-000000006"]
    # A run that keeps no checkpoints could be exported with them.
    with pytest.raises(NonFiniteLossError, match="are no longer finite after step"):
        Trainer(TwoModels(spoil_at=8), OPTIONS).run()


class Counted(LibraryTask):
    """Counts its steps in a variable that nobody has called untrainable."""

    def build(self) -> None:
        super().build()
        self.steps = tf.Variable(0, dtype=tf.int64)

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        self.steps.assign_add(1)
        return super().train_step(batch)


@pytest.mark.parametrize("decay", [None, 0.9])
def test_a_counter_is_kept_and_is_no_weight(decay: float | None, tmp_path: Path) -> None:
    task, restored = Counted(), Counted()
    result = Trainer(task, replace(OPTIONS, model_dir=tmp_path, ema_decay=decay)).run()
    restore(tmp_path, restored)
    assert int(task.steps) == int(restored.steps) == len(result.history) * STEPS_PER_EPOCH
    assert result.history[-1].evaluation["loss"] < result.history[0].evaluation["loss"]
