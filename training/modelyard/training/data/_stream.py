"""Any ``tf.data.Dataset``: of known or unknown length or endless, batched or not, shuffled however its owner likes."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tensorflow as tf

from modelyard.errors import CheckpointError, ConfigurationError
from modelyard.training.data._source import DataSource, split_batch
from modelyard.training.run import whole_number

if TYPE_CHECKING:
    from modelyard.training.loop import DeviceLoop
    from modelyard.training.user import InputRequest

#: Of an iterator in a checkpoint.
_PREFIX = "input"
_EXPERIMENTAL = tf.data.experimental


class Stream(DataSource):
    """A ``tf.data.Dataset`` that is read from its beginning to its end, again and again.

    It stays as its owner made it, but for a ``shuffle()`` without a seed, which gets the run's. A run that goes on
    takes up its saved iterator, with what is in its shuffle buffers. Where TensorFlow cannot save that, which is so for
    Python generators, for a ``shuffle()`` in ``flat_map()`` or ``interleave()``, and under a strategy, the batches that
    were used are read again and left out.

    Args:
        dataset: Of examples or batches ``(inputs, labels)``.
        batched: Whether its elements are batches; None to tell by the shapes that the model takes. Examples are
            put into batches of ``TrainerOptions.batch_size``.
        steps_per_epoch: Batches in an epoch; None for the length of the data set, which is counted where it is
            not known. Needed where it is endless; refused with ``loop="epoch"``.
        class_names: Of the labels.
        description: Says what the data is.

    Raises:
        ConfigurationError: It is no ``tf.data.Dataset``, or ``steps_per_epoch`` no whole number from 1.
    """

    shares = False

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        batched: bool | None = None,
        steps_per_epoch: int | None = None,
        class_names: Sequence[str] = (),
        description: str = "",
    ) -> None:
        if not isinstance(dataset, tf.data.Dataset):
            raise ConfigurationError(
                f"The data is a {type(dataset).__name__}; expected a tf.data.Dataset, which from_generator makes of a "
                "Python function."
            )
        self._dataset = dataset
        self._batched = batched
        self.steps_per_epoch = None if steps_per_epoch is None else whole_number("steps_per_epoch", steps_per_epoch, 1)
        self._lengths: dict[tuple[int, bool], int] = {}
        self.class_names = tuple(class_names)
        self.description = description or "a tf.data.Dataset"

    def fitted(self, shapes: Sequence[tuple[int | None, ...]], *, class_names: tuple[str, ...]) -> Self:
        """The same data, as batches.

        Raises:
            ConfigurationError: It is not known whether its elements are batches.
        """
        self.class_names = self.class_names or class_names
        if self._batched is None:
            self._batched = self._is_batched(shapes)
        return self

    @cached_property
    def element_spec(self) -> Any:
        """Spec of the batches."""
        return self.dataset(1).element_spec

    def dataset(self, batch_size: int, *, drop_remainder: bool = False) -> tf.data.Dataset:
        """One pass over the batches, of this size where the data set has none of its own."""
        if self._batched is None:
            self._batched = self._is_batched(())
        return self._dataset if self._batched else self._dataset.batch(batch_size, drop_remainder=drop_remainder)

    def batches(self, request: InputRequest, *, training: bool = True) -> tf.data.Dataset:
        """One epoch, as it comes.

        Raises:
            ConfigurationError: Data to evaluate on has fewer batches than ``steps_per_epoch``.
        """
        dataset = self.dataset(request.batch_size, drop_remainder=request.drop_remainder)
        steps = self.length(request.batch_size, drop_remainder=request.drop_remainder)
        if steps == tf.data.INFINITE_CARDINALITY:
            return dataset
        there = int(dataset.cardinality())
        # Training data begins again; an evaluation that did so would count some examples twice.
        if not training and 0 <= there < steps:
            raise ConfigurationError(
                f"The test data has {there} batches, and steps_per_epoch={steps}; expected {there} or less. Leave "
                "steps_per_epoch out for all of them."
            )
        rest = dataset.take(steps).skip(request.skip_batches)
        return rest.apply(_EXPERIMENTAL.assert_cardinality(max(0, steps - request.skip_batches))).prefetch(2)

    def length(self, batch_size: int, *, drop_remainder: bool = False) -> int:
        """Batches in an epoch; -1 for an endless data set."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        key = (batch_size, drop_remainder)
        if key not in self._lengths:
            dataset = self.dataset(batch_size, drop_remainder=drop_remainder)
            length = int(dataset.cardinality())
            if length == tf.data.UNKNOWN_CARDINALITY:
                length = int(dataset.reduce(tf.constant(0, tf.int64), lambda count, *_: count + 1))
            self._lengths[key] = length
        return self._lengths[key]

    def _is_batched(self, shapes: Sequence[tuple[int | None, ...]]) -> bool:
        spec = self._dataset.element_spec
        inputs = [part.shape for part in tf.nest.flatten(split_batch(spec)[0])]
        ranks = [(shape.rank, len(taken)) for shape, taken in zip(inputs, shapes, strict=False)]
        if ranks and all(own == taken for own, taken in ranks):
            return True
        if ranks and all(own == taken - 1 for own, taken in ranks):
            return False
        first = {None if shape.rank is None or not shape.rank else shape[0] for shape in inputs}
        scalars = any(part.shape.rank == 0 for part in tf.nest.flatten(spec))
        if ranks or (not scalars and first != {None}):
            raise ConfigurationError(
                f"The data set has elements of {spec}, and the model takes {list(map(list, shapes)) or 'anything'}"
                "; it is not known whether they are batches. Say it: Stream(dataset, batched=True), or False."
            )
        return not scalars


