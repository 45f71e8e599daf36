"""Sources of files: image folders and TFRecord files."""

from __future__ import annotations

import copy
import glob
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
import tensorflow as tf

from modelyard.artifact import FeatureSpec
from modelyard.errors import ConfigurationError, DatasetNotFoundError, TrainingError
from modelyard.training.data._folder import SPLITS, ImageFiles, ImageSplits, scan_images, spread
from modelyard.training.data._folder_dataset import ImageCache, image_folder_dataset, load_images
from modelyard.training.data._images import Augmentation, ImageOptions
from modelyard.training.data._plan import BatchPlan
from modelyard.training.data._record_dataset import feature_dataset, parse_features, read_messages, tfrecord_dataset
from modelyard.training.data._records import IMAGE_KEY, LABEL_KEY, RecordFolder, list_records
from modelyard.training.data._source import DataExamples, DataSource, request_fields
from modelyard.training.run import first_line

if TYPE_CHECKING:
    from modelyard.training.user import InputRequest

_T = TypeVar("_T")


class _Images(DataSource):
    """What image folders and records of images have in common: a size that the model decides."""

    _image: ImageOptions | None = None
    _augmentation: Augmentation | None = None
    _given_names: tuple[str, ...] | None = None
    where: str = ""

    def fitted(self, shapes: Sequence[tuple[int | None, ...]], *, class_names: tuple[str, ...]) -> Self:
        """The same images in the size of the model's input, with the classes of the training data."""
        key = (tuple(shapes), class_names)
        known: dict[object, Self] = self.__dict__.setdefault("_fitted", {})
        if key not in known:
            known[key] = fit = copy.copy(self)
            if self._image is None and not self.features:
                fit._image = _image_options(shapes, self.where)
            if class_names and self._given_names is None:
                fit._given_names = class_names
                self._check_names(class_names)
                for name in ("files", "class_names"):
                    fit.__dict__.pop(name, None)
        return known[key]

    def _check_names(self, class_names: tuple[str, ...]) -> None:
        """Refuses the classes of the training data where the labels here have numbers of their own."""

    @property
    def image(self) -> ImageOptions:
        """What the model sees of an image."""
        return _image_options((), self.where) if self._image is None else self._image

    @property
    def channels(self) -> int:  # type: ignore[override]
        """Of the pixels: 1 or 3."""
        return 3 if self._image is None else self._image.channels

    @property
    def element_spec(self) -> Any:
        """Images from 0 to 1, float32 ``[B, H, W, C]``, and classes, int64 ``[B]``."""
        image = self.image
        shape = [None, image.height, image.width, image.channels]
        return tf.TensorSpec(shape, tf.float32), tf.TensorSpec([None], tf.int64)

    @property
    def preprocess(self) -> Any:  # type: ignore[override]
        """The path of evaluation, from the pixels of an image file."""
        return None if self.features else self.image.preprocess


