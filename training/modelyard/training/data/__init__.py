"""Data sets and input functions. Loading needs only numpy; ``tf.data`` comes in with the input functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute
from modelyard.training.data._fashion_mnist import FashionMnist, load_fashion_mnist
from modelyard.training.data._folder import ImageFiles, ImageSplits, scan_images
from modelyard.training.data._mnist import Mnist, load_mnist
from modelyard.training.data._plan import worker_share
from modelyard.training.data._records import RecordFolder, RecordSplit, open_records
from modelyard.training.data._vocabulary import read_vocabulary, write_vocabulary

if TYPE_CHECKING:
    from modelyard.training.data._datasets import memory_images
    from modelyard.training.data._files_source import ImageFolder, Records
    from modelyard.training.data._folder_dataset import ImageCache, image_examples, image_folder_dataset
    from modelyard.training.data._images import Augmentation, ImageOptions, decode_image
    from modelyard.training.data._record_dataset import tfrecord_dataset
    from modelyard.training.data._source import Arrays, DataExamples, DataSource
    from modelyard.training.data._stream import Stream, StreamPosition

_LAZY = {
    "Arrays": "modelyard.training.data._source",
    "Augmentation": "modelyard.training.data._images",
    "DataExamples": "modelyard.training.data._source",
    "DataSource": "modelyard.training.data._source",
    "ImageCache": "modelyard.training.data._folder_dataset",
    "ImageFolder": "modelyard.training.data._files_source",
    "ImageOptions": "modelyard.training.data._images",
    "Records": "modelyard.training.data._files_source",
    "Stream": "modelyard.training.data._stream",
    "StreamPosition": "modelyard.training.data._stream",
    "decode_image": "modelyard.training.data._images",
    "image_examples": "modelyard.training.data._folder_dataset",
    "image_folder_dataset": "modelyard.training.data._folder_dataset",
    "memory_images": "modelyard.training.data._datasets",
    "tfrecord_dataset": "modelyard.training.data._record_dataset",
}

__all__ = [
    "Arrays",
    "Augmentation",
    "DataExamples",
    "DataSource",
    "FashionMnist",
    "ImageCache",
    "ImageFiles",
    "ImageFolder",
    "ImageOptions",
    "ImageSplits",
    "Mnist",
    "RecordFolder",
    "RecordSplit",
    "Records",
    "Stream",
    "StreamPosition",
    "decode_image",
    "image_examples",
    "image_folder_dataset",
    "load_fashion_mnist",
    "load_mnist",
    "memory_images",
    "open_records",
    "read_vocabulary",
    "scan_images",
    "tfrecord_dataset",
    "worker_share",
    "write_vocabulary",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _LAZY, name, extra="training")