class StreamPosition:
    """Where a run is in a stream; ``saves`` is whether TensorFlow can save the iterator, not so under a strategy."""

    def __init__(self, stream: Stream, *, batch_size: int, drop_remainder: bool, seed: int, saves: bool) -> None:
        # One iterator for the whole run: what a data set shuffles depends on how often it was begun.
        batches = stream.dataset(batch_size, drop_remainder=drop_remainder)
        self.dataset = seeded(batches, seed).repeat().prefetch(2)
        self._saves = saves
        self._iterator: Any = None
        self._saved: Path | None = None

    def check(self) -> None:
        """Makes sure that a run with checkpoints can go on from them.

        Raises:
            ConfigurationError: It draws random numbers that cannot be drawn again.
        """
        unseeded = _unseeded(self.dataset)
        if unseeded:
            raise ConfigurationError(
                f"The training data draws random numbers ({', '.join(unseeded)}) that a run which goes on from a "
                "checkpoint could not draw again. Use tf.random.stateless_uniform and its like in map(), "
                "give a shuffle() in it a seed, or train without model_dir."
            )

    def restore(self, checkpoint: Path) -> None:
        """Goes on from the folder of a checkpoint."""
        self._saved = checkpoint if (checkpoint / f"{_PREFIX}.index").is_file() else None

    def iterator(self, loop: DeviceLoop, step: int) -> Iterator[Any]:
        """The batches after so many steps since the start of the run, for a device loop.

        Raises:
            CheckpointError: The saved iterator is of other data.
        """
        if self._iterator is None:
            skipped = 0 if self._saved is not None else step
            self._iterator = loop.iterate(self.dataset.skip(skipped) if skipped else self.dataset)
            if self._saved is not None:
                try:
                    tf.train.Checkpoint(iterator=self._iterator).read(str(self._saved / _PREFIX)).expect_partial()
                except (tf.errors.OpError, ValueError) as exc:
                    raise CheckpointError(
                        f"The checkpoint {self._saved} has the position in other data than this run's. Use the same "
                        "data to go on with it, or another model_dir to start anew."
                    ) from exc
        return self._iterator

    def save(self) -> dict[str, bytes]:
        """Files of the present position, by name; none where counting finds it again.

        Raises:
            CheckpointError: TensorFlow fails at it.
        """
        if not self._saves or self._iterator is None:
            return {}
        try:
            with tempfile.TemporaryDirectory(prefix="modelyard-input-") as folder:
                tf.train.Checkpoint(iterator=self._iterator).write(str(Path(folder) / _PREFIX))
                return {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        except tf.errors.FailedPreconditionError:
            # Something in it has state that no checkpoint can have: Python, or a function's own shuffling. TensorFlow
            # finds out only here, with an iterator that is under way.
            self._saves = False
            return {}
        except tf.errors.OpError as exc:
            raise CheckpointError(
                f"The position in the training data cannot be saved: {exc.message} Train without model_dir, or write "
                "train_dataset(request), which returns any part of an epoch."
            ) from exc


def _draws(op: str) -> bool:
    return "Random" in op and "Stateless" not in op


def _graph(dataset: tf.data.Dataset) -> tf.compat.v1.GraphDef:
    text = tf.raw_ops.DatasetToGraphV2(
        input_dataset=_EXPERIMENTAL.to_variant(dataset), external_state_policy=1, strip_device_assignment=True
    )
    return tf.compat.v1.GraphDef.FromString(text.numpy())


def seeded(dataset: tf.data.Dataset, seed: int) -> tf.data.Dataset:
    """A data set whose shuffling, where it has no seed of its own, is a function of the run's."""
    graph = _graph(dataset)
    for number, (_, constants) in enumerate(_unseeded_shuffles(graph.node)):
        for constant, value in zip(constants, (seed, number + 1), strict=True):
            constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
    handles = {name.partition(":")[0] for node in graph.node if "Shuffle" in node.op for name in node.input}
    generators = [
        handle
        for node in graph.node
        if node.name in handles
        for handle in node.attr["value"].tensor.resource_handle_val
    ]
    if not handles:
        return dataset
    for handle in generators:
        # Of its own: the data set's counts how often it was begun, by all readers.
        handle.name = f"modelyard-{uuid.uuid4()}"
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return _EXPERIMENTAL.from_variant(variant, dataset.element_spec)


def _unseeded_shuffles(nodes: Iterable[tf.compat.v1.NodeDef]) -> Iterator[tuple[Any, list[Any]]]:
    """Nodes that shuffle in an order of their own, and the constants that are their seeds."""
    constants = {node.name: node for node in nodes if node.op == "Const"}
    for node in nodes:
        if "Shuffle" in node.op:
            # After the data set and the size of the buffer.
            seeds = [
                constants[name.partition(":")[0]] for name in node.input[2:4] if name.partition(":")[0] in constants
            ]
            if seeds and not any(int(tf.make_ndarray(each.attr["value"].tensor)) for each in seeds):
                yield node, seeds


def _unseeded(dataset: tf.data.Dataset) -> list[str]:
    """The ops of a data set whose random numbers are other ones in another process."""
    graph = _graph(dataset)
    found = set()
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        found |= {node.op for node, _ in _unseeded_shuffles(nodes)} | {node.op for node in nodes if _draws(node.op)}
    return sorted(found)
