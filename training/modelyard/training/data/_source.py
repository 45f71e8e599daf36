"""Data that a task can be given as it is: a source makes the batches of any epoch, from any place in it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import FeatureSpec
from modelyard.errors import ConfigurationError
from modelyard.training.data._plan import PREFETCH, BatchPlan, EpochArguments
from modelyard.training.loop import ResidentData
from modelyard.training.user import RemembersArguments

if TYPE_CHECKING:
    from modelyard.training.user import InputRequest


@dataclass(frozen=True, kw_only=True, eq=False)
class DataExamples:
    """Some examples of a source, as the model takes them, and as they are stored where they are encoded.

    Labels, int64 ``[N]``, are None where the second part of a batch is no class for each example.
    """

    inputs: Any
    labels: npt.NDArray[np.int64] | None = None
    encoded: npt.NDArray[np.object_] | None = None

    @property
    def count(self) -> int:
        """How many."""
        return len(tf.nest.flatten(self.inputs)[0])


class DataSource(RemembersArguments, abc.ABC):
    """Batches ``(inputs, labels)``, or ``(inputs, labels, weights)``, or of inputs alone.

    Attributes:
        class_names: Names of the classes in the order of their numbers; empty where they have no names.
        shares: Whether ``num_shards`` of a request is honoured.
        preprocess: From the pixels of an encoded image, uint8 ``[H, W, channels]``, to one example; None for no images.
        channels: Of these pixels, 1 or 3.
        features: What stored ``tf.Example`` messages hold, without the label; empty for none.
        description: Says what the data is, for people.
    """

    class_names: tuple[str, ...] = ()
    shares: bool = True
    preprocess: Callable[[tf.Tensor], tf.Tensor] | None = None
    channels: int = 3
    features: tuple[FeatureSpec, ...] = ()
    description: str = ""

    @property
    @abc.abstractmethod
    def element_spec(self) -> Any:
        """Spec of the batches, with an unknown number of examples."""

    @abc.abstractmethod
    def batches(self, request: InputRequest, *, training: bool = True) -> tf.data.Dataset:
        """The batches of one epoch, a pure function of the request; shuffled and changed at random only in training."""

    def fitted(self, shapes: Sequence[tuple[int | None, ...]], *, class_names: tuple[str, ...]) -> DataSource:
        """The same data in the form that a model takes.

        Args:
            shapes: Of the model's inputs, with the batch first; empty where they are not known.
            class_names: The classes of the training data, for a source that does not know them itself.
        """
        return self

    def resident(self, request: InputRequest) -> ResidentData | None:
        """All of it as tensors; None where it is not in memory."""
        return None

    def examples(self, count: int) -> DataExamples:
        """The first examples."""
        from modelyard.training.user import InputRequest

        taken, parts = 0, []
        for batch in self.batches(InputRequest(batch_size=count), training=False):
            parts.append([np.asarray(part) for part in tf.nest.flatten(batch)])
            taken += len(parts[-1][0])
            if taken >= count:
                break
        joined = [np.concatenate(each)[:count] for each in zip(*parts, strict=True)]
        inputs, labels = split_batch(tf.nest.pack_sequence_as(self.element_spec, joined))
        return DataExamples(inputs=inputs, labels=labels if is_label(labels) else None)

    def from_features(self, tensors: dict[str, tf.Tensor]) -> Any:
        """From the features of stored messages, ``[N, ...]`` by name, to what the model takes."""
        return tensors if len(tensors) > 1 else next(iter(tensors.values()))

    @property
    def inputs_spec(self) -> Any:
        """Spec of what the model takes."""
        return split_batch(self.element_spec)[0]

    @property
    def labels_spec(self) -> Any:
        """Spec of the labels, where they are a class for each example; None elsewhere."""
        labels = split_batch(self.element_spec)[1]
        return labels if is_label(labels) else None


class Arrays(DataSource):
    """Data in memory.

    Args:
        arrays: Arrays, or a nest of them such as ``(inputs, labels)``, with the examples along axis 0.
        prepare: From a batch as it is stored to what a step gets; None where they are the same.
        class_names: Of the labels.
        description: Says what the data is.

    Raises:
        ConfigurationError: These are no arrays, or they do not have the same number of examples.
    """

    def __init__(
        self,
        arrays: Any,
        *,
        prepare: Callable[[Any], Any] | None = None,
        class_names: Sequence[str] = (),
        description: str = "",
    ) -> None:
        self._arrays = tf.nest.map_structure(np.asarray, arrays)
        single = [array for array in tf.nest.flatten(self._arrays) if not array.ndim]
        if single:
            raise ConfigurationError(
                f"Received a {type(arrays).__name__} with {single[0].item()!r} in it; expected arrays with examples "
                "along axis 0, such as (inputs, labels). Lists become arrays by np.asarray, files ImageFolder(path) "
                "or Records(pattern)."
            )
        counts = {len(array) for array in tf.nest.flatten(self._arrays)}
        if len(counts) != 1 or 0 in counts:
            raise ConfigurationError(
                f"Received arrays of {sorted(counts)} examples; expected the same number, above 0, in each, such as "
                "(inputs, labels)."
            )
        (self._count,) = counts
        self._prepare = prepare
        self.class_names = tuple(class_names)
        self.description = description or f"{self._count:,} examples in memory"

    @cached_property
    def _tensors(self) -> Any:
        with tf.init_scope(), tf.device("CPU"):
            return tf.nest.map_structure(tf.constant, self._arrays)

    @cached_property
    def element_spec(self) -> Any:
        """Spec of the batches."""
        return ResidentData(tensors=self._tensors, batch_size=1, prepare=self._prepare).element_spec

    def batches(self, request: InputRequest, *, training: bool = True) -> tf.data.Dataset:
        """Batches gathered from memory, one op for each."""
        plan = BatchPlan(count=self._count, **request_fields(request, training=training))
        size, tensors, prepare = plan.batch_size, self._tensors, self._prepare
        with tf.device("CPU"):
            positions = tf.constant(plan.local(plan.order()))

        def batch(index: tf.Tensor) -> Any:
            chosen = positions[index * size : (index + 1) * size]
            if plan.drop_remainder:
                chosen = tf.ensure_shape(chosen, [size])
            gathered = tf.nest.map_structure(lambda tensor: tf.gather(tensor, chosen), tensors)
            return gathered if prepare is None else prepare(gathered)

        return tf.data.Dataset.range(plan.steps - plan.start).map(batch).prefetch(PREFETCH)

    def resident(self, request: InputRequest) -> ResidentData:
        """All of it as tensors."""
        return ResidentData(tensors=self._tensors, batch_size=request.batch_size, prepare=self._prepare)


def request_fields(request: InputRequest, *, training: bool) -> EpochArguments:
    """The fields of a request as the arguments of an input function; without a seed where nothing is to be random."""
    fields: EpochArguments = {**vars(request), "seed": request.seed if training else None}  # type: ignore[typeddict-item]
    return fields


def split_batch(batch: object) -> tuple[Any, Any]:
    """Inputs and labels of a batch, or of its spec; None for no labels."""
    if isinstance(batch, tuple) and len(batch) > 1:
        return batch[0], batch[1]
    return (batch[0] if isinstance(batch, tuple) else batch), None


def is_label(labels: Any) -> bool:
    """Whether these are a class for each example."""
    if labels is None or isinstance(labels, dict | tuple | list):
        return False
    return tf.as_dtype(labels.dtype).is_integer and len(labels.shape) == 1