class ImageFolder(_Images):
    """Images in folders, ``path/<label>/*.jpeg``, of any size; also PNG and, in colour, BMP, GIF and WebP.

    A WebP must not be transparent or move: TensorFlow decodes no others.

    Args:
        path: The folder. Its classes are the names of the folders in it, in alphabetical order; the first
            use writes them to ``vocabulary.txt``, so that a class keeps its number.
        split: ``train`` or ``test`` for a part of the folder, as :func:`scan_images` divides it: by folders
            ``train`` and ``test``, or by the files' names. None for all of it.
        image: What the model sees of an image; None for the size of its input.
        augmentation: Random changes in training.
        cache: Keeps decoded images.
        class_names: The classes; None for the folder's own, or for test data those of the training data.
        vocabulary: File of the classes, in place of ``vocabulary.txt``.

    Raises:
        ConfigurationError: An unknown split, or options of another type.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        split: Literal["train", "test"] | None = None,
        image: ImageOptions | None = None,
        augmentation: Augmentation | None = None,
        cache: ImageCache | None = None,
        class_names: Sequence[str] | None = None,
        vocabulary: Path | str | None = None,
    ) -> None:
        if split not in (None, *SPLITS):
            raise ConfigurationError(f"split is {split!r}; expected None, 'train' or 'test'.")
        self._path = Path(path)
        self.where = f"ImageFolder({str(path)!r})"
        self._split = split
        self._image = _typed("image", image, ImageOptions)
        self._augmentation = _typed("augmentation", augmentation, Augmentation)
        self._cache = _typed("cache", cache, ImageCache)
        self._given_names = None if class_names is None else tuple(class_names)
        self._vocabulary = vocabulary

    @cached_property
    def files(self) -> ImageSplits:
        """The files, listed when they are first needed.

        Raises:
            DatasetNotFoundError: There is no such folder, or it has no images.
            ConfigurationError: A folder's name is not among the classes; or there are folders ``train`` and ``test``,
                and no split says which.
        """
        if self._split is not None:
            return scan_images(self._path, vocabulary=self._vocabulary, class_names=self._given_names)
        if all((self._path / split).is_dir() for split in SPLITS):
            raise ConfigurationError(
                f"{self._path} has the folders train and test, not one for each label; expected "
                f"ImageFolder({str(self._path / 'train')!r}), or split='train'."
            )
        return scan_images(self._path, test_share=0, vocabulary=self._vocabulary, class_names=self._given_names)

    @cached_property
    def class_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The classes, in the order of their numbers."""
        return self.files.class_names

    @property
    def description(self) -> str:  # type: ignore[override]
        """How many images of how many classes."""
        return f"{len(self._chosen.paths):,} images in {len(self.class_names)} classes from {self._path}"

    def batches(self, request: InputRequest, *, training: bool = True) -> tf.data.Dataset:
        """As :func:`image_folder_dataset`."""
        return image_folder_dataset(
            self._split or "train",
            folder=self.files,
            image=self.image,
            **request_fields(request, training=training),
            augmentation=self._augmentation if training else None,
            cache=self._cache,
        )

    def examples(self, count: int) -> DataExamples:
        """Images from all over the folder, as tensors and as files."""
        files = self._chosen
        chosen = spread(len(files.paths), count)
        inputs, encoded = load_images([files.paths[index] for index in chosen], self.image)
        return DataExamples(inputs=inputs, labels=files.labels[chosen], encoded=encoded)

    @property
    def _chosen(self) -> ImageFiles:
        return self.files.files(self._split or "train")


