"""Data sets and input functions. Loading needs only numpy; ``tf.data`` comes in with the input functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach
from modelyard.training.data._fashion_mnist import FashionMnist, load_fashion_mnist
from modelyard.training.data._folder import ImageFiles, ImageSplits, scan_images
from modelyard.training.data._idx_folder import load_idx_folder
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
    "load_idx_folder",
    "load_mnist",
    "memory_images",
    "open_records",
    "read_vocabulary",
    "scan_images",
    "tfrecord_dataset",
    "worker_share",
    "write_vocabulary",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        "._datasets": ["memory_images"],
        "._files_source": ["ImageFolder", "Records"],
        "._folder_dataset": ["ImageCache", "image_examples", "image_folder_dataset"],
        "._images": ["Augmentation", "ImageOptions", "decode_image"],
        "._record_dataset": ["tfrecord_dataset"],
        "._source": ["Arrays", "DataExamples", "DataSource"],
        "._stream": ["Stream", "StreamPosition"],
    },
    extra="training",
)
