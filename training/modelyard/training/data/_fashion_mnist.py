"""Fashion-MNIST: 70,000 grey images of clothes, 28 x 28, in ten classes.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a Novel Image Dataset for
Benchmarking Machine Learning Algorithms", arXiv:1708.07747, 2017. MIT licence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modelyard.errors import TrainingError
from modelyard.training.data._idx import read_idx
from modelyard.training.data._mnist import Mnist
from modelyard.training.data._sources import Found, find_fashion_mnist

CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_SIZE = (28, 28)


@dataclass(frozen=True, kw_only=True, eq=False)
class FashionMnist(Mnist):
    """The fields of :class:`Mnist`, and whether this is the small subset that ships with modelyard."""

    subset: bool


def load_fashion_mnist(*, allow_subset: bool = True, allow_download: bool = True) -> FashionMnist:
    """Loads Fashion-MNIST from the first place that has it; ``source`` of the result says which.

    The places, in order: the folder that the environment variable ``MODELYARD_DATA`` names, or its sub-folder
    ``fashion-mnist`` (where the variable is set, no other place is tried); Debian's package ``dataset-fashion-mnist``;
    the Keras cache (``$KERAS_HOME``, else ``~/.keras``); a download by Keras into that cache; the real subset of 2,000
    + 1,000 images that ships with modelyard. ``MODELYARD_DATA=subset`` takes that subset at once.

    Args:
        allow_subset: Whether the subset may stand in for the full data set, even for ``MODELYARD_DATA=subset``.
        allow_download: Whether the network may be used.

    Raises:
        DatasetNotFoundError: No place has the files; the message lists what was tried and how to get them.
        TrainingError: A file was found and is damaged.
    """
    found = find_fashion_mnist(allow_subset=allow_subset, allow_download=allow_download)
    train_images, train_labels = _read_split(found, "train")
    test_images, test_labels = _read_split(found, "t10k")
    return FashionMnist(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        class_names=CLASS_NAMES,
        source=f"{found.description}, {len(train_images):,} + {len(test_images):,} images",
        subset=found.subset,
    )


def _read_split(found: Found, prefix: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    images_path = found.folder / f"{prefix}-images-idx3-ubyte.gz"
    labels_path = found.folder / f"{prefix}-labels-idx1-ubyte.gz"
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or images.shape[1:] != _SIZE or not len(images):
        raise _unfit(images_path, f"shape {list(images.shape)}", "[N, 28, 28] with N > 0")
    if labels.shape != images.shape[:1]:
        raise _unfit(labels_path, f"shape {list(labels.shape)}", f"one label for each of the {len(images)} images")
    if labels.max() >= len(CLASS_NAMES):
        raise _unfit(labels_path, f"the label {labels.max()}", f"labels from 0 to {len(CLASS_NAMES) - 1}")
    return images, labels


def _unfit(path: Path, received: str, expected: str) -> TrainingError:
    return TrainingError(f"{path} is not a file of Fashion-MNIST: it has {received}; expected {expected}.")
