"""One run of a task: epochs, evaluation, checkpoints, events."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.errors import CheckpointError, NonFiniteLossError, TrainingError
from modelyard.training.checkpoint import RunState, find_checkpoint, list_weights, read_state, restore_models
from modelyard.training.loop import LOSS, Loop, Outcome, WeightAverage, describe_spec
from modelyard.training.run._evaluate import Evaluator, make_step_loop
from modelyard.training.run._identity import read_record, record_run, write_record
from modelyard.training.run._input import TrainInput
from modelyard.training.run._interrupt import InterruptGuard
from modelyard.training.run._options import TrainerOptions
from modelyard.training.run._results import (
    Action,
    CheckpointSaved,
    EndReason,
    EvalResult,
    Evaluated,
    Event,
    RunEnded,
    RunStarted,
    StepsDone,
    Stops,
    TrainResult,
    Watches,
)
from modelyard.training.run._run_state import (
    check_config,
    check_task,
    learning_rates,
    make_result,
    overruled,
    run_config,
    tracked,
)
from modelyard.training.user import Task, describe_batch


class Run:
    """One call of :meth:`Trainer.run`, or of :meth:`Trainer.stream`."""

    def __init__(
        self,
        task: Task,
        options: TrainerOptions,
        loop: Loop,
        actions: tuple[Action, ...],
        *,
        streaming: bool = False,
    ) -> None:
        self._task = task
        self._loop = loop
        self._options = options
        self._actions = actions
        self._streaming = streaming
        self._running: Future[Outcome] | None = None
        self._began = 0.0
        self._peers = loop.peers
        self._input = TrainInput(task, options, self._peers)
        self._max_steps = self._input.total_steps
        self._values: SimpleQueue[tuple[int, npt.NDArray[np.float64]] | None] = SimpleQueue()
        decay = options.ema_decay
        self._ema = None if decay is None else WeightAverage(list_weights(task.models), decay)
        loop.track(keep_best=options.keep_best, **tracked(task, self._ema))
        self._checkpoints = loop.checkpoints
        self._last: Path | None = None
        self._saved_at = time.monotonic()
        self._resumed_from: int | None = None
        self._notes: tuple[str, ...] = ()
        self._record = record_run(
            task,
            options,
            data={"steps_per_epoch": self._input.steps, "batch": describe_spec(self._input.element_spec)},
            replicas=1 if loop.strategy is None else loop.strategy.num_replicas_in_sync,
        )
        before = None if options.model_dir is None else read_record(options.model_dir)
        self._changed = () if before is None else before.differences(self._record)
        restored = self._restore()
        self._peers.check_same_step(0 if restored is None else restored.step, options.checkpoint_dir)
        if restored is None and options.warm_start is not None:
            restore_models(find_checkpoint(options.warm_start), task.models)
            if self._ema is not None:
                self._ema.reset()
        self._train, self._train_metrics = make_step_loop(
            loop,
            task,
            task.train_step,
            self._input.element_spec,
            train=True,
            mode=options.mode,
            after_step=None if self._ema is None else self._ema.update,
            sink=self._receive if streaming else None,
            resident=self._input.resident,
        )
        # Before the first step, whose work a mistake in eval_step would otherwise cost.
        self._evaluator = Evaluator(task, options, loop)
        for goal in (options.keep_best, *(action.goal for action in actions if isinstance(action, Watches))):
            if goal is not None:
                goal.check(self._evaluator.names)
        #: Steps that no event has told of yet, and their time and examples.
        self._untold: tuple[int, float, int] = (0, 0.0, 0)
        self._state = restored or RunState(
            task=task.name,
            config=run_config(options, self._input.steps, self._max_steps),
            step=0,
            epoch=0,
            epoch_step=0,
            totals=self._train.empty(),
            seconds=0.0,
            history=(),
        )

    def to_end(self, guard: InterruptGuard) -> TrainResult:
        """Runs all steps that are left."""
        for _ in self.stream(guard):
            pass
        return self.result()

    def result(self) -> TrainResult:
        """How far the run has come."""
        return make_result(
            self._state,
            self._task,
            resumed_from=self._resumed_from,
            checkpoint=self._last,
            identity=self._record.summary(),
        )

    def stream(self, guard: InterruptGuard) -> Iterator[tuple[int, dict[str, float]]]:
        """Runs all steps that are left and, where the run is for streaming, yields the values of every step."""
        guard.on_request = self._train.stop
        reason: EndReason = "failed"
        try:
            data, history = self._task.data_description(), self._state.history
            notes, identity = (*self._changed, *self._notes), self._record.summary()
            self._emit(RunStarted, data=data, notes=notes, history=history, identity=identity)
            # Not before its differences were told.
            if self._options.model_dir is not None and self._peers.layout.is_chief:
                write_record(self._record, self._options.model_dir)
            while not self._is_over():
                yield from self._epoch(guard)
            if self._ema is not None:
                self._ema.swap()
            reason = "finished"
        except KeyboardInterrupt:
            reason = "interrupted"
            raise
        except GeneratorExit:
            # The consumer has had enough: the step that is running is finished, and the run saved.
            reason = "interrupted"
            self._close()
            raise
        except SystemExit:
            reason = "terminated"
            raise
        except (TrainingError, tf.errors.OpError) as exc:
            lost = self._peers.lost(exc, self._last)
            if lost is None:
                raise
            raise lost from exc
        finally:
            self._announce(wait=True)
            self._peers.close()
            self._tell()
            self._emit(RunEnded, reason=reason, checkpoint=self._last)
        if guard.requested:
            # It came after the last step, while a checkpoint was written or an action was at work.
            raise guard.stop()

    def _epoch(self, guard: InterruptGuard) -> Iterator[tuple[int, dict[str, float]]]:
        """Steps until the epoch is over, or the run."""
        state, epoch = self._state, self._state.epoch
        batches = self._input.batches(self._train, epoch=epoch, skip_batches=state.epoch_step, step=state.step)
        while self._state.epoch == epoch and not self._is_over():
            if self._state.step == self._evaluated_at():
                self._train_metrics.reset()
            yield from self._steps(batches, self._next_stop())
            evaluated = self._after_steps()
            stopping, due = self._peers.any(guard.requested, not evaluated and self._checkpoint_is_due())
            if due or (stopping and not evaluated):
                self._save()
            if stopping:
                # After the last step as well: who pressed Ctrl-C does not want what comes after training.
                raise guard.stop()

    def _is_over(self) -> bool:
        """Whether all steps are done, or an action ends the run after the evaluation that was just made."""
        state = self._state
        if state.step >= self._max_steps:
            return True
        if not state.history or state.step != self._evaluated_at():
            return False
        return any(self._peers.any(any(each.should_stop for each in self._actions if isinstance(each, Stops))))

    def _evaluated_at(self) -> int:
        """The step of the last evaluation."""
        history = self._state.history
        return history[-1].step if history else 0

    def _after_steps(self) -> bool:
        """Evaluates where it is time, and ends the epoch where it is over; whether it has evaluated, and saved."""
        state, every = self._state, self._options.eval_every_steps
        whole = state.epoch_step == self._input.steps
        due = whole if every is None else state.step % every == 0
        due = due or state.step >= self._max_steps
        if due:
            self._finish_round()
        if whole:
            self._state = replace(self._state, epoch=state.epoch + 1, epoch_step=0)
        if due:
            self._save()
        return due

    def _checkpoint_is_due(self) -> bool:
        steps, seconds = self._options.checkpoint_every_steps, self._options.checkpoint_every_seconds
        return (steps is not None and self._state.step % steps == 0) or (
            seconds is not None and time.monotonic() - self._saved_at >= seconds
        )

    def _next_stop(self) -> int:
        """How many steps Python can do without."""
        state, options = self._state, self._options
        steps = self._max_steps - state.step
        if self._input.steps is not None:
            steps = min(steps, self._input.steps - state.epoch_step)
        if not options.mode.resident:
            # A step that is called from Python is streamed as soon as it is done.
            at_once = self._streaming and not options.mode.device_loop
            steps = min(steps, 1 if at_once else options.steps_per_loop)
        for every in (options.checkpoint_every_steps, options.eval_every_steps, options.log_every_steps):
            if every is not None:
                steps = min(steps, every - state.step % every)
        return steps

    def _steps(self, batches: object, steps: int) -> Iterator[tuple[int, dict[str, float]]]:
        state = self._state
        self._began = time.perf_counter()
        self._running = running = self._train.start(batches, steps, state.totals, first_step=state.step)
        if self._streaming:
            running.add_done_callback(lambda _: self._values.put(None))
            while (item := self._values.get()) is not None:
                index, sums = item
                pairs = zip(self._train.names, sums, strict=True)
                yield state.step + index + 1, {name: float(total / count) for name, (total, count) in pairs}
        self._settle()

    def _settle(self) -> None:
        """Waits for the device loop, and takes over what came of it."""
        state, running = self._state, self._running
        if running is None:
            return
        self._running = None
        outcome = self._train.finish(running, state.totals)
        seconds = time.perf_counter() - self._began
        if outcome.non_finite_at is not None:
            step, at = state.step + outcome.non_finite_at + 1, state.epoch_step + outcome.non_finite_at
            bad = self._input.batch(state.epoch, at)
            batch = "gone with the stream" if bad is None else describe_batch(bad)
            of = "" if self._input.steps is None else f" of {self._input.steps}"
            raise NonFiniteLossError(
                f"The loss of task {self._task.name!r} is {outcome.bad_loss} at step {step} (epoch {state.epoch + 1}, "
                f"step {at + 1}{of}). The batch was: {batch}. "
                f"{self._advice()}"
            )
        self._state = replace(
            state,
            step=state.step + outcome.steps,
            epoch_step=state.epoch_step + outcome.steps,
            totals=outcome.totals,
            seconds=state.seconds + seconds,
        )
        steps, time_taken, examples = self._untold
        more = outcome.totals.examples - state.totals.examples
        self._untold = (steps + outcome.steps, time_taken + seconds, examples + more)
        every = self._options.log_every_steps
        if every is None or self._state.step % every == 0:
            self._tell()
        self._announce()

    def _tell(self) -> None:
        """Tells of the steps since the last time."""
        steps, seconds, examples = self._untold
        if steps:
            values, rate = self._state.totals.means(), examples / seconds
            self._untold = (0, 0.0, 0)
            self._emit(StepsDone, values=values, examples_per_second=rate, steps=steps, seconds=seconds)

    def _receive(self, index: int, sums: npt.NDArray[np.float64]) -> None:
        self._values.put((index, sums))

    def _close(self) -> None:
        self._train.stop()
        self._settle()
        if not self._after_steps():
            self._save()

    def _finish_round(self) -> None:
        """Ends the steps between two evaluations, with one."""
        self._tell()
        state = self._state
        began = time.perf_counter()
        train = {**state.totals.means(), **self._train_metrics.read()}
        with nullcontext() if self._ema is None else self._ema.in_place():
            evaluation = self._evaluator.run()
            if not math.isfinite(evaluation[LOSS]):
                raise NonFiniteLossError(
                    f"The evaluation loss of task {self._task.name!r} is {evaluation[LOSS]} after step {state.step} "
                    f"(epoch {state.epoch + 1}). {self._advice()}"
                )
            result = EvalResult(
                epoch=state.epoch + 1,
                step=state.step,
                train=train,
                evaluation=evaluation,
                seconds=state.seconds,
                eval_seconds=time.perf_counter() - began,
                examples_per_second=state.totals.examples / state.seconds,
            )
            self._emit(Evaluated, result=result)
        self._state = replace(state, totals=self._train.empty(), seconds=0.0, history=(*state.history, result))

    def _restore(self) -> RunState | None:
        path = self._loop.newest()
        if self._checkpoints is None or path is None:
            return None
        self._checkpoints.clean()
        # Before its variables: other options may mean other variables.
        state = read_state(path)
        check_task(state, self._task, path)
        config = run_config(self._options, self._input.steps, self._max_steps)
        check_config(state, config, path)
        rates = learning_rates(self._task)
        try:
            state = self._checkpoints.restore(path)
        except CheckpointError as exc:
            raise CheckpointError(" ".join((exc.message, *self._changed))) from exc
        if self._input.position is not None:
            self._input.position.restore(path)
        self._notes = overruled(self._task, self._options, path, rates)
        self._last, self._resumed_from = path, state.step
        return replace(state, config=config)

    def _save(self) -> None:
        # The step's loss is of the weights before its update: bad weights would show one step too late.
        if not self._loop.weights_are_finite():
            raise NonFiniteLossError(
                f"The weights of task {self._task.name!r} are no longer finite after step {self._state.step}, "
                f"so its next loss would not be. {self._advice()}"
            )
        if self._checkpoints is None:
            return
        self._announce(wait=True)
        self._checkpoints.save(self._state, {} if self._input.position is None else self._input.position.save())
        self._saved_at = time.monotonic()
        self._announce()

    def _announce(self, *, wait: bool = False) -> None:
        """Tells of a checkpoint that is in place, and raises what went wrong with one."""
        if self._checkpoints is None:
            return
        path = self._checkpoints.wait() if wait else self._checkpoints.finished()
        folder = self._options.checkpoint_dir
        if path is not None and folder is not None:
            # Of a worker's own copy only the name is of use.
            self._peers.discard(path)
            self._last = folder / path.name
            self._emit(CheckpointSaved, path=self._last)

    def _advice(self) -> str:
        self._announce(wait=True)
        kept = f"The last good checkpoint is {self._last}." if self._last else "There is no checkpoint to go back to."
        return f"{kept} Lower the learning rate, or look for NaN and extreme values in the input."

    def _emit(self, kind: type[Event], **fields: Any) -> None:
        event = kind(
            task=self._task.name,
            step=self._state.step,
            epoch=self._state.epoch + 1,
            max_steps=self._max_steps,
            steps_per_epoch=self._input.steps,
            **fields,
        )
        # What is saved after the last step belongs to the last epoch.
        event = replace(event, epoch=min(event.epoch, event.epochs)) if event.epoch > event.epochs else event
        for action in self._actions:
            action(event)
