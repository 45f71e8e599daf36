"""Where a copy of Fashion-MNIST may be, and the search through these places."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path

from modelyard.errors import DatasetNotFoundError

FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
DATA_VARIABLE = "MODELYARD_DATA"
NO_DOWNLOAD = "download through Keras: not allowed by the caller"
SUBSET = "subset"
SUBSET_FOLDER = Path(__file__).parent / "fashion_mnist_subset"
_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_SUBSET_DESCRIPTION = "small subset shipped with modelyard"


@dataclass(frozen=True, kw_only=True)
class Found:
    """A folder that holds the four files; whether they are the shipped subset."""

    folder: Path
    description: str
    subset: bool = False


def find_fashion_mnist(*, allow_subset: bool, allow_download: bool, debian_folder: Path = _DEBIAN_FOLDER) -> Found:
    """Searches the places in order; see :func:`load_fashion_mnist`."""
    named = os.environ.get(DATA_VARIABLE, "")
    if named == SUBSET:
        if allow_subset:
            return _subset()
        raise _not_found([f"{DATA_VARIABLE}={SUBSET}: the caller wants the full data set, not the subset"])
    if named:
        # A folder that was named on purpose and is wrong is a mistake to report, not one to work around.
        tried: list[str] = []
        for folder in (Path(named), Path(named) / "fashion-mnist"):
            if _has_files(folder, tried, label=f"{DATA_VARIABLE}: "):
                return Found(folder=folder, description=f"{folder} (from {DATA_VARIABLE})")
        raise _not_found(tried)
    tried = []
    if _has_files(debian_folder, tried):
        return Found(folder=debian_folder, description="Debian package dataset-fashion-mnist")
    cache = keras_home() / "datasets" / "fashion-mnist"
    if _has_files(cache, tried):
        return Found(folder=cache, description=f"Keras cache {cache}")
    if not allow_download:
        tried.append(NO_DOWNLOAD)
    elif download("fashion_mnist", tried) and _has_files(cache, tried):
        return Found(folder=cache, description=f"downloaded through Keras to {cache}")
    if allow_subset:
        return _subset(reason=tried[-1])
    tried.append(f"{_SUBSET_DESCRIPTION}: not allowed by the caller")
    raise _not_found(tried)


def _has_files(folder: Path, tried: list[str], *, label: str = "") -> bool:
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        tried.append(f"{label}{folder}: {'no such folder' if not folder.is_dir() else 'no ' + ', '.join(missing)}")
    return not missing


def keras_home() -> Path:
    """The folder that Keras keeps its downloads in."""
    # Keras's own rule, repeated here so that looking does not import TensorFlow.
    return Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")


def download(name: str, tried: list[str]) -> bool:
    """Lets Keras load one of its data sets into its cache; what goes wrong is added to ``tried``."""
    try:
        importlib.import_module(f"keras.datasets.{name}").load_data()
    except ModuleNotFoundError as exc:
        if exc.name not in ("keras", "tensorflow"):
            raise
        tried.append(f"download through Keras: {exc.name} is not installed (pip install 'modelyard[training]')")
        return False
    except Exception as exc:
        # Keras raises a bare Exception for a failed download; the reason goes into the error or the source.
        tried.append(f"download through Keras: {exc}")
        return False
    return True


def _subset(*, reason: str = "") -> Found:
    because = f" (the full data set was not found: {reason})" if reason else ""
    return Found(folder=SUBSET_FOLDER, description=f"{_SUBSET_DESCRIPTION}{because}", subset=True)


def _not_found(tried: list[str]) -> DatasetNotFoundError:
    lines = "\n".join(f"  - {line}" for line in tried)
    return DatasetNotFoundError(
        f"Fashion-MNIST was not found. Tried:\n{lines}\n"
        "Any one of these gets it:\n"
        "  - apt-get install dataset-fashion-mnist (Debian and Ubuntu)\n"
        f"  - set {DATA_VARIABLE} to a folder with {', '.join(FILES)}, from"
        " https://github.com/zalandoresearch/fashion-mnist\n"
        "  - a network connection and pip install 'modelyard[training]': Keras then downloads it\n"
        f"  - {DATA_VARIABLE}={SUBSET}: 2,000 + 1,000 of the images, which ship with modelyard, where few will do"
    )
