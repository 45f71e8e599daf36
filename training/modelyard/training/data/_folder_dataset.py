"""Input function over an image folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, VerificationData, drafted
from modelyard.errors import TrainingError
from modelyard.training.data._folder import ImageSplits
from modelyard.training.data._images import Augmentation, ImageOptions, decode_image, finish, scale
from modelyard.training.data._plan import BatchPlan, EpochArguments
from modelyard.training.run import first_line
from modelyard.training.user import RemembersArguments
from modelyard.wire import object_array


class ImageCache(RemembersArguments):
    """Images of a folder that are decoded and resized once, not in every epoch.

    They are kept as float32 before the crop, so that a cached image equals one that is read again, bit for bit.

    Args:
        folder: Where to keep them as files that later runs use again, and that need not fit into memory; None for
            memory.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._arrays: dict[str, npt.NDArray[np.float32]] = {}

    def images(self, source: ImageSplits, split: str, image: ImageOptions) -> npt.NDArray[np.float32]:
        """The images of a split, read where they are not there yet: float32 ``[N, *enlarged, channels]`` to 255.

        Raises:
            TrainingError: A file cannot be read or is no image, or one of the cache cannot be written or is damaged;
                the message names it.
        """
        files = source.files(split)
        stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files.paths]
        identity = json.dumps([stats, image.enlarged, image.channels])
        key = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        if key not in self._arrays:
            shape = (len(files.paths), *image.enlarged, image.channels)
            self._arrays[key] = self._load(key, shape, files.paths, image)
        return self._arrays[key]

    def _load(
        self, key: str, shape: tuple[int, ...], paths: tuple[Path, ...], image: ImageOptions
    ) -> npt.NDArray[np.float32]:
        if self._folder is None:
            return _fill(np.empty(shape, np.float32), paths, image)
        target = self._folder / f"{key}.npy"
        try:
            if not target.is_file():
                self._folder.mkdir(parents=True, exist_ok=True)
                with drafted(target) as draft:
                    array = np.lib.format.open_memmap(draft, mode="w+", dtype=np.float32, shape=shape)
                    _fill(array, paths, image).flush()
            return np.lib.format.open_memmap(target, mode="r")
        except (OSError, ValueError) as exc:
            raise TrainingError(
                f"The cached images {target} cannot be read or written: {exc}. Remove that file."
            ) from exc


def image_folder_dataset(
    split: str,
    *,
    folder: ImageSplits,
    image: ImageOptions,
    augmentation: Augmentation | None = None,
    cache: ImageCache | None = None,
    **arguments: Unpack[EpochArguments],
) -> tf.data.Dataset:
    """One epoch of an image folder: files read and decoded in parallel, in a fixed order.

    Everything is a function of ``seed`` and ``epoch``; starting in the middle reads nothing of what is left out.
    ``arguments`` are ``batch_size``, and other fields of :class:`InputRequest`. A ``cache`` must be the same in every
    epoch.

    Returns:
        Batches ``(images, labels)``: float32 ``[B, height, width, channels]`` from 0 to 1, and int64 ``[B]``.

    Raises:
        ConfigurationError: An unknown or empty split, or a number out of its range.
        TrainingError: With ``cache``, a file cannot be read or is no image.
    """
    files = folder.files(split)
    plan = BatchPlan(count=len(files.paths), **arguments)
    local = plan.local(plan.order())
    labels = tf.data.Dataset.from_tensor_slices(files.labels[local])
    if cache is None:
        names = np.array([os.fsencode(path) for path in files.paths], dtype=object)[local]
        images = tf.data.Dataset.from_tensor_slices(names).map(
            lambda name: image.enlarge(_read(name, image.channels)), num_parallel_calls=tf.data.AUTOTUNE
        )
        batches = tf.data.Dataset.zip(images, labels).batch(plan.batch_size, drop_remainder=plan.drop_remainder)
    else:
        kept = cache.images(folder, split, image)
        batches = tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices(local), labels)
        batches = batches.batch(plan.batch_size, drop_remainder=plan.drop_remainder)
        batches = batches.map(lambda chosen, classes: (_gather(kept, chosen), classes))
    return finish(batches, plan, image, augmentation)


def image_examples(
    folder: ImageSplits,
    *,
    image: ImageOptions,
    count: int,
    input: str = "image",
    encoded: str = "image_bytes",
) -> VerificationData:
    """What ``Task.verification_data`` returns for a classifier of an image folder: at most ``count`` images.

    The input of ``serving_default`` gets them prepared as in evaluation, float32 ``[N, height, width, channels]``; the
    signature, and its input, ``encoded`` gets the files as they are.

    Raises:
        ConfigurationError: ``count`` is below 1.
        TrainingError: A file cannot be read or is no image; the message names it.
    """
    files = folder.examples(count)
    inputs, data = load_images(files.paths, image)
    tested = min(len(files.paths), len(folder.test.paths))
    parts = [f"{tested} test", f"{len(files.paths) - tested} training"][: 1 if tested == len(files.paths) else 2]
    return VerificationData(
        inputs={DEFAULT_SIGNATURE: {input: inputs}, encoded: {encoded: data}},
        labels=files.labels,
        class_names=folder.class_names,
        description=f"{' and '.join(parts)} images; {folder.description}",
    )


def load_images(
    images: Sequence[Path | bytes], image: ImageOptions
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.object_]]:
    """Images as evaluation sees them, float32 ``[N, height, width, channels]``, and as they are stored, bytes."""
    data = object_array([item if isinstance(item, bytes) else item.read_bytes() for item in images])
    pixels = _fill(np.empty((len(images), *image.enlarged, image.channels), np.float32), images, image)
    return scale(image.middle(pixels)).numpy(), data


def _gather(images: npt.NDArray[np.float32], chosen: tf.Tensor) -> tf.Tensor:
    # From numpy: an array on disk must not become a tensor in memory.
    pixels = tf.numpy_function(lambda positions: images[positions], [chosen], tf.float32, stateful=False)
    return tf.ensure_shape(pixels, [None, *images.shape[1:]])


def _read(name: tf.Tensor, channels: Any) -> tf.Tensor:
    data = tf.io.read_file(name)
    head = tf.strings.substr(data, 0, 4)
    known = tf.io.is_jpeg(data) | (head == b"\x89PNG") | (head == b"GIF8") | (tf.strings.substr(head, 0, 2) == b"BM")
    known |= head == b"RIFF"
    # What the decoder says about a file of another kind does not tell which file it is.
    with tf.control_dependencies([tf.debugging.Assert(known, ["This file is no JPEG, PNG, GIF, BMP or WebP:", name])]):
        return decode_image(data, channels=channels)


def _fill(array: Any, images: Sequence[Path | bytes], image: ImageOptions) -> Any:
    stored = not isinstance(images[0], Path)
    names = tf.data.Dataset.from_tensor_slices(list(images) if stored else [os.fsencode(path) for path in images])
    decoded = names.map(
        lambda name: image.enlarge(
            decode_image(name, channels=image.channels) if stored else _read(name, image.channels)
        ),
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    done = 0
    try:
        for done, pixels in enumerate(decoded.prefetch(tf.data.AUTOTUNE)):
            array[done] = pixels.numpy()
            done += 1
    except tf.errors.OpError as exc:
        named = f"of record {done}" if stored else str(images[done])
        raise TrainingError(f"The image {named} cannot be read: {first_line(exc)}") from exc
    return array
