"""What a run trains on: the batches of each epoch, from a data set or from memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training.data import Stream, StreamPosition
from modelyard.training.distribute import Peers
from modelyard.training.loop import DeviceLoop, ResidentData, make_resident
from modelyard.training.run._options import TrainerOptions
from modelyard.training.user import InputRequest, Task


class TrainInput:
    """The training data of one run: in memory, a stream with a position, or made anew for each epoch.

    ``steps`` is None where an epoch has no end; ``shares`` is the number of processes among whom the task itself
    divides each batch, 1 where it makes whole ones.
    """

    def __init__(self, task: Task, options: TrainerOptions, peers: Peers) -> None:
        self._task = task
        self._options = options
        self._peers = peers
        self.label = f"train_dataset of task {task.name!r}"
        self.shares = peers.can_share(options.batch_size) if task.shares_input else 1
        self.resident = self._make_resident() if options.mode.resident else None
        self.position = None if self.resident else self._find_position()
        # The spec and the length of the input come from a data set that is never iterated.
        probe = self.resident or self._dataset(epoch=0, skip_batches=0)
        peers.check_shapes(probe.element_spec, self.label)
        self.element_spec = probe.element_spec
        self.steps = self.resident.steps if self.resident else self._length(probe)
        # Without an end there is max_steps.
        self.total_steps = options.total_steps(self.steps or 0)

    def batches(self, loop: DeviceLoop, *, epoch: int, skip_batches: int, step: int) -> Any:
        """The rest of an epoch, for a device loop."""
        if self.resident is not None:
            return self.resident.epoch(seed=self._options.seed, epoch=epoch, skip_batches=skip_batches)
        if self.position is not None:
            return self.position.iterator(loop, step)
        return loop.iterate(self.rest_of_epoch(epoch, skip_batches), shared=self.shares > 1)

    def rest_of_epoch(self, epoch: int, skip_batches: int) -> tf.data.Dataset:
        """The batches of an epoch less the first ones, where they are not in memory."""
        dataset = self._dataset(epoch=epoch, skip_batches=skip_batches)
        length, left = self._length(dataset), None if self.steps is None else self.steps - skip_batches
        if length != left:
            raise ConfigurationError(
                f"{self.label} gave {length} batches for epoch {epoch + 1} with skip_batches="
                f"{skip_batches}; expected {left}, since its first epoch has {self.steps}. "
                "It must leave out the first skip_batches batches, and every epoch must have the same length."
            )
        return dataset

    def batch(self, epoch: int, number: int) -> Any:
        """One batch once more; None of a stream, where it is gone."""
        if self.resident is not None:
            order = self.resident.epoch(seed=self._options.seed, epoch=epoch, skip_batches=0).order
            return self.resident.batch(order, tf.constant(number, tf.int64))
        return None if self.position else next(iter(self._dataset(epoch=epoch, skip_batches=number)))

    def _stream(self) -> Stream | None:
        task = self._task
        if task.train is None or type(task).train_dataset is not Task.train_dataset:
            return None
        source = task.data_source("train")
        return source if isinstance(source, Stream) else None

    def _find_position(self) -> StreamPosition | None:
        options, layout, stream = self._options, self._peers.layout, self._stream()
        if stream is None:
            return None
        position = StreamPosition(
            stream,
            batch_size=options.batch_size,
            drop_remainder=layout.fixed_shapes,
            seed=options.seed,
            # TensorFlow cannot save what copies batches ahead of time.
            saves=self._peers.single and not options.prefetch_to_device,
        )
        if options.model_dir is not None:
            position.check()
        return position

    def _make_resident(self) -> ResidentData:
        request = InputRequest(batch_size=self._options.batch_size, seed=self._options.seed)
        given = self._task.resident_data(request)
        if given is not None:
            return given
        dataset, stream = self._task.train_dataset(request), self._stream()
        given_steps = None if stream is None else stream.steps_per_epoch
        endless = dataset.cardinality() == tf.data.INFINITE_CARDINALITY
        if endless or given_steps is not None:
            # Only what the first epoch happens to read would ever be seen.
            raise ConfigurationError(
                f"{self.label} {'is endless' if endless else f'has steps_per_epoch={given_steps}'}; expected data with "
                'an end, and one pass over it as an epoch, for loop="epoch" (--loop epoch), which keeps all of it in '
                'memory. Use loop="loop" (--loop loop), or such data without steps_per_epoch.'
            )
        steps, position = known_length(dataset, self.label), self._find_position()
        # Of a stream in the order of the run's seed: a run that goes on reads it again.
        return make_resident(dataset if position is None else position.dataset.take(steps), self.label)

    def _length(self, dataset: tf.data.Dataset) -> int | None:
        if self._options.max_steps is not None and dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            return None
        whole = "batch_size" if self._peers.layout.fixed_shapes else None
        return known_length(dataset, self.label, whole_batches=whole)

    def _dataset(self, *, epoch: int, skip_batches: int) -> tf.data.Dataset:
        options = self._options
        return self._task.train_dataset(
            InputRequest(
                batch_size=options.batch_size // self.shares,
                seed=options.seed,
                epoch=epoch,
                skip_batches=skip_batches,
                num_shards=self.shares,
                shard_index=self._peers.layout.worker if self.shares > 1 else 0,
                drop_remainder=self._peers.layout.fixed_shapes,
            )
        )


def known_length(dataset: tf.data.Dataset, label: str, *, whole_batches: str | None = None) -> int:
    """The number of batches."""
    length = int(dataset.cardinality())
    if length == 0 and whole_batches is not None:
        raise ConfigurationError(
            f"{label} has not one full batch, and a TPU takes no other. Use a smaller {whole_batches} "
            f"(--{whole_batches.replace('_', '-')})."
        )
    if length < 1:
        what = {-1: "endless", -2: "of unknown length", 0: "empty"}[length]
        raise ConfigurationError(
            f"{label} is {what}; expected a finite number of batches, known beforehand. "
            "Where you know it, say so: Stream(dataset, steps_per_epoch=N). Training data may be endless with "
            "max_steps (--max-steps), and data to evaluate on with eval_steps (--eval-steps)."
        )
    return length
