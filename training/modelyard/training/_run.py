"""One run of a task: epochs, evaluation, checkpoints, events."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from modelyard.errors import CheckpointError, ConfigurationError, NonFiniteLossError
from modelyard.training._checkpoints import Checkpoints, RunState, list_variables
from modelyard.training._interrupt import InterruptGuard
from modelyard.training._loop import LOSS, DeviceLoop
from modelyard.training._options import TrainerOptions
from modelyard.training._results import Action, EpochResult, Event, EventKind, TrainResult
from modelyard.training._task import InputRequest, Task

_MISFIT_KEYS = ("batch_size", "seed", "steps_per_epoch")


class Run:
    """One call of :meth:`Trainer.run`."""

    def __init__(
        self,
        task: Task,
        options: TrainerOptions,
        actions: tuple[Action, ...],
        strategy: tf.distribute.Strategy | None,
    ) -> None:
        self._task = task
        self._strategy = strategy
        self._options = options
        self._actions = actions
        # The spec and the length of the input come from a data set that is never iterated.
        probe = self._train_dataset(epoch=0, skip_batches=0)
        self._input_label = f"train_dataset of task {task.name!r}"
        self._steps_per_epoch = _length(probe, self._input_label)
        folder = options.checkpoint_dir
        self._checkpoints = (
            None if folder is None else Checkpoints(folder, task.trackables(), keep=options.keep_checkpoints)
        )
        self._last: Path | None = None
        self._resumed_from: int | None = None
        restored = self._restore()
        before = len(_variables(task))
        self._train = DeviceLoop(
            task.train_step, probe.element_spec, label=f"train_step of task {task.name!r}", strategy=strategy
        )
        created = len(_variables(task)) - before
        if created:
            raise ConfigurationError(
                f"train_step of task {task.name!r} created {created} variables; build() must create them all, "
                "so that a checkpoint can be restored before the first step. For an optimizer call "
                "optimizer.build(model.trainable_variables) there."
            )
        self._eval: DeviceLoop | None = None
        self._state = restored or RunState(
            task=task.name,
            config=self._config(),
            step=0,
            epoch=0,
            epoch_step=0,
            totals=self._train.empty(),
            seconds=0.0,
            history=(),
        )

    def to_end(self, guard: InterruptGuard) -> TrainResult:
        """Runs all epochs that are left."""
        self._emit("start", message=self._task.data_description())
        reason = "failed"
        try:
            while self._state.epoch < self._options.epochs:
                self._epoch(guard)
            reason = "finished"
        except KeyboardInterrupt:
            reason = "interrupted"
            raise
        finally:
            self._emit("stop", message=reason)
        return make_result(self._state, self._task, resumed_from=self._resumed_from, checkpoint=self._last)

    def _epoch(self, guard: InterruptGuard) -> None:
        state = self._state
        dataset = self._train_dataset(epoch=state.epoch, skip_batches=state.epoch_step)
        length, left = _length(dataset, self._input_label), self._steps_per_epoch - state.epoch_step
        if length != left:
            raise ConfigurationError(
                f"{self._input_label} gave {length} batches for epoch {state.epoch + 1} with skip_batches="
                f"{state.epoch_step}; expected {left}, since its first epoch has {self._steps_per_epoch}. "
                "It must leave out the first skip_batches batches, and every epoch must have the same length."
            )
        iterator = self._train.iterate(dataset)
        while self._state.epoch_step < self._steps_per_epoch:
            self._steps(iterator, self._next_stop() - self._state.epoch_step)
            at_end = self._state.epoch_step == self._steps_per_epoch
            every = self._options.checkpoint_every_steps
            if not at_end and (guard.requested or (every is not None and self._state.step % every == 0)):
                self._save()
            if guard.requested and not at_end:
                raise KeyboardInterrupt
        self._finish_epoch()
        if guard.requested:
            # After the last epoch as well: who pressed Ctrl-C does not want what comes after training.
            raise KeyboardInterrupt

    def _next_stop(self) -> int:
        """The step of the epoch at which Python must have its turn."""
        state = self._state
        stop = min(state.epoch_step + self._options.steps_per_loop, self._steps_per_epoch)
        every = self._options.checkpoint_every_steps
        if every is not None:
            stop = min(stop, state.epoch_step + every - state.step % every)
        return stop

    def _steps(self, iterator: Any, steps: int) -> None:
        state = self._state
        began = time.perf_counter()
        outcome = self._train.run(iterator, steps, state.totals)
        seconds = time.perf_counter() - began
        if outcome.non_finite_at is not None:
            step = state.step + outcome.non_finite_at + 1
            raise NonFiniteLossError(
                f"The loss of task {self._task.name!r} is {outcome.bad_loss} at step {step} (epoch {state.epoch + 1}, "
                f"step {state.epoch_step + outcome.non_finite_at + 1} of {self._steps_per_epoch}). {self._advice()}"
            )
        self._state = replace(
            state,
            step=state.step + steps,
            epoch_step=state.epoch_step + steps,
            totals=outcome.totals,
            seconds=state.seconds + seconds,
        )
        rate = (outcome.totals.examples - state.totals.examples) / seconds
        self._emit("steps", values=outcome.totals.means(), examples_per_second=rate)

    def _finish_epoch(self) -> None:
        state = self._state
        began = time.perf_counter()
        evaluation = self._evaluate()
        if not math.isfinite(evaluation[LOSS]):
            raise NonFiniteLossError(
                f"The evaluation loss of task {self._task.name!r} is {evaluation[LOSS]} after step {state.step} "
                f"(epoch {state.epoch + 1}). {self._advice()}"
            )
        result = EpochResult(
            epoch=state.epoch + 1,
            step=state.step,
            train=state.totals.means(),
            evaluation=evaluation,
            seconds=state.seconds,
            eval_seconds=time.perf_counter() - began,
            examples_per_second=state.totals.examples / state.seconds,
        )
        self._emit("epoch", result=result)
        self._state = replace(
            state,
            epoch=state.epoch + 1,
            epoch_step=0,
            totals=self._train.empty(),
            seconds=0.0,
            history=(*state.history, result),
        )
        self._save()

    def _evaluate(self) -> Mapping[str, float]:
        label = f"eval_step of task {self._task.name!r}"
        dataset = self._task.eval_dataset(InputRequest(batch_size=self._options.eval_batch_size))
        if self._eval is None:
            self._eval = DeviceLoop(self._task.eval_step, dataset.element_spec, label=label, strategy=self._strategy)
        steps = _length(dataset, f"eval_dataset of task {self._task.name!r}")
        return self._eval.run(self._eval.iterate(dataset), steps, self._eval.empty()).totals.means()

    def _train_dataset(self, *, epoch: int, skip_batches: int) -> tf.data.Dataset:
        options = self._options
        return self._task.train_dataset(
            InputRequest(batch_size=options.batch_size, seed=options.seed, epoch=epoch, skip_batches=skip_batches)
        )

    def _config(self) -> dict[str, Any]:
        options = self._options
        return {
            "batch_size": options.batch_size,
            "seed": options.seed,
            "steps_per_epoch": self._steps_per_epoch,
            "epochs": options.epochs,
        }

    def _restore(self) -> RunState | None:
        path = self._checkpoints.latest() if self._checkpoints else None
        if self._checkpoints is None or path is None:
            return None
        self._checkpoints.clean()
        state = self._checkpoints.restore(path)
        check_task(state, self._task, path)
        config = self._config()
        for key in _MISFIT_KEYS:
            if state.config.get(key) != config[key]:
                raise CheckpointError(
                    f"The checkpoint {path} is of a run with {key} {state.config.get(key)}; this one has "
                    f"{config[key]}. Use the same value to go on with it, or another model_dir to start anew."
                )
        self._last, self._resumed_from = path, state.step
        return replace(state, config=config)

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        # The step's loss is of the weights before its update: bad weights would show one step too late.
        if not all(bool(tf.reduce_all(tf.math.is_finite(value))) for value in self._task.root.trainable_variables):
            raise NonFiniteLossError(
                f"The weights of task {self._task.name!r} are no longer finite after step {self._state.step}, "
                f"so its next loss would not be. {self._advice()}"
            )
        self._last = self._checkpoints.save(self._state)
        self._emit("checkpoint", path=self._last)

    def _advice(self) -> str:
        kept = f"The last good checkpoint is {self._last}." if self._last else "There is no checkpoint to go back to."
        return f"{kept} Lower the learning rate, or look for NaN and extreme values in the input."

    def _emit(
        self,
        kind: EventKind,
        *,
        values: Mapping[str, float] | None = None,
        examples_per_second: float | None = None,
        result: EpochResult | None = None,
        path: Path | None = None,
        message: str = "",
    ) -> None:
        event = Event(
            kind=kind,
            task=self._task.name,
            step=self._state.step,
            epoch=min(self._state.epoch + 1, self._options.epochs),
            epochs=self._options.epochs,
            steps_per_epoch=self._steps_per_epoch,
            values=values or {},
            examples_per_second=examples_per_second,
            result=result,
            path=path,
            message=message,
        )
        for action in self._actions:
            action(event)


def _variables(task: Task) -> set[int]:
    """Identities of all variables of a task."""
    return {id(variable) for trackable in task.trackables().values() for variable in list_variables(trackable)}


def _length(dataset: tf.data.Dataset, label: str) -> int:
    length = int(dataset.cardinality())
    if length < 1:
        what = {-1: "endless", -2: "of unknown length", 0: "empty"}[length]
        raise ConfigurationError(
            f"{label} is {what}; expected a finite number of batches, known beforehand. "
            "Where you know it, say so with Dataset.apply(tf.data.experimental.assert_cardinality(n))."
        )
    return length


def check_task(state: RunState, task: Task, path: Path) -> None:
    """Refuses a checkpoint of another task.

    Args:
        state: Of the checkpoint.
        task: The task that wants it.
        path: The folder of the checkpoint.

    Raises:
        CheckpointError: The names differ.
    """
    if state.task != task.name:
        raise CheckpointError(f"The checkpoint {path} is of task {state.task!r}; expected one of {task.name!r}.")


def make_result(state: RunState, task: Task, *, resumed_from: int | None, checkpoint: Path | None) -> TrainResult:
    """The outcome of a run that has come as far as a state.

    Args:
        state: Where the run is.
        task: Its task.
        resumed_from: The step it took over at, if it did.
        checkpoint: Its newest checkpoint.
    """
    return TrainResult(
        task=task.name,
        step=state.step,
        epochs=state.history,
        resumed_from=resumed_from,
        checkpoint=checkpoint,
        data=task.data_description(),
        config=state.config,
    )
