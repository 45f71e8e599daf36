"""One run of a task: epochs, evaluation, checkpoints, events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import tensorflow as tf

from modelyard.errors import ConfigurationError, NonFiniteLossError, TrainingError
from modelyard.training._checkpoints import (
    Checkpoints,
    RunState,
    find_checkpoint,
    list_checkpoints,
    list_weights,
    read_state,
    restore_models,
)
from modelyard.training._coordinated import make_loop
from modelyard.training._describe import describe_batch, describe_models
from modelyard.training._ema import WeightAverage
from modelyard.training._goal import Goal
from modelyard.training._input import TrainInput, known_length
from modelyard.training._interrupt import InterruptGuard
from modelyard.training._loop import LOSS, DeviceLoop
from modelyard.training._options import TrainerOptions
from modelyard.training._peers import Peers
from modelyard.training._results import Action, EpochResult, Event, EventKind, TrainResult
from modelyard.training._run_state import (
    StepMetrics,
    check_config,
    check_task,
    find_metrics,
    learning_rates,
    make_result,
    overruled,
    run_config,
    tracked,
    variable_ids,
)
from modelyard.training._step import evaluation
from modelyard.training._task import InputRequest, Task


class Run:
    """One call of :meth:`Trainer.run`, or of :meth:`Trainer.stream`."""

    def __init__(
        self,
        task: Task,
        options: TrainerOptions,
        actions: tuple[Action, ...],
        strategy: tf.distribute.Strategy | None,
        *,
        streaming: bool = False,
    ) -> None:
        self._task = task
        self._strategy = strategy
        self._options = options
        self._actions = actions
        self._streaming = streaming
        self._running: Future[Any] | None = None
        self._began = 0.0
        self._peers = Peers(strategy)
        self._input = TrainInput(task, options, self._peers)
        self._values: SimpleQueue[tuple[int, Any] | None] = SimpleQueue()
        self._weights = list_weights(task.models)
        self._metrics = find_metrics(task, strategy)
        self._ema = None if options.ema_decay is None else WeightAverage(self._weights, options.ema_decay)
        folder = options.checkpoint_dir
        self._checkpoints = (
            None
            if folder is None
            else Checkpoints(
                self._peers.checkpoint_folder(folder),
                tracked(task, self._ema),
                keep=options.keep_checkpoints,
                goal=options.keep_best,
                background=options.async_checkpoints and strategy is None,
            )
        )
        self._last: Path | None = None
        self._saved_at = time.monotonic()
        self._resumed_from: int | None = None
        self._notes: tuple[str, ...] = ()
        restored = self._restore()
        self._peers.check_same_step(0 if restored is None else restored.step, folder)
        if restored is None and options.warm_start is not None:
            restore_models(find_checkpoint(options.warm_start), task.models)
            if self._ema is not None:
                self._ema.reset()
        self._train, self._train_metrics = self._make_loop(
            task.train_step,
            self._input.element_spec,
            label=f"train_step of task {task.name!r}",
            form=options.loop,
            accumulate_steps=options.accumulate_steps,
            clip_norm=options.clip_norm,
            after_step=None if self._ema is None else self._ema.update,
            sink=self._receive if streaming else None,
            resident=self._input.resident,
        )
        # Before the first epoch, whose work a mistake in eval_step would otherwise cost.
        self._eval, self._eval_metrics = self._make_loop(
            evaluation(task.eval_step),
            self._eval_input()[0].element_spec,
            label=f"eval_step of task {task.name!r}",
            form="eager" if options.loop == "eager" else "loop",
        )
        for goal in (options.keep_best, *(getattr(action, "goal", None) for action in actions)):
            if isinstance(goal, Goal):
                goal.check((*self._eval.names, *self._eval_metrics.names))
        self._state = restored or RunState(
            task=task.name,
            config=run_config(options, self._input.steps),
            step=0,
            epoch=0,
            epoch_step=0,
            totals=self._train.empty(),
            seconds=0.0,
            history=(),
        )

    def _make_loop(
        self, step: Callable[[Any], Mapping[str, Any]], element_spec: Any, *, label: str, **options: Any
    ) -> tuple[DeviceLoop, StepMetrics]:
        """The loop of a step, and the metrics that it updates."""
        task, before = self._task, len(variable_ids(self._task))
        models = describe_models(task.models)
        try:
            loop = make_loop(
                step, element_spec, label=label, strategy=self._strategy, model_description=models, **options
            )
        finally:
            # Also where tracing could not bear it.
            created = len(variable_ids(task)) - before
            if created:
                raise ConfigurationError(
                    f"{label} created {created} variables; build() must create them all, "
                    "so that a checkpoint can be restored before the first step. For an optimizer call "
                    "optimizer.build(model.trainable_variables) there; for a metric whose variables come with its "
                    "first values, such as keras.metrics.F1Score, call its update_state on zeros of the right shapes."
                )
        return loop, StepMetrics(self._metrics, loop, label=label, strategy=self._strategy)

    def to_end(self, guard: InterruptGuard) -> TrainResult:
        """Runs all epochs that are left."""
        for _ in self.stream(guard):
            pass
        return self.result()

    def result(self) -> TrainResult:
        """How far the run has come."""
        return make_result(self._state, self._task, resumed_from=self._resumed_from, checkpoint=self._last)

    def stream(self, guard: InterruptGuard) -> Iterator[tuple[int, dict[str, float]]]:
        """Runs all epochs that are left and, where the run is for streaming, yields the values of every step."""
        guard.on_request = self._train.stop
        reason = "failed"
        try:
            message = self._task.data_description()
            self._emit("start", message=message, notes=self._notes, history=self._state.history)
            while self._state.epoch < self._options.epochs and not any(self._peers.any(self._stopped_early())):
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
            self._emit("stop", message=reason)

    def _epoch(self, guard: InterruptGuard) -> Iterator[tuple[int, dict[str, float]]]:
        if self._state.epoch_step == 0:
            self._train_metrics.reset()
        state = self._state
        batches = self._input.batches(self._train, epoch=state.epoch, skip_batches=state.epoch_step, step=state.step)
        while self._state.epoch_step < self._input.steps:
            yield from self._steps(batches, self._next_stop() - self._state.epoch_step)
            if self._state.epoch_step < self._input.steps:
                stopping, due = self._peers.any(guard.requested, self._checkpoint_is_due())
                if stopping or due:
                    self._save()
                if stopping:
                    raise guard.stop()
        self._finish_epoch()
        if any(self._peers.any(guard.requested)):
            # After the last epoch as well: who pressed Ctrl-C does not want what comes after training.
            raise guard.stop()

    def _checkpoint_is_due(self) -> bool:
        steps, seconds = self._options.checkpoint_every_steps, self._options.checkpoint_every_seconds
        return (steps is not None and self._state.step % steps == 0) or (
            seconds is not None and time.monotonic() - self._saved_at >= seconds
        )

    def _next_stop(self) -> int:
        """The step of the epoch at which Python must have its turn."""
        state, options = self._state, self._options
        stop = self._input.steps
        if options.loop != "epoch":
            # A step that is not in a loop of its own is streamed as soon as it is done.
            at_once = self._streaming and options.loop != "loop"
            stop = min(stop, state.epoch_step + (1 if at_once else options.steps_per_loop))
        every = options.checkpoint_every_steps
        if every is not None:
            stop = min(stop, state.epoch_step + every - state.step % every)
        return stop

    def _steps(self, batches: Any, steps: int) -> Iterator[tuple[int, dict[str, float]]]:
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
            raise NonFiniteLossError(
                f"The loss of task {self._task.name!r} is {outcome.bad_loss} at step {step} (epoch {state.epoch + 1}, "
                f"step {at + 1} of {self._input.steps}). The batch was: {batch}. "
                f"{self._advice()}"
            )
        self._state = replace(
            state,
            step=state.step + outcome.steps,
            epoch_step=state.epoch_step + outcome.steps,
            totals=outcome.totals,
            seconds=state.seconds + seconds,
        )
        rate = (outcome.totals.examples - state.totals.examples) / seconds
        self._emit(
            "steps",
            values=outcome.totals.means(),
            examples_per_second=rate,
            steps=outcome.steps,
            seconds=seconds,
        )
        self._announce()

    def _receive(self, index: int, sums: Any) -> None:
        self._values.put((index, sums))

    def _close(self) -> None:
        self._train.stop()
        self._settle()
        if self._state.epoch_step == self._input.steps:
            self._finish_epoch()
        else:
            self._save()

    def _finish_epoch(self) -> None:
        state = self._state
        began = time.perf_counter()
        train = {**state.totals.means(), **self._train_metrics.read()}
        with nullcontext() if self._ema is None else self._ema.in_place():
            evaluation = self._evaluate()
            if not math.isfinite(evaluation[LOSS]):
                raise NonFiniteLossError(
                    f"The evaluation loss of task {self._task.name!r} is {evaluation[LOSS]} after step {state.step} "
                    f"(epoch {state.epoch + 1}). {self._advice()}"
                )
            result = EpochResult(
                epoch=state.epoch + 1,
                step=state.step,
                train=train,
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

    def _stopped_early(self) -> bool:
        """Whether an action has had enough."""
        return bool(self._state.history) and any(getattr(action, "should_stop", False) for action in self._actions)

    def _evaluate(self) -> Mapping[str, float]:
        dataset, steps = self._eval_input()
        self._eval_metrics.reset()
        means = self._eval.run(self._eval.iterate(dataset), steps, self._eval.empty()).totals.means()
        return {**means, **self._eval_metrics.read()}

    def _eval_input(self) -> tuple[tf.data.Dataset, int]:
        label = f"eval_dataset of task {self._task.name!r}"
        whole = self._peers.layout.fixed_shapes
        dataset = self._task.eval_dataset(InputRequest(batch_size=self._options.eval_batch_size, drop_remainder=whole))
        self._peers.check_shapes(dataset.element_spec, label)
        return dataset, known_length(dataset, label, whole_batches="eval_batch_size" if whole else None)

    def _restore(self) -> RunState | None:
        folder = self._options.checkpoint_dir
        found = [] if folder is None else list_checkpoints(folder)
        if self._checkpoints is None or not found:
            return None
        path = found[-1]
        self._checkpoints.clean()
        # Before its variables: other options may mean other variables.
        state = read_state(path)
        check_task(state, self._task, path)
        config = run_config(self._options, self._input.steps)
        check_config(state, config, path)
        rates = learning_rates(self._task)
        state = self._checkpoints.restore(path)
        if self._input.position is not None:
            self._input.position.restore(path)
        self._notes = overruled(self._task, self._options, path, rates)
        self._last, self._resumed_from = path, state.step
        return replace(state, config=config)

    def _save(self) -> None:
        if self._checkpoints is None:
            return
        # The step's loss is of the weights before its update: bad weights would show one step too late.
        if not all(bool(tf.reduce_all(tf.math.is_finite(value))) for value in self._weights):
            raise NonFiniteLossError(
                f"The weights of task {self._task.name!r} are no longer finite after step {self._state.step}, "
                f"so its next loss would not be. {self._advice()}"
            )
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
            self._emit("checkpoint", path=self._last)

    def _advice(self) -> str:
        self._announce(wait=True)
        kept = f"The last good checkpoint is {self._last}." if self._last else "There is no checkpoint to go back to."
        return f"{kept} Lower the learning rate, or look for NaN and extreme values in the input."

    def _emit(self, kind: EventKind, **fields: Any) -> None:
        event = Event(
            kind=kind,
            task=self._task.name,
            step=self._state.step,
            epoch=min(self._state.epoch + 1, self._options.epochs),
            epochs=self._options.epochs,
            steps_per_epoch=self._input.steps,
            **fields,
        )
        for action in self._actions:
            action(event)
