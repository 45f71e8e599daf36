"""Which examples each batch of an epoch has: shuffled, shared among workers, resumable anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError

if TYPE_CHECKING:
    import tensorflow as tf

#: Batches that are made ahead of time.
PREFETCH = 4


class EpochArguments(TypedDict):
    """The arguments of input functions that say which batches of which epoch."""

    batch_size: int
    seed: NotRequired[int | None]
    epoch: NotRequired[int]
    skip_batches: NotRequired[int]
    num_shards: NotRequired[int]
    shard_index: NotRequired[int]
    drop_remainder: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The batches of one epoch, as one worker sees them; the fields are those of :class:`InputRequest`.

    A global batch has ``num_shards * batch_size`` examples, and every worker takes its part of each: the union over the
    workers does not depend on their number. A last, smaller global batch is shared out evenly. Without a seed the order
    is kept.
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
        if self.seed is None:
            return np.arange(self.count, dtype=np.int64)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.count).astype(np.int64)

    def local(self, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """This worker's part of an order, from the first batch on: int64 ``[M]``, one batch after the other."""
        full = self.count // self.global_batch
        parts = order[: full * self.global_batch].reshape(full, self.num_shards, self.batch_size)
        chosen = parts[self.start :, self.shard_index].reshape(-1)
        if self.steps == full or self.start > full:
            return chosen
        begin, end = self.share(self.count - full * self.global_batch)
        return np.concatenate([chosen, order[full * self.global_batch :][begin:end]])

    def share(self, size: Any) -> tuple[Any, Any]:
        """This worker's part of a global batch."""
        base, rest = size // self.num_shards, size % self.num_shards
        # Sums of comparisons, so that tensors will do: the first `rest` workers have one example more.
        return self._begin(base, rest, self.shard_index), self._begin(base, rest, self.shard_index + 1)

    def _begin(self, base: Any, rest: Any, index: int) -> Any:
        smaller = (rest + index - abs(rest - index)) // 2
        return base * index + smaller

    def seeds(self, purpose: int) -> int:
        """A seed of its own, which fits int64, for one use of random numbers in this epoch."""
        state = np.random.SeedSequence([self.seed or 0, self.epoch, purpose]).generate_state(1, np.uint64)
        return int(state[0] >> np.uint64(1))


def worker_share(context: tf.distribute.InputContext) -> dict[str, Any]:
    """The arguments ``num_shards`` and ``shard_index`` for a worker of a ``tf.distribute`` strategy.

    For ``strategy.distribute_datasets_from_function``::

        lambda context: source.batches(InputRequest(batch_size=64, **worker_share(context)))
    """
    return {"num_shards": context.num_input_pipelines, "shard_index": context.input_pipeline_id}