class Records(_Images):
    """TFRecord files of ``tf.Example`` messages: images with classes, or features of any other kind.

    Args:
        pattern: Which files, such as ``records/train-*``.
        image: What the model sees of an image; None for the size of its input.
        augmentation: Random changes of images in training.
        features: What the messages hold, but for the label, where that is no image; a model
            takes one feature as a tensor, and several as a mapping.
        label: Name of the feature that is the label, int64 or float32; ``image/class/label`` for images.
        label_offset: Subtracted from the labels of images; 1 for files that count classes from 1.
        class_names: The classes; None for those of the ``manifest.json`` beside the files.
        shuffle_window: Records that are shuffled among each other; None for 8,192, or fewer where those
            would be more than 256 MB.

    Raises:
        ConfigurationError: There are features and no label, or options of another type.
    """

    def __init__(
        self,
        pattern: str | Path,
        *,
        image: ImageOptions | None = None,
        augmentation: Augmentation | None = None,
        features: Sequence[FeatureSpec] = (),
        label: FeatureSpec | None = None,
        label_offset: int = 0,
        class_names: Sequence[str] | None = None,
        shuffle_window: int | None = None,
    ) -> None:
        if bool(features) != (label is not None):
            raise ConfigurationError("Received features or label alone; expected both, or none for images.")
        self._pattern = str(pattern)
        self.where = f"Records({self._pattern!r})"
        self._image = _typed("image", image, ImageOptions)
        self._augmentation = _typed("augmentation", augmentation, Augmentation)
        self.features = (features,) if isinstance(features, FeatureSpec) else tuple(features)
        self._label = _typed("label", label, FeatureSpec)
        self._label_offset = label_offset
        self._given_names = None if class_names is None else tuple(class_names)
        self._shuffle_window = shuffle_window

    @cached_property
    def files(self) -> RecordFolder:
        """The files, and how many records each has.

        Raises:
            DatasetNotFoundError: No file is so named.
            TrainingError: One is cut off.
        """
        found = [Path(name) for name in sorted(glob.glob(self._pattern)) if Path(name).name != "manifest.json"]
        paths = [path for path in found if path.is_file()]
        if not paths:
            hint = f", such as {self._pattern.rstrip('/')}/train-*" if found else ""
            raise DatasetNotFoundError(f"There is no file {self._pattern}; expected TFRecord files{hint}.")
        records = list_records(paths)
        return records if self._given_names is None else replace(records, class_names=self._given_names)

    def _check_names(self, class_names: tuple[str, ...]) -> None:
        own = self.files.class_names
        if own and own != class_names:
            raise ConfigurationError(
                f"{self._pattern} has the classes {', '.join(own)}, and the training data {', '.join(class_names)}; "
                "expected the same ones in the same order, which their labels' numbers mean. Convert them together, or "
                "give the names that its numbers mean: Records(..., class_names=)."
            )

    @property
    def class_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The classes, in the order of their numbers; empty where they have no names."""
        return self.files.class_names

    @property
    def description(self) -> str:  # type: ignore[override]
        """How many records."""
        return f"{self.files.split('all').count:,} records from {self._pattern}"

    @property
    def element_spec(self) -> Any:
        """Spec of the batches."""
        if self._label is None:
            return super().element_spec
        specs = {spec.name: tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in (*self.features, self._label)}
        label = specs.pop(self._label.name)
        return self.from_features(specs), label

    def batches(self, request: InputRequest, *, training: bool = True) -> tf.data.Dataset:
        """As :func:`tfrecord_dataset`; or features and their label."""
        if self._label is None:
            return tfrecord_dataset(
                "all",
                records=self.files,
                image=self.image,
                **request_fields(request, training=training),
                augmentation=self._augmentation if training else None,
                shuffle_window=self._shuffle_window,
                label_offset=self._label_offset,
            )
        files = self.files.split("all")
        plan = BatchPlan(count=files.count, **request_fields(request, training=training))
        batches = feature_dataset(files, plan, (*self.features, self._label), shuffle_window=self._shuffle_window)
        return batches.map(self._split_features)

    def examples(self, count: int) -> DataExamples:
        """The first records, as tensors and as they are stored.

        Raises:
            TrainingError: A record is damaged, lacks a feature, or holds no image.
        """
        try:
            return self._examples(count)
        except tf.errors.OpError as exc:
            raise TrainingError(f"The records {self._pattern} cannot be read: {first_line(exc)}") from exc

    def _examples(self, count: int) -> DataExamples:
        messages = read_messages(self.files.split("all"), count)
        if self._label is not None:
            inputs, labels = self._split_features(parse_features(tf.constant(messages), (*self.features, self._label)))
            whole = np.asarray(labels) if labels.dtype.is_integer and labels.shape.rank == 1 else None
            return DataExamples(inputs=tf.nest.map_structure(np.asarray, inputs), labels=whole, encoded=messages)
        stored = (FeatureSpec(name=IMAGE_KEY, dtype="string"), FeatureSpec(name=LABEL_KEY, dtype="int64"))
        parsed = parse_features(tf.constant(messages), stored)
        encoded = np.asarray(parsed[IMAGE_KEY], dtype=object)
        inputs, _ = load_images(list(encoded), self.image)
        labels = np.asarray(parsed[LABEL_KEY]) - self._label_offset
        return DataExamples(inputs=inputs, labels=labels, encoded=encoded)

    def _split_features(self, tensors: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        label = "" if self._label is None else self._label.name
        return self.from_features({name: part for name, part in tensors.items() if name != label}), tensors[label]


def _typed(name: str, value: _T | None, kind: type[_T]) -> _T | None:
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{name} is {value!r}; expected {kind.__name__}(...).")
    return value


def _image_options(shapes: Sequence[tuple[int | None, ...]], where: str) -> ImageOptions:
    for shape in shapes:
        if len(shape) == 4 and None not in shape[1:3] and shape[3] in (1, 3):
            return ImageOptions(height=shape[1] or 0, width=shape[2] or 0, channels=1 if shape[3] == 1 else 3)
    known = ", ".join(str(list(shape)) for shape in shapes) or "none that is known"
    raise ConfigurationError(
        f"{where} needs the size of the images, and the model's inputs are {known}; expected one of [None, H, W, 1 or "
        "3]. Say it: image=ImageOptions(height=..., width=...)."
    )
