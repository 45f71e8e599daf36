from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import CheckpointError
from modelyard.training import (
    CheckpointSaved,
    EarlyStop,
    EvalResult,
    Event,
    Goal,
    RunStarted,
    Trainer,
    TrainerOptions,
    restore,
)
from modelyard.training.checkpoint import Checkpoints, RunState, list_checkpoints, read_state
from modelyard.training.loop import Totals
from tests.training.toy_task import STEPS_PER_EPOCH, ToyTask


def state(step: int) -> RunState:
    epoch = EvalResult(
        epoch=1, step=5, train={"loss": 0.1 + 0.2}, evaluation={"loss": 1 / 3}, seconds=1.5, eval_seconds=0.5,
        examples_per_second=10.0,
    )  # fmt: skip
    return RunState(
        task="toy", config={"seed": 3}, step=step, epoch=1, epoch_step=step - 5,
        totals=Totals(sums={"loss": (2 / 3, 4.0)}, examples=4), seconds=0.25, history=(epoch,),
    )  # fmt: skip


@pytest.fixture
def value() -> tf.Variable:
    return tf.Variable([1.0, 2.0])


def test_state_keeps_every_bit() -> None:
    assert RunState.from_json(state(7).to_json()) == state(7)


@pytest.mark.parametrize(
    ("change", "error"),
    [({"version": 2}, ValueError), ({"totals": None}, TypeError), ({"extra": 1}, TypeError)],
)
def test_another_state_is_refused(change: dict[str, Any], error: type[Exception]) -> None:
    document = json.loads(state(7).to_json()) | change
    with pytest.raises(error):
        RunState.from_json(json.dumps(document))


def test_a_missing_field_and_text_that_is_no_json_are_refused() -> None:
    document = json.loads(state(7).to_json())
    del document["history"]
    with pytest.raises(KeyError):
        RunState.from_json(json.dumps(document))
    with pytest.raises(ValueError, match="Expecting value"):
        RunState.from_json("nothing")


def test_what_was_saved_is_restored(tmp_path: Path, value: tf.Variable) -> None:
    folder = tmp_path / "deep" / "down"
    checkpoints = Checkpoints(folder, {"value": value}, keep=1)
    assert list_checkpoints(folder) == []
    path = checkpoints.save(state(7))
    value.assign([5.0, 6.0])
    assert list_checkpoints(folder) == [path]
    assert checkpoints.restore(path) == state(7)
    assert value.numpy().tolist() == [1.0, 2.0]


def test_only_the_newest_are_kept_by_number_not_by_name(tmp_path: Path, value: tf.Variable) -> None:
    checkpoints = Checkpoints(tmp_path, {"value": value}, keep=2)
    for step in (8, 999_999_999, 1_000_000_000):
        checkpoints.save(state(step))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-999999999", "step-1000000000"]


def test_work_in_progress_is_no_checkpoint_and_is_cleaned_up(tmp_path: Path, value: tf.Variable) -> None:
    (tmp_path / ".staging-abc").mkdir()
    (tmp_path / "step-x").mkdir()
    checkpoints = Checkpoints(tmp_path, {"value": value}, keep=2)
    assert list_checkpoints(tmp_path) == []
    checkpoints.clean()
    assert [path.name for path in tmp_path.iterdir()] == ["step-x"]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, value: tf.Variable) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written"):
        Checkpoints(tmp_path / "file", {"value": value}, keep=1).save(state(7))


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path, value: tf.Variable) -> None:
    checkpoints = Checkpoints(tmp_path, {"value": value}, keep=1)
    path = checkpoints.save(state(7))
    with pytest.raises(CheckpointError, match="step-000000007 cannot be written"):
        checkpoints.save(state(7))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("cut", [0, 10], ids=["empty", "short"])
@pytest.mark.parametrize("file", ["state.json", "variables.index", "variables.data-00000-of-00001"])
def test_a_truncated_file_is_an_error(file: str, cut: int, tmp_path: Path, value: tf.Variable) -> None:
    tf_big = tf.Variable(tf.range(100.0))
    checkpoints = Checkpoints(tmp_path, {"value": value, "big": tf_big}, keep=2)
    path = checkpoints.save(state(7))
    (path / file).write_bytes((path / file).read_bytes()[:cut])
    with pytest.raises(CheckpointError, match="is damaged: .*Remove its folder to start again"):
        checkpoints.restore(path)


@pytest.mark.parametrize("file", ["state.json", "variables.index", "variables.data-00000-of-00001"])
def test_a_missing_file_is_an_error(file: str, tmp_path: Path, value: tf.Variable) -> None:
    checkpoints = Checkpoints(tmp_path, {"value": value}, keep=2)
    checkpoints.save(state(6))
    path = checkpoints.save(state(7))
    (path / file).unlink()
    with pytest.raises(CheckpointError, match="is damaged: .*go on from step-000000006"):
        checkpoints.restore(path)


def test_the_state_of_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is damaged"):
        read_state(tmp_path / "step-000000001")


class Nested(tf.Module):
    """Variables in lists and dictionaries, one of them in two places."""

    def __init__(self) -> None:
        super().__init__()
        shared = tf.Variable(3.0)
        self.items = [tf.Variable([1.0, 2.0]), {"deep": shared}]
        self.again = shared
        self.generator = tf.random.Generator.from_seed(4)


def test_in_the_background_it_writes_what_was_there_when_it_was_asked(tmp_path: Path) -> None:
    nested = Nested()
    checkpoints = Checkpoints(tmp_path, {"nested": nested}, keep=9, background=True)
    for step in (6, 7):
        nested.again.assign(float(step))
        state_before = nested.generator.state.numpy().tolist()
        path = checkpoints.save(state(step))
        nested.again.assign(-1.0)
        nested.generator.normal([])
        assert checkpoints.wait() == path
        assert (checkpoints.wait(), checkpoints.finished()) == (None, None)
        assert checkpoints.restore(path) == state(step)
        assert (float(nested.again), nested.generator.state.numpy().tolist()) == (step, state_before)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000000006", "step-000000007"]


