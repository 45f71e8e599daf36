"""MNIST: 70,000 grey images of handwritten digits, 28 x 28.

Source: LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to
Document Recognition", Proceedings of the IEEE, 1998.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import DatasetNotFoundError, TrainingError
from modelyard.training.data._sources import DATA_VARIABLE, NO_DOWNLOAD, SUBSET, download, keras_home

_FILE = "mnist.npz"
_SIZE = (28, 28)
_CLASSES = 10


@dataclass(frozen=True, kw_only=True, eq=False)
class Mnist:
    """Images, uint8 ``[N, 28, 28]`` with 0 for background, and labels, uint8 ``[N]``, as they are in the file."""

    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.uint8]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.uint8]
    class_names: tuple[str, ...]
    source: str


def load_mnist(*, path: Path | str | None = None, allow_download: bool = True) -> Mnist:
    """Loads MNIST from the file ``mnist.npz``, which Keras downloads; ``source`` of the result says from where.

    Without ``path`` the places are, in order: the folder that the environment variable ``MODELYARD_DATA`` names, or its
    sub-folder ``mnist`` (passed over where it has no ``mnist.npz``); the Keras cache (``$KERAS_HOME``, else
    ``~/.keras``); a download by Keras into that cache, where that is allowed.

    Raises:
        DatasetNotFoundError: No place has the file; the message lists what was tried and how to get it.
        TrainingError: The file is damaged or holds something else.
    """
    tried: list[str] = []
    if path is not None:
        found = Path(path) if Path(path).is_file() else None
        tried.append(f"{path}: no such file")
    else:
        found = _find(tried, allow_download=allow_download)
    if found is None:
        lines = "\n".join(f"  - {line}" for line in tried)
        raise DatasetNotFoundError(
            f"MNIST was not found. Tried:\n{lines}\n"
            "Any one of these gets it:\n"
            f"  - put {_FILE} (https://storage.googleapis.com/tensorflow/tf-keras-datasets/{_FILE}) into"
            f" {_cache().parent}, or into the folder that {DATA_VARIABLE} names\n"
            "  - a network connection and pip install 'modelyard[training]': Keras then downloads it\n"
            "  - the data set fashion, which has the same shape and ships in part with modelyard"
        )
    return _read(found)


def _find(tried: list[str], *, allow_download: bool) -> Path | None:
    named = os.environ.get(DATA_VARIABLE, "")
    if named and named != SUBSET:
        for candidate in (Path(named) / _FILE, Path(named) / "mnist" / _FILE):
            if candidate.is_file():
                return candidate
            tried.append(f"{DATA_VARIABLE}: {candidate}: no such file")
    if _cache().is_file():
        return _cache()
    tried.append(f"{_cache()}: no such file")
    if allow_download and not download("mnist", tried):
        return None
    if not allow_download:
        tried.append(NO_DOWNLOAD)
    return _cache() if _cache().is_file() else None


def _cache() -> Path:
    return keras_home() / "datasets" / _FILE


def _read(path: Path) -> Mnist:
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise ValueError("it is one array, and no .npz archive")
            # What is no array in an archive is bytes.
            parts = {name: np.asarray(arrays[name]) for name in ("x_train", "y_train", "x_test", "y_test")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as exc:
        raise TrainingError(f"{path} cannot be read as MNIST: {exc}. Remove it and get it again.") from exc
    for images, labels in (("x_train", "y_train"), ("x_test", "y_test")):
        _check(path, images, parts[images], labels, parts[labels])
    count = f"{len(parts['x_train']):,} + {len(parts['x_test']):,} images"
    return Mnist(
        train_images=parts["x_train"],
        train_labels=parts["y_train"],
        test_images=parts["x_test"],
        test_labels=parts["y_test"],
        class_names=tuple(str(digit) for digit in range(_CLASSES)),
        source=f"MNIST from {path}, {count}",
    )


def _check(path: Path, images: str, pixels: npt.NDArray[Any], labels: str, classes: npt.NDArray[Any]) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[1:] != _SIZE or not len(pixels):
        raise TrainingError(
            f"{path} is not MNIST: {images} has dtype {pixels.dtype} and shape {list(pixels.shape)}; expected uint8 "
            "[N, 28, 28] with N > 0."
        )
    if classes.dtype != np.uint8 or classes.shape != pixels.shape[:1] or classes.max() >= _CLASSES:
        raise TrainingError(
            f"{path} is not MNIST: {labels} has dtype {classes.dtype} and shape {list(classes.shape)}; expected "
            f"{len(pixels)} digits in uint8."
        )
