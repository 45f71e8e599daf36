"""Fashion-MNIST: 70,000 grey images of clothes, 28 x 28, in ten classes.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a Novel Image Dataset for
Benchmarking Machine Learning Algorithms", arXiv:1708.07747, 2017. MIT licence.
"""

from __future__ import annotations

from dataclasses import dataclass

from modelyard.training.data._idx_folder import read_split
from modelyard.training.data._mnist import Mnist
from modelyard.training.data._sources import find_fashion_mnist

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
    train_images, train_labels = read_split(found.folder, "train", classes=len(CLASS_NAMES))
    test_images, test_labels = read_split(found.folder, "t10k", classes=len(CLASS_NAMES))
    return FashionMnist(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        class_names=CLASS_NAMES,
        source=f"{found.description}, {len(train_images):,} + {len(test_images):,} images",
        subset=found.subset,
    )
