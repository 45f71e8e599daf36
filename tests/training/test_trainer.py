from __future__ import annotations

import io
import json
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import CheckpointError, ConfigurationError, NonFiniteLossError, TrainingError
from modelyard.training import (
    Evaluated,
    Event,
    InputRequest,
    JsonlLog,
    ProgressBar,
    RunEnded,
    StepsDone,
    Trainer,
    TrainerOptions,
    TrainResult,
    restore,
)
from tests.training.toy_task import EXAMPLES, STEPS_PER_EPOCH, ToyTask, same_values

OPTIONS = TrainerOptions(epochs=3, batch_size=8, steps_per_loop=4, seed=11)


def numbers(result: TrainResult) -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
    return [(epoch.train, epoch.evaluation) for epoch in result.history]


class _Stop(Exception):
    pass


class StopAt:
    """Action that ends a run from inside, as a crash would, after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepsDone) and event.step >= self.step:
            raise _Stop


@pytest.fixture(scope="module")
def whole() -> tuple[ToyTask, TrainResult]:
    """A run that nothing stopped; tests only read it."""
    task = ToyTask()
    return task, Trainer(task, OPTIONS).run()


def test_it_trains_and_reports_every_epoch() -> None:
    events: list[Any] = []
    task = ToyTask()
    result = Trainer(task, replace(OPTIONS, epochs=15), [events.append]).run()
    assert [epoch.epoch for epoch in result.history] == list(range(1, 16))
    assert result.step == 15 * STEPS_PER_EPOCH
    assert result.history[-1].evaluation["loss"] < 0.3 * result.history[0].evaluation["loss"]
    assert all(epoch.examples_per_second == EXAMPLES / epoch.seconds for epoch in result.history)
    assert result.metrics == {
        "loss": result.history[-1].train["loss"],
        "test_loss": result.history[-1].evaluation["loss"],
    }
    assert (result.task.name, result.data, result.resumed_from, result.checkpoint) == (
        "toy", "44 made-up examples", None, None,
    )  # fmt: skip
    assert [event.name for event in events[:4]] == ["start", "steps", "steps", "evaluation"]
    assert [event.step for event in events[:4]] == [0, 4, 6, 6]
    assert (events[-1].name, events[-1].reason) == ("stop", "finished")


def test_the_last_evaluation_is_of_the_final_weights(whole: tuple[ToyTask, TrainResult]) -> None:
    task, result = whole
    predicted = np.asarray(task.model(task.features, training=False))[:, 0]
    assert result.history[-1].evaluation["loss"] == pytest.approx(np.mean((predicted - task.targets) ** 2), rel=1e-5)


def test_the_same_seed_gives_the_same_numbers_whatever_the_loop(whole: tuple[ToyTask, TrainResult]) -> None:
    (first, one), second = whole, ToyTask()
    two = Trainer(second, replace(OPTIONS, steps_per_loop=1)).run()
    assert numbers(one) == numbers(two)
    assert same_values(first, second)


def test_another_seed_gives_other_numbers(whole: tuple[ToyTask, TrainResult]) -> None:
    assert numbers(whole[1]) != numbers(Trainer(ToyTask(), replace(OPTIONS, seed=12)).run())


def test_another_seed_is_one_of_the_input_and_of_the_weights() -> None:
    """Each alone gives other numbers."""

    class Noting(ToyTask):
        def __init__(self) -> None:
            super().__init__()
            self.seeds, self.first = set[int](), list[Any]()

        def build(self) -> None:
            super().build()
            self.first = [np.asarray(value) for value in self.model.trainable_variables]

        def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
            self.seeds.add(request.seed)
            return super().train_dataset(request)

    one, same, other = Noting(), Noting(), Noting()
    for task, seed in ((one, 11), (same, 11), (other, 12)):
        Trainer(task, replace(OPTIONS, epochs=1, seed=seed)).run()
        assert task.seeds == {seed}
    assert all(np.array_equal(a, b) for a, b in zip(one.first, same.first, strict=True))
    assert not np.array_equal(one.first[0], other.first[0])


@pytest.mark.parametrize("stop", [1, 6, 9, 17])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(
    stop: int, whole: tuple[ToyTask, TrainResult], tmp_path: Path
) -> None:
    task = ToyTask()
    options = replace(OPTIONS, model_dir=tmp_path, checkpoint_every_steps=3)
    with pytest.raises(_Stop):
        Trainer(ToyTask(), options, [StopAt(stop)]).run()
    resumed = Trainer(task, options).run()
    assert numbers(resumed) == numbers(whole[1])
    assert same_values(task, whole[0])
    # What StopAt interrupts is a step whose checkpoint is not written yet.
    last_saved = max((step for step in range(0, stop) if step % 3 == 0), default=0)
    assert resumed.resumed_from == (last_saved or None)


def test_more_epochs_go_on_from_the_end(whole: tuple[ToyTask, TrainResult], tmp_path: Path) -> None:
    options = replace(OPTIONS, model_dir=tmp_path)
    Trainer(ToyTask(), replace(options, epochs=2)).run()
    resumed = Trainer(ToyTask(), options).run()
    assert resumed.resumed_from == 2 * STEPS_PER_EPOCH
    assert numbers(resumed) == numbers(whole[1])
    again = Trainer(ToyTask(), options).run()
    assert again.resumed_from == again.step == 3 * STEPS_PER_EPOCH
    assert numbers(again) == numbers(whole[1])


def test_restore_gives_the_trained_weights(tmp_path: Path) -> None:
    trained, fresh = ToyTask(), ToyTask()
    result = Trainer(trained, replace(OPTIONS, model_dir=tmp_path)).run()
    restored = restore(tmp_path, fresh)
    assert same_values(trained, fresh)
    assert numbers(restored) == numbers(result)
    assert restored.checkpoint == result.checkpoint


def test_restore_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        restore(tmp_path, ToyTask())


def test_ctrl_c_stops_after_a_whole_loop_with_a_checkpoint(whole: tuple[ToyTask, TrainResult], tmp_path: Path) -> None:
    events: list[Any] = []

    def press(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepsDone) and event.step == 8:
            signal.raise_signal(signal.SIGINT)

    options = replace(OPTIONS, model_dir=tmp_path, steps_per_loop=2)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Trainer(ToyTask(), options, [press]).run()
    assert signal.getsignal(signal.SIGINT) is before
    assert (events[-1].name, events[-1].reason, events[-1].step) == ("stop", "interrupted", 8)
    assert events[-1].checkpoint == tmp_path / "checkpoints" / "step-000000008"
    resumed = Trainer(ToyTask(), options).run()
    assert resumed.resumed_from == 8
    assert numbers(resumed) == numbers(whole[1])


@pytest.mark.parametrize("moment", [Evaluated, RunEnded])
def test_ctrl_c_after_the_last_step_does_not_let_the_caller_go_on(moment: type[Event], tmp_path: Path) -> None:
    def press(event: Event) -> None:
        if isinstance(event, moment) and event.epoch == 3:
            signal.raise_signal(signal.SIGINT)

    options = replace(OPTIONS, model_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        Trainer(ToyTask(), options, [press]).run()
    assert Trainer(ToyTask(), options).run().resumed_from == 3 * STEPS_PER_EPOCH


def test_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    def press(event: Event) -> None:
        if isinstance(event, StepsDone):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Trainer(ToyTask(), replace(OPTIONS, model_dir=tmp_path), [press]).run()
    assert not (tmp_path / "checkpoints").exists()


def test_a_loss_that_is_not_finite_names_the_step_and_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Poisoned(ToyTask):
        def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
            self.targets[:] = np.nan if request.epoch else self.targets
            return super().train_dataset(request)

    with pytest.raises(NonFiniteLossError) as caught:
        Trainer(Poisoned(), replace(OPTIONS, model_dir=tmp_path)).run()
    message = caught.value.message
    assert "is nan at step 7 (epoch 2, step 1 of 6)" in message
    assert str(tmp_path / "checkpoints" / "step-000000006") in message
    with pytest.raises(NonFiniteLossError, match="There is no checkpoint to go back to"):
        task = Poisoned()
        task.features[:] = np.inf
        Trainer(task, OPTIONS).run()


def test_an_evaluation_loss_that_is_not_finite_is_an_error_and_no_checkpoint(tmp_path: Path) -> None:
    class BadEval(ToyTask):
        def eval_step(self, batch: Any) -> Mapping[str, Any]:
            return {"loss": super().eval_step(batch)["loss"] * np.inf}

    with pytest.raises(NonFiniteLossError, match="evaluation loss of task 'toy' is inf after step 6"):
        Trainer(BadEval(), replace(OPTIONS, model_dir=tmp_path)).run()
    assert not (tmp_path / "checkpoints").exists()


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    class Exploding(ToyTask):
        def train_step(self, batch: Any) -> Mapping[str, Any]:
            values = super().train_step(batch)
            self.model.trainable_variables[0].assign(self.model.trainable_variables[0] * np.inf)
            return values

    options = replace(OPTIONS, model_dir=tmp_path, checkpoint_every_steps=1, steps_per_loop=1)
    with pytest.raises(NonFiniteLossError, match="weights of task 'toy' are no longer finite after step 1"):
        Trainer(Exploding(), options).run()
    assert not (tmp_path / "checkpoints").exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one epoch; to be refused changes nothing in it."""
    folder = tmp_path_factory.mktemp("saved")
    Trainer(ToyTask(), replace(OPTIONS, epochs=1, model_dir=folder)).run()
    return folder


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 12}, "is of a run with seed 11; this one has 12"),
        ({"batch_size": 4}, "is of a run with batch_size 8; this one has 4. Use the same value to go on"),
        ({"loop": "epoch"}, "with another loop than epoch; this one has the loop epoch. Use the same loop to go on"),
    ],
)
def test_a_checkpoint_of_other_options_is_an_error(changed: dict[str, Any], message: str, saved: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        Trainer(ToyTask(), replace(OPTIONS, epochs=1, model_dir=saved, **changed)).run()


def test_a_checkpoint_of_another_task_is_an_error(saved: Path) -> None:
    class Other(ToyTask):
        name = "other"

    with pytest.raises(CheckpointError, match="is of task 'toy'; expected one of 'other'"):
        Trainer(Other(), replace(OPTIONS, epochs=1, model_dir=saved)).run()
    with pytest.raises(CheckpointError, match="is of task 'toy'"):
        restore(saved, Other())


@pytest.mark.parametrize("model", [{"units": 7}, {"layers": 2}, {"layers": 0}], ids=["wider", "deeper", "shallower"])
def test_a_checkpoint_of_another_model_is_an_error(model: dict[str, int], saved: Path) -> None:
    with pytest.raises(CheckpointError, match="does not fit the task"):
        Trainer(ToyTask(**model), replace(OPTIONS, epochs=1, model_dir=saved)).run()


def test_a_damaged_checkpoint_is_an_error_and_not_worked_around(tmp_path: Path) -> None:
    options = replace(OPTIONS, epochs=2, model_dir=tmp_path)
    result = Trainer(ToyTask(), options).run()
    for data in (result.checkpoint or tmp_path).glob("variables.data-*"):
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 0xFF
        data.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match="is damaged: .*go on from step-000000006"):
        Trainer(ToyTask(), options).run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda dataset: dataset.repeat(), "is endless"),
        (lambda dataset: dataset.filter(lambda *batch: True), "is of unknown length"),
        (lambda dataset: dataset.take(0), "is empty"),
    ],
    ids=["endless", "unknown", "empty"],
)
def test_an_input_of_no_known_length_is_an_error(change: Any, message: str) -> None:
    class Odd(ToyTask):
        def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
            return change(super().train_dataset(request))

    with pytest.raises(ConfigurationError, match=f"train_dataset of task 'toy' {message}"):
        Trainer(Odd(), OPTIONS).run()


