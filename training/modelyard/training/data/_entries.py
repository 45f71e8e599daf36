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

from modelyard.errors import ConfigurationError, DatasetNotFoundError
from modelyard.training.data._fashion_mnist import FashionMnist, load_fashion_mnist
from modelyard.training.data._folder import SPLITS, hashed_share
from modelyard.training.data._mnist import Mnist, load_mnist
from modelyard.training.data._vocabulary import VOCABULARY_FILE, check_vocabulary

_LOADERS: dict[str, Callable[[], FashionMnist | Mnist]] = {"fashion-mnist": load_fashion_mnist, "mnist": load_mnist}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One image to convert; it is read where the pipeline runs.

    Attributes:
        name: Its path, or its place in the data set.
        split: ``train`` or ``test``.
        label: Number of its class.
        dataset: The data set it is from; empty for a file.
        index: Its position in the split of that data set.
    """

    name: str
    split: str
    label: int
    dataset: str = ""
    index: int = 0

    def read(self) -> bytes:
        """The encoded image.

        Raises:
            OSError: The file cannot be read.
        """
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
    """Lists what is to be converted.

    Args:
        source: An image folder, or the name of a data set.
        test_share: Share of the images in the test split, where the folders do not say it.
        class_names: The vocabulary; None for ``vocabulary.txt`` in the folder,
            else the labels in alphabetical order.

    Returns:
        The images, and the class names in the order of their numbers. Files of
        a label's folder are listed whatever their names are.

    Raises:
        DatasetNotFoundError: There is no such folder or data set.
        ConfigurationError: A label is not in the vocabulary.
    """
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
    unknown = sorted(set(labels) - set(names))
    if unknown:
        raise ConfigurationError(
            f"The folders {', '.join(map(repr, unknown[:5]))} are not in the vocabulary {place}, which has "
            f"{len(names)} classes. Add them at its end."
        )
    return names
