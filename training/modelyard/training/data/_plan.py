"""Which examples each batch of an epoch has: shuffled, shared among workers, resumable anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The batches of one epoch, as one worker sees them.

    A global batch has ``num_shards * batch_size`` examples, and every worker
    takes its part of each: the union over the workers does not depend on their
    number. A last, smaller global batch is shared out evenly.

    Attributes:
        count: Examples in the whole data set.
        batch_size: Examples in each batch of this worker.
        seed: Shuffles, differently in each epoch; None keeps the order.
        epoch: Number of the epoch, from 0.
        skip_batches: Batches at the start to leave out.
        num_shards: Workers that share the epoch.
        shard_index: Which of them this is, from 0.
        drop_remainder: Leaves out a last batch that is not full.

    Raises:
        ConfigurationError: A number is out of its range, or the last batch has
            fewer examples than there are workers.
    """

    count: int
    batch_size: int
    seed: int | None = None
    epoch: int = 0
    skip_batches: int = 0
    num_shards: int = 1
    shard_index: int = 0
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.skip_batches < 0:
            raise ConfigurationError(
                f"Received batch_size {self.batch_size} and skip_batches {self.skip_batches}; expected "
                "batch_size >= 1, skip_batches >= 0."
            )
        if self.epoch < 0 or (self.seed is not None and self.seed < 0):
            raise ConfigurationError(f"Received epoch {self.epoch} and seed {self.seed}; expected numbers >= 0.")
        if self.num_shards < 1 or not 0 <= self.shard_index < self.num_shards:
            raise ConfigurationError(
                f"Received shard_index {self.shard_index} of num_shards {self.num_shards}; expected num_shards >= 1 "
                "and 0 <= shard_index < num_shards."
            )
        rest = self.count % self.global_batch
        if 0 < rest < self.num_shards and not self.drop_remainder:
            raise ConfigurationError(
                f"The last batch of the epoch has {rest} examples for {self.num_shards} workers, so some would get "
                "none; set drop_remainder, or choose another batch_size."
            )

    @property
    def global_batch(self) -> int:
        """Examples in each batch of all workers together."""
        return self.num_shards * self.batch_size

    @property
    def steps(self) -> int:
        """Batches in the whole epoch."""
        whole = self.count // self.global_batch
        return whole if self.drop_remainder or whole * self.global_batch == self.count else whole + 1

    @property
    def start(self) -> int:
        """Number of the first batch to deliver, from 0."""
        return min(self.skip_batches, self.steps)

    def order(self) -> npt.NDArray[np.int64]:
        """The order in which all workers together visit the examples; int64 ``[count]``."""
        return epoch_order(self.count, seed=self.seed, epoch=self.epoch)

    def local(self, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """This worker's part of an order, from the first batch to deliver on.

        Args:
            order: int64 ``[count]``.

        Returns:
            int64 ``[M]``: cut into pieces of ``batch_size`` they are its batches.
        """
        full = self.count // self.global_batch
        parts = order[: full * self.global_batch].reshape(full, self.num_shards, self.batch_size)
        chosen = parts[self.start :, self.shard_index].reshape(-1)
        if self.steps == full or self.start > full:
            return chosen
        begin, end = self.share(self.count - full * self.global_batch)
        return np.concatenate([chosen, order[full * self.global_batch :][begin:end]])

    def share(self, size: Any) -> tuple[Any, Any]:
        """This worker's part of a global batch.

        Args:
            size: Examples in the global batch; a number or an integer tensor.

        Returns:
            Its first example and the one after its last.
        """
        base, rest = size // self.num_shards, size % self.num_shards
        # Sums of comparisons, so that tensors will do: the first `rest` workers have one example more.
        return self._begin(base, rest, self.shard_index), self._begin(base, rest, self.shard_index + 1)

    def _begin(self, base: Any, rest: Any, index: int) -> Any:
        smaller = (rest + index - abs(rest - index)) // 2
        return base * index + smaller

    def seeds(self, purpose: int) -> int:
        """A seed of its own for one use of random numbers in this epoch.

        Args:
            purpose: Tells the uses apart.

        Returns:
            A number that fits int64.
        """
        state = np.random.SeedSequence([self.seed or 0, self.epoch, purpose]).generate_state(1, np.uint64)
        return int(state[0] >> np.uint64(1))


def epoch_order(count: int, *, seed: int | None, epoch: int) -> npt.NDArray[np.int64]:
    """The order in which one epoch visits its examples.

    Args:
        count: Number of examples.
        seed: Shuffles, differently in each epoch; None keeps the order.
        epoch: Number of the epoch, from 0.

    Returns:
        int64 ``[count]``, a permutation.

    Raises:
        ConfigurationError: ``seed`` or ``epoch`` is negative.
    """
    if epoch < 0 or (seed is not None and seed < 0):
        raise ConfigurationError(f"Received epoch {epoch} and seed {seed}; expected numbers >= 0.")
    if seed is None:
        return np.arange(count, dtype=np.int64)
    return np.random.default_rng([seed, epoch]).permutation(count).astype(np.int64)


def worker_share(context: Any) -> dict[str, Any]:
    """The arguments that give a worker of a ``tf.distribute`` strategy its part.

    For ``strategy.distribute_datasets_from_function``::

        lambda context: source.batches(InputRequest(batch_size=64, **worker_share(context)))

    Args:
        context: A ``tf.distribute.InputContext``.

    Returns:
        ``num_shards`` and ``shard_index``.
    """
    return {"num_shards": context.num_input_pipelines, "shard_index": context.input_pipeline_id}
