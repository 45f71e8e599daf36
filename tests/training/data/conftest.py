"""Real images as files: Fashion-MNIST's test images as JPEG in class folders, of several sizes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import modelyard.training.data
from modelyard.training.data import FashionMnist
from modelyard.wire import tensorflow_pb2

COUNT = 130
SUBSET_FOLDER = Path(modelyard.training.data.__file__).parent / "fashion_mnist_subset"
FILES = [f"{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]

Batches = list[tuple[np.ndarray, np.ndarray]]


def folder_name(label: str) -> str:
    return label.replace("/", "-").replace(" ", "-").lower()


def jpeg(pixels: npt.NDArray[np.uint8], size: tuple[int, int] | None = None) -> bytes:
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    (image if size is None else image.resize(size)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def write_photos(root: Path, data: FashionMnist, count: int = COUNT) -> Path:
    for index in range(count):
        folder = root / folder_name(data.class_names[data.test_labels[index]])
        folder.mkdir(parents=True, exist_ok=True)
        size = (28 + index % 9, 28 + index % 5)
        (folder / f"{index:05}.jpeg").write_bytes(jpeg(data.test_images[index], size))
    return root


def example(image: bytes, label: int) -> bytes:
    message = tensorflow_pb2.Example()
    message.features.feature["image/encoded"].bytes_list.value.append(image)
    message.features.feature["image/class/label"].int64_list.value.append(label)
    return message.SerializeToString()


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory, subset: FashionMnist) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), subset)


def assert_same(found: Batches, expected: Batches) -> None:
    """Both have batches, and the same images and labels in each."""
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