def test_what_fails_in_the_background_comes_out_with_the_next_call(tmp_path: Path, value: tf.Variable) -> None:
    checkpoints = Checkpoints(tmp_path, {"value": value}, keep=9, background=True)
    checkpoints.save(state(6))
    checkpoints.save(state(6))
    with pytest.raises(CheckpointError, match="step-000000006 cannot be written"):
        checkpoints.save(state(7))


def test_what_is_no_variable_cannot_be_written_in_the_background(tmp_path: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
    checkpoints = Checkpoints(tmp_path, {"table": table}, keep=9, background=True)
    checkpoints.save(state(6))
    checkpoints.save(state(7))
    with pytest.raises(CheckpointError, match="Use async_checkpoints=False"):
        checkpoints.wait()


def test_the_best_is_kept_beside_the_newest(tmp_path: Path) -> None:
    options = TrainerOptions(epochs=5, batch_size=8, model_dir=tmp_path, keep_checkpoints=1, keep_best=Goal())

    class Worsening(ToyTask):
        def eval_step(self, batch: Any) -> dict[str, Any]:
            # Best after the second epoch of 6 steps.
            return {"loss": tf.abs(tf.cast(self.optimizer.iterations, tf.float32) - 13.0)}

    task = Worsening()
    result = Trainer(task, options).run()
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-000000012", "step-000000030"]
    best = restore(tmp_path, ToyTask(), goal=Goal())
    assert (best.step, best.history) == (12, result.history[:2])
    Trainer(Worsening(), replace(options, model_dir=tmp_path / "other", keep_best=None)).run()
    with pytest.raises(CheckpointError, match="that of step 12, which was not kept"):
        restore(tmp_path / "other", ToyTask(), goal=Goal())


def test_an_evaluation_that_is_nan_is_never_the_best(tmp_path: Path) -> None:
    """As a correlation is before the first update, or a precision of no positives."""
    goal = Goal(metric="test_score", mode="max")
    options = TrainerOptions(epochs=4, batch_size=8, model_dir=tmp_path, keep_checkpoints=1, keep_best=goal)

    class Scored(ToyTask):
        scores = (np.nan, 1.0, 3.0, 2.0)

        def eval_step(self, batch: Any) -> dict[str, Any]:
            epoch = tf.cast(self.optimizer.iterations, tf.int32) // STEPS_PER_EPOCH - 1
            return {**super().eval_step(batch), "score": tf.gather(self.scores, tf.maximum(epoch, 0))}

    class Unscored(Scored):
        scores = (np.nan,) * 4

    stop = EarlyStop(goal, patience=2)
    assert len(Trainer(Scored(), options, [stop]).run().history) == 4 and not stop.should_stop
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-000000018", "step-000000024"]
    assert restore(tmp_path, ToyTask(), goal=goal).step == 18
    less = replace(goal, mode="min")
    assert less.best(restore(tmp_path, ToyTask()).history).step == 12
    assert less.is_better(9.0, np.nan) and not less.is_better(np.nan, 9.0) and not less.is_better(np.nan, np.nan)
    unscored = replace(options, model_dir=tmp_path / "unscored")
    assert len(Trainer(Unscored(), unscored, [stop]).run().history) == 3
    with pytest.raises(CheckpointError, match=r"test_score is NaN in every evaluation .* \(goal=, --best\)"):
        restore(tmp_path / "unscored", ToyTask(), goal=goal)


def test_checkpoints_by_the_clock(tmp_path: Path) -> None:
    saved: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, CheckpointSaved):
            saved.append(event.path.name)

    options = TrainerOptions(
        epochs=1, batch_size=8, steps_per_loop=2, model_dir=tmp_path, checkpoint_every_seconds=1e-6
    )
    Trainer(ToyTask(), options, [note]).run()
    assert saved == ["step-000000002", "step-000000004", "step-000000006"]
    Trainer(ToyTask(), replace(options, model_dir=tmp_path / "slow", checkpoint_every_seconds=3600.0), [note]).run()
    assert saved[3:] == ["step-000000006"]


def test_a_warm_start_takes_the_models_and_nothing_else(tmp_path: Path) -> None:
    options = TrainerOptions(epochs=1, batch_size=8, model_dir=tmp_path / "first")
    first, second = ToyTask(), ToyTask()
    source = Trainer(first, options).run()
    begun: list[Any] = []

    def look(event: Event) -> None:
        if isinstance(event, RunStarted):
            begun.extend(
                [event.step, int(second.optimizer.iterations), [v.numpy() for v in second.model.trainable_variables]]
            )

    warm = replace(options, model_dir=tmp_path / "second", warm_start=tmp_path / "first", seed=5)
    Trainer(second, warm, [look]).run()
    assert begun[:2] == [0, 0]
    assert all((a == b.numpy()).all() for a, b in zip(begun[2], first.model.trainable_variables, strict=True))
    # Its own checkpoint comes before a warm start.
    assert Trainer(ToyTask(), replace(warm, epochs=2)).run().resumed_from == source.step
    for bad, message in ((ToyTask(units=7), "does not fit the models"), (ToyTask(layers=2), "does not fit the models")):
        with pytest.raises(CheckpointError, match=message):
            Trainer(bad, replace(options, model_dir=None, warm_start=source.checkpoint)).run()
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        Trainer(ToyTask(), replace(options, model_dir=None, warm_start=tmp_path)).run()
