"""The device loop: many steps of a task in one call of one compiled function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from modelyard.errors import ConfigurationError, TrainingError

LOSS = "loss"


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Running sums of what steps returned.

    Attributes:
        sums: For each name, sum and number of values, in float64. Kept as
            plain numbers so that a checkpoint holds them exactly.
        examples: Examples seen.
    """

    sums: Mapping[str, tuple[float, float]]
    examples: int = 0

    def means(self) -> dict[str, float]:
        """The averages, by name."""
        return {name: total / count if count else 0.0 for name, (total, count) in self.sums.items()}


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """What a device loop came back with.

    Attributes:
        totals: The sums with those of the loop added.
        non_finite_at: Number of the first step of the loop, from 0, whose loss
            was NaN or infinite; the loop ended with it. None where all were finite.
        bad_loss: That loss.
    """

    totals: Totals
    non_finite_at: int | None
    bad_loss: float


class DeviceLoop:
    """Runs one kind of step of a task, traced on first use.

    Args:
        step: ``train_step`` or ``eval_step`` of a task.
        element_spec: Spec of the batches.
        label: What to call it in messages.
        strategy: Its replicas run the step, each on its part of a batch; None
            for one replica.

    Raises:
        ConfigurationError: The step does not return a mapping with ``loss``.
    """

    def __init__(
        self,
        step: Callable[[Any], Mapping[str, Any]],
        element_spec: Any,
        *,
        label: str,
        strategy: tf.distribute.Strategy | None = None,
    ) -> None:
        self._label = label
        self._strategy = strategy
        # Replicas meet in the middle of a step, which a function of its own would not let them.
        compiled: Any = tf.function(step if strategy is None else lambda batch: strategy.run(step, args=(batch,)))
        replica_step = compiled if strategy is None else step
        outputs = compiled.get_concrete_function(element_spec).structured_outputs
        if not isinstance(outputs, Mapping) or LOSS not in outputs:
            received = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
            raise ConfigurationError(
                f"{label} returned {received}; expected a mapping from names to tensors with {LOSS!r} among them."
            )
        self.names: tuple[str, ...] = tuple(sorted(outputs))
        self._loop = _make_loop(_replica_sums(replica_step, self.names), strategy)

    def empty(self) -> Totals:
        """Totals of no steps."""
        return Totals(sums=dict.fromkeys(self.names, (0.0, 0.0)))

    def iterate(self, dataset: tf.data.Dataset) -> Any:
        """An iterator over batches for :meth:`run`; under a strategy each batch is shared out to its replicas.

        Args:
            dataset: The batches, of the global size.
        """
        if self._strategy is None:
            return iter(dataset)
        return iter(self._strategy.experimental_distribute_dataset(dataset))

    def run(self, iterator: Any, steps: int, totals: Totals) -> LoopResult:
        """Runs steps on the device.

        Args:
            iterator: From :meth:`iterate`.
            steps: How many to take.
            totals: What to add to.

        Returns:
            New totals, and whether the loss stayed finite.

        Raises:
            TrainingError: The input ended early, or an op of the step failed.
        """
        packed = np.array([totals.sums[name] for name in self.names], dtype=np.float64)
        try:
            sums, examples, bad_step, bad_loss = self._loop(
                iterator, tf.constant(steps, tf.int64), tf.constant(packed), tf.constant(self.names.index(LOSS))
            )
        except tf.errors.OutOfRangeError as exc:
            raise TrainingError(
                f"The input of {self._label} ended early: it has fewer batches than its cardinality says."
            ) from exc
        except tf.errors.OpError as exc:
            raise TrainingError(f"{self._label} failed while it ran: {_cause(exc.message)}") from exc
        added = {
            name: (float(total), float(count)) for name, (total, count) in zip(self.names, sums.numpy(), strict=True)
        }
        at = int(bad_step)
        return LoopResult(
            totals=Totals(sums=added, examples=totals.examples + int(examples)),
            non_finite_at=None if at < 0 else at,
            bad_loss=float(bad_loss),
        )


def _replica_sums(step: Callable[[Any], Mapping[str, Any]], names: tuple[str, ...]) -> Any:
    """One step of one replica, reduced to what can be added up over replicas.

    Returns:
        From a batch to float64 ``[names, 2]``, sum and count of each value,
        and int64 ``[]``, the number of examples.
    """

    def sums(batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        outputs = step(batch)
        examples = tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
        return tf.stack([_sum_and_count(outputs[name]) for name in names]), examples

    return sums


def _make_loop(step: Any, strategy: tf.distribute.Strategy | None) -> Any:
    def all_replicas(batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        if strategy is None:
            return step(batch)
        sums, examples = strategy.run(step, args=(batch,))
        add = tf.distribute.ReduceOp.SUM
        return strategy.reduce(add, sums, axis=None), strategy.reduce(add, examples, axis=None)

    @tf.function
    def loop(
        iterator: Any, steps: tf.Tensor, totals: tf.Tensor, loss_row: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        examples = tf.constant(0, tf.int64)
        bad_step, bad_loss = tf.constant(-1, tf.int64), tf.constant(0.0, tf.float64)
        for index in tf.range(steps):
            step_sums, step_examples = all_replicas(next(iterator))
            totals += step_sums
            examples += step_examples
            loss = step_sums[loss_row, 0] / step_sums[loss_row, 1]
            if not tf.math.is_finite(loss):
                bad_step, bad_loss = index, loss
                break
        return totals, examples, bad_step, bad_loss

    return loop


def _sum_and_count(values: tf.Tensor) -> tf.Tensor:
    # float64: the average over an epoch must not depend on how many values went before.
    return tf.stack([tf.reduce_sum(tf.cast(values, tf.float64)), tf.cast(tf.size(values), tf.float64)])


def _cause(message: str) -> str:
    """The line that says what went wrong, out of a message that is mostly about nodes and stacks."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    nodes = next((index for index, line in enumerate(lines) if line.startswith("[[")), len(lines))
    return lines[max(nodes - 1, 0)] if lines else "no reason given."
