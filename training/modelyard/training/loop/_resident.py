"""Training data that stays on the device: shuffled, cut into batches and prepared inside the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from modelyard.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class ResidentData:
    """A whole data set as tensors, for ``loop="epoch"``.

    The order of an epoch is a function of the seed and the epoch alone: a run that goes on in the middle sees the same
    batches.

    Attributes:
        tensors: Tensors, or a nest of them, with the examples along axis 0.
        batch_size: Examples in each batch; the last one may be smaller.
        prepare: From a gathered batch to what the step gets; None where they are the same.
        shuffle: Whether each epoch has an order of its own.

    Raises:
        ConfigurationError: The tensors do not all have the same number of examples.
    """

    tensors: object
    batch_size: int
    prepare: Callable[[Any], Any] | None = None
    shuffle: bool = True

    def __post_init__(self) -> None:
        counts = {int(tensor.shape[0]) for tensor in tf.nest.flatten(self.tensors)}
        if len(counts) != 1 or 0 in counts:
            raise ConfigurationError(
                f"Resident data has tensors of {sorted(counts)} examples; expected the same number, above 0, in each."
            )

    @property
    def examples(self) -> int:
        """Number of examples."""
        return int(tf.nest.flatten(self.tensors)[0].shape[0])

    @property
    def steps(self) -> int:
        """Batches in each epoch."""
        return -(-self.examples // self.batch_size)

    @property
    def element_spec(self) -> object:
        """Spec of the batches, with an unknown number of examples."""
        specs = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), self.tensors
        )
        if self.prepare is None:
            return specs
        outputs = tf.function(self.prepare).get_concrete_function(specs).structured_outputs
        return tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), outputs)

    def epoch(self, *, seed: int, epoch: int, skip_batches: int) -> ResidentEpoch:
        """One epoch, numbered from 0, less its first batches; the seed is that of the order."""
        positions = tf.range(self.examples, dtype=tf.int64)
        if self.shuffle:
            # Seeds of stateless ops are signed.
            low = seed - (1 << 32) if seed >= 1 << 31 else seed
            positions = tf.random.experimental.stateless_shuffle(positions, seed=tf.constant([low, epoch], tf.int32))
        return ResidentEpoch(order=positions, position=skip_batches)

    def batch(self, order: tf.Tensor, number: tf.Tensor) -> object:
        """Batch ``number``, int64 ``[]``, in an order of the examples, int64 ``[N]``; in a replica its share of it."""
        begin = number * self.batch_size
        end = tf.minimum(begin + self.batch_size, self.examples)
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            count, parts = end - begin, replica.num_replicas_in_sync
            index = tf.cast(replica.replica_id_in_sync_group, tf.int64)
            begin, end = begin + count * index // parts, begin + count * (index + 1) // parts
        chosen = order[begin:end]
        gathered = tf.nest.map_structure(lambda tensor: tf.gather(tensor, chosen), self.tensors)
        return gathered if self.prepare is None else self.prepare(gathered)


@dataclass(kw_only=True)
class ResidentEpoch:
    """Where a loop is in an epoch: the order of the examples, int64 ``[N]``, and the number of the next batch."""

    order: tf.Tensor
    position: int


def make_resident(dataset: tf.data.Dataset, label: str) -> ResidentData:
    """Reads a data set into memory; its batches keep their size, which the data set may have chosen itself.

    Args:
        dataset: Of batches, finite and not empty.
        label: What errors call it.

    Raises:
        ConfigurationError: The batches, but for a smaller last one, are not all of one size.
    """
    batches = [tf.nest.flatten(batch) for batch in dataset]
    sizes = [int(parts[0].shape[0]) for parts in batches]
    if set(sizes[:-1]) - {sizes[0]} or sizes[-1] > sizes[0]:
        raise ConfigurationError(
            f"{label} has batches of {min(sizes)} to {max(sizes)} examples; expected one size, but for a smaller last "
            'batch: loop="epoch" (--loop epoch) cuts the batches anew in each epoch. Use loop="loop" (--loop loop).'
        )
    joined = [tf.concat(parts, axis=0) for parts in zip(*batches, strict=True)]
    return ResidentData(tensors=tf.nest.pack_sequence_as(dataset.element_spec, joined), batch_size=sizes[0])
