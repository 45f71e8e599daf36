"""Runs that are measured in steps: their length, their evaluations, their logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training import EarlyStop, Evaluated, Event, Goal, InputRequest, StepsDone, Trainer, TrainerOptions
from tests.training.toy_task import STEPS_PER_EPOCH, ToyTask, same_values

OPTIONS = TrainerOptions(max_steps=15, eval_every_steps=4, batch_size=8, steps_per_loop=3, seed=11)


class Endless(ToyTask):
    """One epoch without an end."""

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        whole = tf.data.Dataset.from_tensor_slices((self.features, self.targets))
        return whole.repeat().batch(request.batch_size).skip(request.skip_batches)


class _Stop(Exception):
    pass


def test_a_run_ends_in_the_middle_of_an_epoch_and_evaluates_where_it_is_told() -> None:
    events: list[Event] = []
    task = ToyTask()
    result = Trainer(task, OPTIONS, [events.append]).run()
    assert result.step == 15
    assert [(entry.step, entry.epoch) for entry in result.history] == [(4, 1), (8, 2), (12, 2), (15, 3)]
    assert {event.max_steps for event in events} == {15}
    # The same steps as those of epochs.
    epochs = ToyTask()
    by_epoch = Trainer(epochs, replace(OPTIONS, max_steps=None, epochs=2, eval_every_steps=None)).run()
    steps = ToyTask()
    by_step = Trainer(steps, replace(OPTIONS, max_steps=2 * STEPS_PER_EPOCH, eval_every_steps=STEPS_PER_EPOCH)).run()
    assert same_values(epochs, steps)
    assert [(e.train, e.evaluation) for e in by_epoch.history] == [(e.train, e.evaluation) for e in by_step.history]


@pytest.mark.parametrize("kind", [ToyTask, Endless])
def test_a_run_that_was_stopped_ends_like_one_that_was_not(kind: type[ToyTask], tmp_path: Path) -> None:
    whole_task, task = kind(), kind()
    whole = Trainer(whole_task, OPTIONS).run()
    options = replace(OPTIONS, model_dir=tmp_path, checkpoint_every_steps=5)

    def stop(event: Event) -> None:
        if isinstance(event, StepsDone) and event.step > 10:
            raise _Stop

    with pytest.raises(_Stop):
        Trainer(kind(), options, [stop]).run()
    resumed = Trainer(task, options).run()
    assert resumed.resumed_from == 10
    numbers = [(entry.step, entry.train, entry.evaluation) for entry in resumed.history]
    assert numbers == [(entry.step, entry.train, entry.evaluation) for entry in whole.history]
    assert same_values(task, whole_task)


def test_endless_data_needs_max_steps() -> None:
    with pytest.raises(ConfigurationError, match="is endless; .*max_steps"):
        Trainer(Endless(), replace(OPTIONS, max_steps=None, epochs=1)).run()
    losses = [entry.evaluation["loss"] for entry in Trainer(Endless(), replace(OPTIONS, max_steps=80)).run().history]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("loop", ["step", "epoch"])
def test_the_other_loop_modes_count_steps_too(loop: Any) -> None:
    result = Trainer(ToyTask(), replace(OPTIONS, loop=loop)).run()
    assert [entry.step for entry in result.history] == [4, 8, 12, 15]


def test_events_come_as_often_as_is_asked_for() -> None:
    events: list[Event] = []
    Trainer(ToyTask(), replace(OPTIONS, log_every_steps=5, eval_every_steps=None), [events.append]).run()
    told = [(event.step, event.steps) for event in events if isinstance(event, StepsDone)]
    # At the end of an epoch, too: its averages end there.
    assert told == [(5, 5), (6, 1), (10, 4), (12, 2), (15, 3)]


def test_an_evaluation_has_a_budget() -> None:
    class Counted(ToyTask):
        seen = 0

        def eval_step(self, batch: Any) -> Any:
            return {**super().eval_step(batch), "size": tf.ones_like(batch[1])}

        def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
            return super().eval_dataset(request).repeat()

    task = Counted()
    result = Trainer(task, replace(OPTIONS, eval_batch_size=10, eval_steps=2)).run()
    predicted = np.asarray(task.model(task.features[:20], training=False))[:, 0]
    expected = np.mean((predicted - task.targets[:20]) ** 2)
    assert result.history[-1].evaluation["loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ConfigurationError, match="is endless; .*eval_steps"):
        Trainer(Counted(), OPTIONS).run()


def test_a_run_is_ended_after_any_evaluation() -> None:
    seen: list[Event] = []
    stop = EarlyStop(Goal(metric="test_loss"), patience=1, min_delta=1e6)
    result = Trainer(ToyTask(), OPTIONS, [stop, seen.append]).run()
    assert result.step == 8
    assert [event.step for event in seen if isinstance(event, Evaluated)] == [4, 8]


def test_options_may_be_given_one_by_one(tmp_path: Path) -> None:
    result = Trainer(ToyTask(), max_steps=3, batch_size=8, model_dir=str(tmp_path)).run()
    assert (result.step, result.checkpoint) == (3, tmp_path / "checkpoints" / "step-000000003")
    # The one takes the place of the other.
    assert Trainer(ToyTask(), TrainerOptions(epochs=5, batch_size=8), max_steps=2).run().step == 2
    with pytest.raises(ConfigurationError, match="no field 'max_step'; did you mean 'max_steps'"):
        Trainer(ToyTask(), max_step=3)
    with pytest.raises(ConfigurationError, match="epochs is 1 and max_steps is 2"):
        TrainerOptions(epochs=1, max_steps=2)
