"""Input function over TFRecord files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import FeatureSpec
from modelyard.errors import ConfigurationError
from modelyard.training.data._images import Augmentation, ImageOptions, decode_image, finish
from modelyard.training.data._plan import PREFETCH, BatchPlan, EpochArguments
from modelyard.training.data._records import IMAGE_KEY, LABEL_KEY, RecordFolder, RecordSplit
from modelyard.wire import object_array

_READERS = 8
_BLOCK = 16
_WINDOW = 8192
_WINDOW_BYTES = 256 << 20
_SHUFFLE = 2


def tfrecord_dataset(
    split: str,
    *,
    records: RecordFolder,
    image: ImageOptions,
    augmentation: Augmentation | None = None,
    shuffle_window: int | None = None,
    label_offset: int = 0,
    **arguments: Unpack[EpochArguments],
) -> tf.data.Dataset:
    """One epoch of TFRecord files: read interleaved, parsed a batch at a time, decoded in parallel.

    With a seed the order of the files is drawn anew in each epoch, and records are shuffled within windows. Everything
    is a function of ``seed`` and ``epoch``. Starting in the middle opens no file group that is over, and neither parses
    nor decodes what is left out. ``arguments`` are ``batch_size``, and other fields of :class:`InputRequest`;
    ``shuffle_window`` and ``label_offset`` are those of :class:`Records`.

    Returns:
        Batches ``(images, labels)``: float32 ``[B, height, width, channels]`` from 0 to 1, and int64 ``[B]``.

    Raises:
        ConfigurationError: An unknown or empty split, or a number out of its range.
    """
    files = records.split(split)
    plan = BatchPlan(count=files.count, **arguments)
    serialized = _serialized(files, plan, shuffle_window)
    fixed = files.size == image.enlarged

    def parse(batch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        begin, end = plan.share(tf.size(batch))
        features = tf.io.parse_example(
            batch[begin:end],
            {IMAGE_KEY: tf.io.FixedLenFeature([], tf.string), LABEL_KEY: tf.io.FixedLenFeature([], tf.int64)},
        )
        # One loop over a batch costs a third of what tf.data spends on elements one by one, where images are small.
        images = tf.map_fn(
            lambda data: _pixels(data, image, fixed=fixed),
            features[IMAGE_KEY],
            fn_output_signature=tf.TensorSpec([*image.enlarged, image.channels], tf.uint8 if fixed else tf.float32),
        )
        return images, features[LABEL_KEY] - label_offset

    batches = serialized.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return finish(batches, plan, image, augmentation)


def _pixels(data: tf.Tensor, image: ImageOptions, *, fixed: bool) -> tf.Tensor:
    pixels = decode_image(data, channels=image.channels)
    # To resize to the same size changes no value.
    return tf.ensure_shape(pixels, [*image.enlarged, image.channels]) if fixed else image.enlarge(pixels)


def feature_dataset(
    files: RecordSplit, plan: BatchPlan, features: Sequence[FeatureSpec], *, shuffle_window: int | None
) -> tf.data.Dataset:
    """Batches of features, ``[B, *shape]`` by name, in the order of :func:`tfrecord_dataset`."""

    def parse(batch: tf.Tensor) -> dict[str, tf.Tensor]:
        begin, end = plan.share(tf.size(batch))
        parsed = parse_features(batch[begin:end], features)
        size = plan.batch_size if plan.drop_remainder else None
        return {name: tf.ensure_shape(part, [size, *part.shape[1:]]) for name, part in parsed.items()}

    batches = _serialized(files, plan, shuffle_window).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.apply(tf.data.experimental.assert_cardinality(plan.steps - plan.start)).prefetch(PREFETCH)


def parse_features(messages: tf.Tensor, features: Sequence[FeatureSpec]) -> dict[str, tf.Tensor]:
    """Parses serialized Examples, ``[N]``, to ``[N, *shape]`` by name."""
    fields = {
        spec.name: tf.io.FixedLenFeature(
            spec.shape,
            tf.as_dtype(spec.dtype),
            None if spec.default is None else np.reshape(spec.default, spec.shape).tolist(),
        )
        for spec in features
    }
    return dict(tf.io.parse_example(messages, fields))


def read_messages(files: RecordSplit, count: int) -> npt.NDArray[np.object_]:
    """The first serialized Examples, bytes ``[N]``."""
    return object_array(
        list(tf.data.TFRecordDataset([str(path) for path in files.paths]).take(count).as_numpy_iterator())
    )


def _serialized(files: RecordSplit, plan: BatchPlan, window: int | None) -> tf.data.Dataset:
    """Global batches of serialized Examples, from the first to deliver on."""
    if window is None:
        window = min(_WINDOW, max(1, _WINDOW_BYTES * files.count // files.bytes))
    if window < 1:
        raise ConfigurationError(f"shuffle_window is {window}; expected a number of records >= 1.")
    order = (
        np.random.default_rng([plan.seed, plan.epoch]).permutation(len(files.paths))
        if plan.seed is not None
        else (np.arange(len(files.paths)))
    )
    first = plan.start * plan.global_batch
    if plan.seed is None:
        return _read(files, order, first).batch(plan.global_batch, drop_remainder=plan.drop_remainder)
    begin = first // window
    windows = tf.data.Dataset.zip(tf.data.Dataset.counter(begin), _read(files, order, begin * window).batch(window))
    base = plan.seeds(_SHUFFLE)

    def shuffled(number: tf.Tensor, messages: tf.Tensor) -> tf.Tensor:
        mixed = tf.random.experimental.stateless_shuffle(messages, seed=tf.stack([tf.constant(base, tf.int64), number]))
        return mixed[tf.maximum(tf.constant(first, tf.int64) - number * window, 0) :]

    return (
        windows.map(shuffled)
        # The next window is read while the batches of this one are used.
        .prefetch(1)
        .rebatch(plan.global_batch, drop_remainder=plan.drop_remainder)
    )


def _read(files: RecordSplit, order: np.ndarray, first: int) -> tf.data.Dataset:
    """All records from number ``first`` on: groups of files, interleaved within the group."""
    counts = [sum(files.counts[index] for index in order[at : at + _READERS]) for at in range(0, len(order), _READERS)]
    group = 0
    while group < len(counts) and first >= counts[group]:
        first -= counts[group]
        group += 1
    paths = tf.constant([str(files.paths[index]) for index in order])

    def interleaved(number: tf.Tensor) -> tf.data.Dataset:
        chosen = paths[number * _READERS : (number + 1) * _READERS]
        return tf.data.Dataset.from_tensor_slices(chosen).interleave(
            tf.data.TFRecordDataset,
            cycle_length=_READERS,
            block_length=_BLOCK,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )

    return tf.data.Dataset.range(group, len(counts)).flat_map(interleaved).skip(first)
