"""Image folders: ``root/<label>/*.jpeg``, any size, the label from the folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError, DatasetNotFoundError
from modelyard.training.data._vocabulary import (
    VOCABULARY_FILE,
    check_labels,
    check_vocabulary,
    read_vocabulary,
    write_vocabulary,
)

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
SPLITS = ("train", "test")


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """The images of one split: the files, in the order of their names, and the class of each, int64 ``[N]``."""

    paths: tuple[Path, ...]
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSplits:
    """A folder of labelled images: its classes, in the order of their numbers, and disjoint files for both splits."""

    root: Path
    class_names: tuple[str, ...]
    train: ImageFiles
    test: ImageFiles

    def files(self, split: str) -> ImageFiles:
        """The images of the split ``train`` or ``test``.

        Raises:
            ConfigurationError: There is no such split, or it has no images.
        """
        if split not in SPLITS:
            raise ConfigurationError(f"Unknown split {split!r} of {self.root}; expected 'train' or 'test'.")
        files = self.train if split == "train" else self.test
        if not files.paths:
            raise ConfigurationError(
                f"The split {split!r} of {self.root} has no images; give it some, or choose another test_share."
            )
        return files

    def examples(self, count: int) -> ImageFiles:
        """Images to verify with: test images, and training images where those are too few; spread over the classes."""
        if count < 1:
            raise ConfigurationError(f"count is {count}; expected at least one example to verify with.")
        tested = spread(len(self.test.paths), count)
        trained = spread(len(self.train.paths), count - len(tested))
        return ImageFiles(
            paths=(*(self.test.paths[index] for index in tested), *(self.train.paths[index] for index in trained)),
            labels=np.concatenate([self.test.labels[tested], self.train.labels[trained]]),
        )

    @property
    def description(self) -> str:
        """A sentence that says what it holds, for people."""
        return (
            f"{len(self.train.paths):,} + {len(self.test.paths):,} images in {len(self.class_names)} classes "
            f"from {self.root}"
        )


def scan_images(
    root: Path | str,
    *,
    test_share: float = 0.1,
    vocabulary: Path | str | None = None,
    class_names: Sequence[str] | None = None,
    save: bool = True,
) -> ImageSplits:
    """Lists a folder of labelled images.

    The folder is either ``root/train/<label>/*`` and ``root/test/<label>/*``, or ``root/<label>/*``; then the images
    whose names hash below ``test_share`` are the test split, so an image stays in its split when others come and go.
    Sub-folders of a label belong to it. Hidden files are passed over.

    The first scan saves the vocabulary, the labels in alphabetical order; later scans read it, so that a class keeps
    its number whatever folders come and go.

    Args:
        root: The folder.
        test_share: Share of the images in the test split, from 0 up to 1, where the folders do not say it.
        vocabulary: File of the vocabulary; None for ``root/vocabulary.txt``.
        class_names: The vocabulary itself; no file is then read or written.
        save: Whether a first scan saves the vocabulary.

    Raises:
        DatasetNotFoundError: There is no such folder, or it has no images.
        ConfigurationError: A folder's name is not in the vocabulary, a file in a label's folder is no image by its
            name, the vocabulary cannot be saved, or ``test_share`` is out of its range.
    """
    if not 0 <= test_share < 1:
        raise ConfigurationError(f"test_share is {test_share}; expected a share from 0, below 1.")
    root = Path(root)
    if not root.is_dir():
        raise DatasetNotFoundError(f"There is no folder {root}; expected one of the form {root}/<label>/*.jpeg.")
    split_folders = [root / split for split in SPLITS]
    found = {}
    if all(folder.is_dir() for folder in split_folders):
        found = {folder.name: _labelled(folder) for folder in split_folders}
    else:
        together = _labelled(root)
        for split in SPLITS:
            found[split] = [
                (label, path)
                for label, path in together
                if (hashed_share(path.relative_to(root).as_posix()) < test_share) == (split == "test")
            ]
    labels = sorted({label for pairs in found.values() for label, _ in pairs})
    if not labels:
        raise DatasetNotFoundError(
            f"The folder {root} holds no images ({', '.join(sorted(SUFFIXES))}); expected {root}/<label>/*.jpeg."
        )
    names = _vocabulary(labels, Path(vocabulary or root / VOCABULARY_FILE), class_names, save=save)
    number = {name: index for index, name in enumerate(names)}
    parts = {
        split: ImageFiles(
            paths=tuple(path for _, path in pairs),
            labels=np.array([number[label] for label, _ in pairs], dtype=np.int64),
        )
        for split, pairs in found.items()
    }
    return ImageSplits(root=root, class_names=names, train=parts["train"], test=parts["test"])


def spread(total: int, count: int) -> npt.NDArray[np.int64]:
    """Indices at even distances, because files are in the order of their labels."""
    return np.linspace(0, total - 1, min(total, count)).round().astype(np.int64)


def _labelled(folder: Path) -> list[tuple[str, Path]]:
    pairs = []
    for path in sorted(folder.glob("*/**/*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or not path.is_file():
            continue
        if path.suffix.lower() not in SUFFIXES:
            raise ConfigurationError(
                f"The file {path} is no image by its name; expected {', '.join(sorted(SUFFIXES))}. Remove it, or "
                "convert the folder with: modelyard data convert, which passes over what is no image and says so."
            )
        pairs.append((parts[0], path))
    return pairs


def hashed_share(path: str) -> float:
    """A number from 0 to 1 that a file's path below the root decides: below ``test_share`` is the test split."""
    digest = hashlib.blake2b(os.fsencode(path), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64


def _vocabulary(labels: list[str], path: Path, given: Sequence[str] | None, *, save: bool) -> tuple[str, ...]:
    if given is not None:
        check_vocabulary(given, "class_names")
        names, place = tuple(given), "class_names"
    elif path.exists():
        names, place = read_vocabulary(path), str(path)
    else:
        if save:
            write_vocabulary(path, labels)
        return tuple(labels)
    check_labels(labels, names, place, ", or, if no trained model depends on it, delete it")
    return names
