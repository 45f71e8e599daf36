"""The device loop: many steps of a task in one call of one compiled function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.loop._modes import LOOP_MODES, LoopMode
from modelyard.training.loop._resident import ResidentData, ResidentEpoch
from modelyard.training.user import StepReport, make_replica_step

LOSS = "loss"
#: Sums and counts, float64 ``[names, 2]``, examples, steps done, and the loss that was not finite, or 0.
Outcome = tuple[tf.Tensor, tf.Tensor | int, tf.Tensor | int, tf.Tensor | float]
#: Called on the host after each step with its number in the loop, from 0, and its sums, float64 ``[names, 2]``.
Sink = Callable[[int, npt.NDArray[np.float64]], None]
#: Called in the graph after each step, with its number since the start of the run, from 0, int64 ``[]``.
AfterStep = Callable[[tf.Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Running sums of what steps returned, sum and number of values by name, and the examples seen.

    They are plain numbers of float64, which a checkpoint holds exactly.
    """

    sums: Mapping[str, tuple[float, float]]
    examples: int = 0

    def means(self) -> dict[str, float]:
        """The averages, by name."""
        return {name: total / count if count else 0.0 for name, (total, count) in self.sums.items()}


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """The totals after a device loop, and how many steps it did.

    ``non_finite_at`` is the number of the step, from 0, whose loss was NaN or infinite, with which the loop ended.
    """

    totals: Totals
    steps: int
    non_finite_at: int | None
    bad_loss: float


class _InputEndedError(Exception):
    """A future cannot carry StopIteration."""


