"""What a conversion reads: the files of an image folder, or the images of a data set that modelyard can load."""

# Beam says that it is typed, and leaves most of its functions without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from apache_beam.io.filesystems import FileSystems

from modelyard.errors import DatasetNotFoundError
from modelyard.training.data._fashion_mnist import FashionMnist, load_fashion_mnist
from modelyard.training.data._folder import SPLITS, hashed_share
from modelyard.training.data._mnist import Mnist, load_mnist
from modelyard.training.data._vocabulary import VOCABULARY_FILE, check_labels, check_vocabulary

_LOADERS: dict[str, Callable[[], FashionMnist | Mnist]] = {"fashion-mnist": load_fashion_mnist, "mnist": load_mnist}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One image to convert, read where the pipeline runs: a file, or the image of a data set at an index of a split."""

    name: str
    split: str
    label: int
    dataset: str = ""
    index: int = 0

    def read(self) -> bytes:
        """The encoded image."""
        if not self.dataset:
            with FileSystems.open(self.name) as file:
                content: bytes = file.read()
            return content
        from PIL import Image

        data = _loaded(self.dataset)
        images = data.train_images if self.split == "train" else data.test_images
        buffer = io.BytesIO()
        Image.fromarray(images[self.index]).save(buffer, "PNG")
        return buffer.getvalue()


def list_entries(
    source: str, test_share: float, class_names: Sequence[str] | None
) -> tuple[list[Entry], tuple[str, ...]]:
    """Lists what is to be converted, and the names of its classes."""
    if source in _LOADERS:
        return _known(source)
    root = source.rstrip("/")
    files = [found.path for found in FileSystems.match([f"{root}/**"])[0].metadata_list]
    relative = sorted(posixpath.relpath(path, root) for path in files)
    visible = [path for path in relative if not any(part.startswith(".") for part in path.split("/"))]
    labelled = [path for path in visible if "/" in path]
    in_splits = {path.split("/")[0] for path in labelled} == set(SPLITS)
    if in_splits:
        labelled = [path for path in labelled if path.count("/") >= 2]
    if not labelled:
        raise DatasetNotFoundError(
            f"The source {source} has no files of the form {source}/<label>/*.jpeg. Expected an image folder, or one "
            f"of {', '.join(sorted(_LOADERS))}."
        )
    labels = sorted({path.split("/")[int(in_splits)] for path in labelled})
    names = _vocabulary(root, visible, labels, class_names)
    number = {name: index for index, name in enumerate(names)}
    entries = []
    for path in labelled:
        parts = path.split("/")
        split = parts[0] if in_splits else ("test" if hashed_share(path) < test_share else "train")
        entries.append(Entry(name=f"{root}/{path}", split=split, label=number[parts[int(in_splits)]]))
    return entries, names


def _known(source: str) -> tuple[list[Entry], tuple[str, ...]]:
    data = _loaded(source)
    entries = [
        Entry(name=f"{source}/{split}/{index}", split=split, label=int(label), dataset=source, index=index)
        for split, labels in (("train", data.train_labels), ("test", data.test_labels))
        for index, label in enumerate(labels)
    ]
    return entries, data.class_names


# Read for every image of it; one data set is converted at a time.
@lru_cache(maxsize=1)
def _loaded(source: str) -> FashionMnist | Mnist:
    return _LOADERS[source]()


def _vocabulary(
    root: str, visible: Sequence[str], labels: Sequence[str], class_names: Sequence[str] | None
) -> tuple[str, ...]:
    names, place = tuple(labels), "labels"
    if class_names is not None:
        names, place = tuple(class_names), "class_names"
    elif VOCABULARY_FILE in visible:
        place = f"{root}/{VOCABULARY_FILE}"
        with FileSystems.open(place) as file:
            names = tuple(file.read().decode().splitlines())
    check_vocabulary(names, place)
    check_labels(labels, names, place, "")
    return names
