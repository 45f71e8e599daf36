"""The loop of the strategy ``ps``: a chief that sends steps to workers, one by one, on weights that servers keep.

Every batch is made by the chief, goes to one worker, and is used once in an epoch. A worker that dies loses nothing but
time: TensorFlow's coordinator hands its step to another one. Steps of different workers do not wait for each other, so
their updates interleave, and the same seed does not give the same numbers again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.loop._loop import DeviceLoop, LoopResult, Outcome, Totals, _InputEndedError
from modelyard.training.loop._modes import LOOP_MODES, LoopMode

#: Without a finished step for so long, in seconds, the workers are taken for lost. The first one includes tracing.
STALLED_S = 180.0
#: Steps on their way for each worker: one that runs, and the next ones so that it never waits.
_AHEAD = 3


class CoordinatedLoop(DeviceLoop):
    """Runs one kind of step of a task on the workers of a parameter server strategy."""

    def __init__(
        self,
        step: Callable[[Any], Mapping[str, tf.Tensor]],
        element_spec: object,
        *,
        strategy: tf.distribute.Strategy,
        mode: LoopMode = LOOP_MODES["loop"],
        **options: Any,
    ) -> None:
        if not mode.compiled or mode.resident:
            raise ConfigurationError(f"loop={mode.name!r} does not work with parameter servers; use 'loop'.")
        for name, what in (("after_step", "an average of the weights"), ("sink", "streaming the values of steps")):
            if options.get(name) is not None:
                raise ConfigurationError(f"With parameter servers steps have no order, which {what} needs.")
        if strategy.num_replicas_in_sync > 1:
            raise ConfigurationError(
                f"Each worker has {strategy.num_replicas_in_sync} GPUs; start one worker for each GPU, with "
                "CUDA_VISIBLE_DEVICES."
            )
        # One for each strategy: TensorFlow hands out the same again.
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        super().__init__(step, element_spec, strategy=strategy, **options)
        self._remote = tf.function(self._timed_step, input_signature=[element_spec])
        workers = sum("/job:worker/" in device.name for device in tf.config.list_logical_devices("CPU"))
        self._most = _AHEAD * workers
        self._stopping = False
        self._non_finite_at: int | None = None
        self._progress_at = 0.0

    def iterate(self, dataset: tf.data.Dataset, *, shared: bool = False) -> Any:
        """An iterator over batches, in the chief."""
        return iter(dataset)

    def stop(self) -> None:
        """Makes this loop, whether it is running or not, end after the steps that are on their way."""
        self._stopping = True

    def start(self, batches: object, steps: int, totals: Totals, *, first_step: int = 0) -> Future[Outcome]:
        """As for :class:`DeviceLoop`."""
        packed = np.array([totals.sums[name] for name in self.names], dtype=np.float64)
        done: Future[Outcome] = Future()
        self._progress_at = time.monotonic()

        def run() -> None:
            try:
                done.set_result(self._through(batches, steps, packed))
            except BaseException as exc:
                done.set_exception(exc)

        # A daemon, since nothing can end its waiting for workers that are gone.
        threading.Thread(target=run, name="coordinated-loop", daemon=True).start()
        return done

    def finish(self, running: Future[Outcome], totals: Totals) -> LoopResult:
        """As for :class:`DeviceLoop`."""
        while True:
            try:
                running.exception(timeout=1.0)
            except FutureTimeoutError:
                if time.monotonic() - self._progress_at > STALLED_S:
                    raise TrainingError(
                        f"No worker has finished a step for {STALLED_S:.0f} s: all of them seem to be gone. Start the "
                        "processes of the cluster again: they go on from the newest checkpoint."
                    ) from None
            else:
                # More steps were on their way when the loss of one was not finite.
                return replace(super().finish(running, totals), non_finite_at=self._non_finite_at)

    def _timed_step(self, batch: object) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """A step, and when its values were known, in seconds."""
        sums, examples = self._step(batch)
        with tf.control_dependencies([sums]):
            return sums, examples, tf.timestamp()

    def _through(self, batches: Any, steps: int, packed: npt.NDArray[np.float64]) -> Outcome:
        waiting: deque[tf.distribute.coordinator.RemoteValue] = deque()
        sums, examples, sent = packed, 0, 0
        # Of each step whose loss was not finite: when it was known, the step, and the loss.
        bad: list[tuple[float, int, float]] = []
        while sent < steps or waiting:
            if self._stopping or bad:
                steps = sent
            if sent < steps and len(waiting) < self._most:
                try:
                    batch = next(batches)
                except StopIteration:
                    raise _InputEndedError from None
                waiting.append(self._coordinator.schedule(self._remote, args=(batch,)))
                sent += 1
                continue
            if not waiting:
                break
            number = sent - len(waiting)
            step_sums, step_examples, known_at = waiting.popleft().fetch()
            self._progress_at = time.monotonic()
            sums, examples = sums + step_sums, examples + int(step_examples)
            loss = float(step_sums[self._loss_row, 0] / step_sums[self._loss_row, 1])
            if not np.isfinite(loss):
                bad.append((float(known_at), number, loss))
        # The others may be of weights that the first one has spoiled, also where their batches came before.
        _, self._non_finite_at, bad_loss = min(bad) if bad else (0.0, None, 0.0)
        return sums, examples, sent, bad_loss


def make_loop(
    step: Callable[[Any], Mapping[str, tf.Tensor]],
    element_spec: object,
    *,
    strategy: tf.distribute.Strategy | None,
    **options: Any,
) -> DeviceLoop:
    """The loop that fits a strategy."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return CoordinatedLoop(step, element_spec, strategy=strategy, **options)
    return DeviceLoop(step, element_spec, strategy=strategy, **options)