def test_an_input_that_cannot_go_on_in_the_middle_is_an_error(tmp_path: Path) -> None:
    class Forgetful(ToyTask):
        def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
            return super().train_dataset(replace(request, skip_batches=0))

    options = replace(OPTIONS, model_dir=tmp_path, checkpoint_every_steps=2)
    with pytest.raises(_Stop):
        Trainer(Forgetful(), options, [StopAt(4)]).run()
    with pytest.raises(ConfigurationError, match="gave 6 batches for epoch 1 with skip_batches=2; expected 4"):
        Trainer(Forgetful(), options).run()


def test_a_step_that_creates_variables_is_an_error() -> None:
    class Late(ToyTask):
        def build(self) -> None:
            super().build()
            # Of two, nobody can tell whose variables they have.
            self.other, self.optimizer = self.optimizer, keras.optimizers.Adam(0.01)

    with pytest.raises(ConfigurationError, match=r"train_step of task 'toy' created \d+ variables"):
        Trainer(Late(), OPTIONS).run()


def test_a_step_without_a_loss_is_an_error() -> None:
    class Lossless(ToyTask):
        def train_step(self, batch: Any) -> Mapping[str, Any]:
            return {"error": super().train_step(batch)["loss"]}

    with pytest.raises(ConfigurationError, match=r"train_step of task 'toy' returned \['error'\]"):
        Trainer(Lossless(), OPTIONS).run()


