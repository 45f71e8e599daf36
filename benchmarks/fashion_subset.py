"""Makes the small subset of Fashion-MNIST that ships with modelyard.

Run as ``python -m benchmarks.fashion_subset FOLDER`` on a machine that has the full data set. It takes the first images
of each class, in the order of the original files, so that anyone gets the same subset again.
"""

from __future__ import annotations

import argparse
import io
import struct
import sys
from gzip import GzipFile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from modelyard.training.data import load_fashion_mnist

TRAIN_PER_CLASS = 200
TEST_PER_CLASS = 100


def write_idx(path: Path, values: npt.NDArray[np.uint8]) -> None:
    """Writes one gzipped idx file, as MNIST's; the same values give the same bytes."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    buffer = io.BytesIO()
    with GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write(header + np.ascontiguousarray(values).tobytes())
    path.write_bytes(buffer.getvalue())


def first_of_each_class(labels: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.intp]:
    """Positions of the first ``count`` examples of each class, in rising order, ``[classes * count]``."""
    chosen = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(chosen))


def main(argv: list[str]) -> int:
    """Writes the four files of the subset."""
    parser = argparse.ArgumentParser(description="Make the small subset of Fashion-MNIST.")
    parser.add_argument("folder", type=Path, help="folder to write the four files to")
    folder: Path = parser.parse_args(argv).folder
    data = load_fashion_mnist(allow_subset=False)
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, images, labels, count in (
        ("train", data.train_images, data.train_labels, TRAIN_PER_CLASS),
        ("t10k", data.test_images, data.test_labels, TEST_PER_CLASS),
    ):
        chosen = first_of_each_class(labels, count)
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images[chosen])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", labels[chosen])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
