"""The four idx files of MNIST, or of a data set with the same files, in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from modelyard.errors import DatasetNotFoundError, TrainingError
from modelyard.training.data._idx import read_idx
from modelyard.training.data._mnist import Mnist

_SIZE = (28, 28)


def load_idx_folder(folder: Path | str) -> Mnist:
    """Loads ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and their likes of ``t10k``, each also as ``.gz``.

    So MNIST comes, and KMNIST, EMNIST's digits and others do. The classes are called by their numbers: ``0``, ``1``
    and so on to the largest label of the training images.

    Raises:
        DatasetNotFoundError: A file is missing.
        TrainingError: A file is damaged or holds something else.
    """
    folder = Path(folder)
    train_images, train_labels = read_split(folder, "train")
    class_names = tuple(str(number) for number in range(int(train_labels.max()) + 1))
    test_images, test_labels = read_split(folder, "t10k", classes=len(class_names))
    return Mnist(
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
        class_names=class_names,
        source=f"idx files of {folder}, {len(train_images):,} + {len(test_images):,} images",
    )


def read_split(folder: Path, prefix: str, *, classes: int = 256) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Images, uint8 ``[N, 28, 28]``, and labels, uint8 ``[N]``, of the split ``train`` or ``t10k``."""
    images_path, labels_path = (_find(folder, f"{prefix}-{part}-ubyte") for part in ("images-idx3", "labels-idx1"))
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or images.shape[1:] != _SIZE or not len(images):
        raise _unfit(images_path, f"shape {list(images.shape)}", "[N, 28, 28] with N > 0")
    if labels.shape != images.shape[:1]:
        raise _unfit(labels_path, f"shape {list(labels.shape)}", f"one label for each of the {len(images)} images")
    if labels.max() >= classes:
        raise _unfit(labels_path, f"the label {labels.max()}", f"labels from 0 to {classes - 1}")
    return images, labels


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    found = f"there is no {name} and no {name}.gz in it" if folder.is_dir() else "there is no such folder"
    raise DatasetNotFoundError(
        f"Received the data folder {folder}: {found}. Expected MNIST's four files there: train-images-idx3-ubyte, "
        "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, each as it is or as .gz."
    )


def _unfit(path: Path, received: str, expected: str) -> TrainingError:
    return TrainingError(f"{path} is not a file of this data set: it has {received}; expected {expected}.")
