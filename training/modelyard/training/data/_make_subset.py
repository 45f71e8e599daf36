"""Makes the small subset of Fashion-MNIST that ships with modelyard.

Run as ``python -m modelyard.training.data._make_subset FOLDER`` on a machine
that has the full data set. It takes the first images of each class, in the
order of the original files, so that anyone gets the same subset again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modelyard.training.data._fashion_mnist import load_fashion_mnist
from modelyard.training.data._idx import write_idx
from modelyard.training.data._sources import FILES

TRAIN_PER_CLASS = 200
TEST_PER_CLASS = 100


def first_of_each_class(labels: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.intp]:
    """Positions of the first ``count`` examples of each class, in rising order.

    Args:
        labels: uint8 ``[N]``.
        count: Examples to take of each class.

    Returns:
        Positions, ``[classes * count]``.
    """
    chosen = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(chosen))


def make_subset(folder: Path) -> None:
    """Writes the four files of the subset.

    Args:
        folder: Where to; made when absent.

    Raises:
        DatasetNotFoundError: The full data set is not on this machine.
    """
    data = load_fashion_mnist(allow_subset=False)
    train = first_of_each_class(data.train_labels, TRAIN_PER_CLASS)
    test = first_of_each_class(data.test_labels, TEST_PER_CLASS)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (data.train_images[train], data.train_labels[train], data.test_images[test], data.test_labels[test])
    for name, values in zip(FILES, arrays, strict=True):
        write_idx(folder / name, values)


def main(argv: list[str]) -> int:
    """The command line.

    Args:
        argv: Arguments without the program's name.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description="Make the small subset of Fashion-MNIST.")
    parser.add_argument("folder", type=Path, help="folder to write the four files to")
    make_subset(parser.parse_args(argv).folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