class DeviceLoop:
    """Runs one kind of step of a task, traced on first use."""

    def __init__(
        self,
        step: Callable[[Any], Mapping[str, tf.Tensor]],
        element_spec: object,
        *,
        label: str,
        strategy: tf.distribute.Strategy | None = None,
        mode: LoopMode = LOOP_MODES["loop"],
        accumulate_steps: int = 1,
        clip_norm: float | None = None,
        devices: Sequence[str] = (),
        jit_compile: bool = False,
        prefetch: bool = False,
        after_step: AfterStep | None = None,
        sink: Sink | None = None,
        resident: ResidentData | None = None,
        model_description: str = "its models are not described",
    ) -> None:
        self._label = label
        self._strategy = strategy
        self._mode = mode
        self._sink = sink
        self._after_step = after_step
        self._spec = describe_spec(element_spec)
        self._models = model_description
        self._prefetch_to = devices[0] if prefetch else None
        self._halt = tf.Variable(False, trainable=False, name="halt")
        report = StepReport()
        replicas = 1 if strategy is None else strategy.num_replicas_in_sync
        replica_step = make_replica_step(
            step,
            report,
            accumulate_steps=accumulate_steps,
            clip_norm=clip_norm,
            replicas=replicas,
            devices=devices,
            jit_compile=jit_compile,
        )
        # Replicas meet in the middle of a step, which a function of its own would not let them.
        compiled: Any = tf.function(
            replica_step if strategy is None else lambda batch: strategy.run(replica_step, args=(batch,))
        )
        try:
            traced = compiled.get_concrete_function(element_spec)
        except (ValueError, tf.errors.InvalidArgumentError) as exc:
            raise ConfigurationError(
                f"{label} cannot run on its input. The input has batches of {self._spec}; {self._models}. "
                f"What failed: {_first_lines(exc)}"
            ) from exc
        if LOSS not in report.names:
            returned = report.returned
            received = sorted(returned) if isinstance(returned, Mapping) else type(returned).__name__
            raise ConfigurationError(
                f"{label} returned {received}; expected a mapping from names to tensors with {LOSS!r} among them."
            )
        if not report.updates and (accumulate_steps > 1 or clip_norm is not None or len(devices) > 1):
            raise ConfigurationError(
                f"{label} updates its variables by itself, which accumulate_steps, clip_norm and several devices "
                "cannot change. Call modelyard.training.minimize or apply_gradients in it, or leave these options out."
            )
        self.names: tuple[str, ...] = report.names
        #: What the step reads or changes, on every replica.
        self.variables: tuple[tf.Variable, ...] = traced.graph.variables
        self._loss_row = self.names.index(LOSS)
        if strategy is None:
            self._step = compiled if mode.compiled else replica_step
        else:
            self._step = self._on_replicas(replica_step)
        self._single_step = tf.function(self._step) if mode.compiled else self._step
        if resident is None:
            self._loop = self._make_loop(lambda source, index: self._step(next(source)))
        else:
            whole = resident

            def take(source: tuple[tf.Tensor, tf.Tensor], index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                order, position = source
                return self._on_replicas(lambda number: replica_step(whole.batch(order, number)))(position + index)

            self._loop = self._make_loop(take)

    def empty(self) -> Totals:
        """Totals of no steps."""
        return Totals(sums=dict.fromkeys(self.names, (0.0, 0.0)))

    def iterate(self, dataset: tf.data.Dataset, *, shared: bool = False) -> Any:
        """An iterator over batches for :meth:`run`; under a strategy each batch is shared out to its replicas."""
        return iter(share_out(dataset, self._strategy, shared=shared, prefetch_to=self._prefetch_to))

    def stop(self) -> None:
        """Makes this loop, whether it is running or not, end after its current step.

        Workers of a cluster must all do the same steps: theirs goes on to its end.
        """
        if self._strategy is None or self._strategy.cluster_resolver is None:
            self._halt.assign(True)

    def run(self, batches: object, steps: int, totals: Totals, *, first_step: int = 0) -> LoopResult:
        """Runs steps on the device; see :meth:`start`."""
        return self.finish(self.start(batches, steps, totals, first_step=first_step), totals)

    def start(self, batches: object, steps: int, totals: Totals, *, first_step: int = 0) -> Future[Outcome]:
        """Lets steps run, in a thread of their own so that no signal has to wait for them.

        They are done when it returns, where the mode has no device loop.
        """
        packed = np.array([totals.sums[name] for name in self.names], dtype=np.float64)
        if not self._mode.device_loop:
            done: Future[Outcome] = Future()
            try:
                done.set_result(self._one_by_one(batches, steps, packed, first_step))
            except (tf.errors.OpError, StopIteration) as exc:
                done.set_exception(exc if isinstance(exc, tf.errors.OpError) else _InputEndedError())
            return done
        counts = (tf.constant(steps, tf.int64), tf.constant(packed), tf.constant(first_step, tf.int64))
        if isinstance(batches, ResidentEpoch):
            arguments: tuple[object, ...] = ((batches.order, tf.constant(batches.position, tf.int64)), *counts)
            batches.position += steps
        else:
            arguments = (batches, *counts)
        # Traced here, in the thread that Keras and the strategy know.
        with nullcontext() if self._strategy is None else self._strategy.scope():
            self._loop.get_concrete_function(*arguments)
        executor = ThreadPoolExecutor(1, thread_name_prefix="device-loop")
        future = executor.submit(self._loop, *arguments)
        executor.shutdown(wait=False)
        return future

    def finish(self, running: Future[Outcome], totals: Totals) -> LoopResult:
        """Waits for steps that :meth:`start` began."""
        try:
            sums, examples, done, bad_loss = running.result()
        except (tf.errors.OutOfRangeError, _InputEndedError) as exc:
            raise TrainingError(
                f"The input of {self._label} ended early: it has fewer batches than its cardinality says."
            ) from exc
        except tf.errors.OpError as exc:
            raise TrainingError(
                f"{self._label} failed while it ran: {_cause(exc.message)} The input has batches of {self._spec}; "
                f"{self._models}."
            ) from exc
        except BaseException:
            # A second signal: nothing waits for this loop any more.
            self.stop()
            raise
        rows = np.asarray(sums)
        added = {name: (float(total), float(count)) for name, (total, count) in zip(self.names, rows, strict=True)}
        loss = float(bad_loss)
        return LoopResult(
            totals=Totals(sums=added, examples=totals.examples + int(examples)),
            steps=int(done),
            non_finite_at=None if np.isfinite(loss) else int(done) - 1,
            bad_loss=loss,
        )

    def _one_by_one(self, batches: Any, steps: int, packed: npt.NDArray[np.float64], first_step: int) -> Outcome:
        sums, examples = packed, 0
        for index in range(steps):
            step_sums, step_examples = self._single_step(next(batches))
            step_sums = np.asarray(step_sums)
            sums, examples = sums + step_sums, examples + int(step_examples)
            self._after(tf.constant(first_step + index, tf.int64), index, step_sums)
            loss = float(step_sums[self._loss_row, 0] / step_sums[self._loss_row, 1])
            if not np.isfinite(loss) or self._halt.numpy():
                return sums, examples, index + 1, 0.0 if np.isfinite(loss) else loss
        return sums, examples, steps, 0.0

    def _on_replicas(self, replica_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        strategy = self._strategy
        if strategy is None:
            return replica_step

        def all_replicas(argument: object) -> tuple[tf.Tensor, tf.Tensor]:
            sums, examples = strategy.run(replica_step, args=(argument,))
            add = tf.distribute.ReduceOp.SUM
            return strategy.reduce(add, sums, axis=None), strategy.reduce(add, examples, axis=None)

        return all_replicas

    def _after(self, step: tf.Tensor, index: tf.Tensor, sums: tf.Tensor) -> None:
        """What follows a step, in the graph or out of it."""
        if self._after_step is not None:
            self._after_step(step)
        if self._sink is not None:
            if tf.executing_eagerly():
                self._sink(index, sums)
            else:
                tf.numpy_function(self._receive, [index, sums], [], name="stream")

    def _receive(self, index: tf.Tensor, sums: tf.Tensor) -> None:
        if self._sink is not None:
            self._sink(int(index), sums)

    def _make_loop(self, take: Callable[[Any, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]) -> Any:
        """The loop; ``take`` does the step of a number in the loop, from 0, on what :meth:`iterate` gave."""
        after, row, halt = self._after, self._loss_row, self._halt

        @tf.function
        def loop(
            source: object, steps: tf.Tensor, totals: tf.Tensor, first: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
            examples, done = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
            bad_loss = tf.constant(0.0, tf.float64)
            for index in tf.range(steps):
                sums, count = take(source, index)
                after(first + index, index, sums)
                totals += sums
                examples += count
                done = index + 1
                loss = sums[row, 0] / sums[row, 1]
                if not tf.math.is_finite(loss):
                    bad_loss = loss
                    break
                if halt:
                    break
            return totals, examples, done, bad_loss

        return loop


def share_out(
    dataset: tf.data.Dataset,
    strategy: tf.distribute.Strategy | None,
    *,
    shared: bool = False,
    prefetch_to: str | None = None,
) -> Any:
    """The batches as a step gets them."""
    if prefetch_to is not None:
        # The last of its transformations, as it must be.
        dataset = dataset.apply(tf.data.experimental.prefetch_to_device(prefetch_to, buffer_size=2))
    if strategy is None:
        return dataset
    if shared:
        return strategy.distribute_datasets_from_function(lambda context: dataset)
    # By examples: by files, batches would depend on the number of workers.
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return strategy.experimental_distribute_dataset(dataset.with_options(sharding))


def describe_spec(element_spec: object) -> str:
    """The shapes and types of batches, for people, such as ``float32 [?, 28, 28, 1], int64 [?]``."""
    return ", ".join(
        f"{spec.dtype.name} {describe_shape(spec.shape)}" if hasattr(spec, "shape") else str(spec)
        for spec in tf.nest.flatten(element_spec)
    )


def describe_shape(shape: tf.TensorShape | tuple[int | None, ...]) -> str:
    """A shape such as ``[?, 28, 28, 1]``."""
    if isinstance(shape, tf.TensorShape) and shape.rank is None:
        return "of unknown rank"
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


_QUOTED = ("in user code:", "File ", "Arguments received", "•", "~")
#: The line of an error that AutoGraph quotes, after lines of code.
_NAMED = re.compile(r"[\w.]+(Error|Exception): ")


def _first_lines(exc: Exception) -> str:
    """What went wrong, out of a message that quotes the user's code around it."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_QUOTED)]
    named = [at for at, line in enumerate(lines) if _NAMED.match(line)]
    return " ".join(lines[named[-1] :][:3] if named else lines[-3:]) or type(exc).__name__


def _cause(message: str) -> str:
    """The line that says what went wrong, out of a message that is mostly about nodes and stacks."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    nodes = next((index for index, line in enumerate(lines) if line.startswith("[[")), len(lines))
    return lines[max(nodes - 1, 0)] if lines else "no reason given."
