"""What processes that run the same loop side by side must agree on.

They take every step together, so a process that stopped, saved or went on by itself would leave the others waiting.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import tensorflow as tf

from modelyard.errors import CheckpointError, ConfigurationError, TrainingError
from modelyard.training.distribute._strategy import Layout, layout_of

#: What TensorFlow raises where another process is gone.
_LOST = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError)


class Peers:
    """The processes of one strategy; with fewer than two, nothing here costs anything."""

    def __init__(self, strategy: tf.distribute.Strategy | None) -> None:
        self.layout: Layout = layout_of(strategy)
        self._strategy = strategy
        self._scratch: Path | None = None
        self._sum = tf.function(self._sum_over_replicas)

    @property
    def single(self) -> bool:
        """Whether there is no strategy at all."""
        return self._strategy is None

    def can_share(self, batch_size: int) -> int:
        """Into how many equal parts processes can share out the making of batches; 1 where they cannot."""
        workers = self.layout.workers
        if self._strategy is None or self._strategy.num_replicas_in_sync != workers or batch_size % workers:
            return 1
        return workers

    def check_shapes(self, element_spec: object, label: str) -> None:
        """Makes sure that every batch has the same shape on every replica, where the strategy needs it."""
        if not self.layout.fixed_shapes:
            return
        shapes = [spec.shape for spec in tf.nest.flatten(element_spec) if hasattr(spec, "shape")]
        if not all(shape.is_fully_defined() for shape in shapes):
            raise ConfigurationError(
                f"{label} has batches of the shapes {', '.join(map(str, shapes))}; a TPU needs shapes that are fully "
                "known. Leave out a last batch that is not full where request.drop_remainder is set."
            )
        replicas = 1 if self._strategy is None else self._strategy.num_replicas_in_sync
        uneven = [shape[0] for shape in shapes if shape.rank and shape[0] % replicas]
        if uneven:
            raise ConfigurationError(
                f"{label} has batches of {uneven[0]} examples, of which {replicas} replicas cannot have equal shares, "
                f"as a TPU needs. Use a multiple of {replicas} (--batch-size, --eval-batch-size)."
            )

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is set in any of the processes."""
        if self.layout.workers == 1:
            return flags
        return tuple(total > 0 for total in self._totals([float(flag) for flag in flags]))

    def check_same_step(self, step: int, folder: Path | None) -> None:
        """Makes sure that all processes go on from the same checkpoint."""
        if self.layout.workers == 1:
            return
        replicas, steps, squares = self._totals([1.0, float(step), float(step) ** 2])
        if replicas * squares != steps**2:
            raise CheckpointError(
                f"The processes of the cluster would go on from different steps, this one from {step}. All of them "
                f"must see the same checkpoints: {folder} must be on storage that they share."
            )

    def checkpoint_folder(self, folder: Path) -> Path:
        """Where this process writes checkpoints: writing needs all processes, but only the chief's is kept."""
        if self.layout.is_chief:
            return folder
        self._scratch = Path(tempfile.mkdtemp(prefix="modelyard-worker-"))
        return self._scratch

    def discard(self, checkpoint: Path) -> None:
        """Removes a checkpoint that this process had to write and that is not kept."""
        if self._scratch is not None:
            shutil.rmtree(checkpoint, ignore_errors=True)

    def close(self) -> None:
        """Removes the folder for such checkpoints."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def lost(self, exc: BaseException, checkpoint: Path | None) -> TrainingError | None:
        """The error for a process that is gone; None where ``exc`` means something else."""
        causes = (exc, exc.__cause__)
        if not (self.layout.workers > 1 or self.layout.asynchronous) or not any(
            isinstance(cause, _LOST) for cause in causes
        ):
            return None
        reason = next(str(getattr(cause, "message", cause)) for cause in causes if isinstance(cause, _LOST))
        where = "/job:"
        named = [word.strip(".,:;\"'") for word in reason.split() if word.startswith(where)]
        who = f" ({', '.join(dict.fromkeys(named))})" if named else ""
        kept = f"go on from {checkpoint}" if checkpoint else "start again, since there is no checkpoint yet"
        return TrainingError(
            f"Another process of the cluster is gone{who}, and without it no step can be finished. Start all processes "
            f"again with the same commands: they {kept}."
        )

    def _totals(self, values: list[float]) -> list[float]:
        return [float(total) for total in self._sum(tf.constant(values, tf.float64)).numpy()]

    def _sum_over_replicas(self, values: tf.Tensor) -> tf.Tensor:
        strategy = self._strategy
        if strategy is None:
            return values
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(tf.identity, args=(values,)), axis=None)