def test_an_op_that_fails_is_an_error() -> None:
    class Broken(ToyTask):
        def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
            checked = (
                super().train_dataset(request).map(lambda x, y: (tf.debugging.check_numerics(x / 0.0, "bad input"), y))
            )
            return checked.apply(tf.data.experimental.assert_cardinality(STEPS_PER_EPOCH))

    with pytest.raises(TrainingError, match="train_step of task 'toy' failed while it ran: .*bad input"):
        Trainer(Broken(), OPTIONS).run()


def test_what_an_action_raises_ends_the_run_and_the_others_hear_of_it() -> None:
    events: list[Any] = []
    with pytest.raises(_Stop):
        Trainer(ToyTask(), OPTIONS, [events.append, StopAt(8)]).run()
    assert (events[-1].name, events[-1].reason, events[-1].step) == ("stop", "failed", 10)


def test_a_run_that_goes_on_says_what_the_checkpoint_overrules(tmp_path: Path) -> None:
    options = replace(OPTIONS, model_dir=tmp_path)
    Trainer(ToyTask(learning_rate=0.05), replace(options, epochs=1)).run()
    events: list[Any] = []
    task, screen = ToyTask(learning_rate=0.01), io.StringIO()
    Trainer(task, options, [events.append, ProgressBar(stream=screen), JsonlLog(tmp_path / "log.jsonl")]).run()
    note = (
        f"The learning rate of 'optimizer' is 0.05, from the checkpoint step-{STEPS_PER_EPOCH:09d}; 0.01 is not used. "
        f"To use it, begin another run with these weights: --model-dir NEW --warm-start {tmp_path}."
    )
    changed = "The task's argument learning_rate was 0.05 and is 0.01 now.", "The option epochs was 1 and is 3 now."
    assert events[0].notes == (*changed, note)
    assert note in screen.getvalue().splitlines()
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])["notes"] == [*changed, note]
    # It is true.
    whole = ToyTask(learning_rate=0.05)
    Trainer(whole, OPTIONS).run()
    assert same_values(task, whole)
    # Nothing is said where nothing is overruled, and where there is no checkpoint.
    for other, folder in ((ToyTask(learning_rate=0.05), tmp_path), (ToyTask(learning_rate=0.01), tmp_path / "new")):
        events.clear()
        Trainer(other, replace(options, model_dir=folder, epochs=1), [events.append]).run()
        assert not [told for told in events[0].notes if "not used" in told]
    # What it advises is done.
    warm = ToyTask(learning_rate=0.01)
    Trainer(warm, replace(options, model_dir=tmp_path / "warm", epochs=1, warm_start=tmp_path), [events.append]).run()
    assert float(np.asarray(warm.optimizer.learning_rate)) == pytest.approx(0.01)
    events.clear()
    Trainer(warm, replace(options, model_dir=tmp_path / "warm", warm_start=tmp_path), [events.append]).run()
    assert events[0].notes[-1] == (
        f"The run goes on from its own checkpoint step-{STEPS_PER_EPOCH:09d}; warm_start (--warm-start) is not used."
    )
