from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fashion_subset import write_idx
from modelyard.errors import DatasetNotFoundError, TrainingError
from modelyard.training.data import FashionMnist, load_fashion_mnist
from tests.training.data.conftest import FILES, SUBSET_FOLDER


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FILES:
        shutil.copy(SUBSET_FOLDER / name, tmp_path)
    monkeypatch.setenv("MODELYARD_DATA", str(tmp_path))
    return tmp_path


def test_the_subset_is_balanced_and_says_what_it_is(subset: FashionMnist) -> None:
    assert subset.train_images.shape == (2000, 28, 28)
    assert subset.test_images.shape == (1000, 28, 28)
    assert subset.train_images.dtype == subset.train_labels.dtype == np.uint8
    assert np.bincount(subset.train_labels).tolist() == [200] * 10
    assert np.bincount(subset.test_labels).tolist() == [100] * 10
    assert len(subset.class_names) == 10
    assert subset.subset
    assert subset.source == "small subset shipped with modelyard, 2,000 + 1,000 images"


def test_the_licence_is_beside_the_subset() -> None:
    assert "Copyright © 2017 Zalando SE" in (SUBSET_FOLDER / "LICENSE").read_text("utf-8")


def test_a_folder_of_ones_own_is_read(folder: Path, subset: FashionMnist) -> None:
    data = load_fashion_mnist(allow_subset=False)
    assert not data.subset
    assert str(folder) in data.source
    np.testing.assert_array_equal(data.test_images, subset.test_images)


def test_not_found_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELYARD_DATA", str(tmp_path))
    with pytest.raises(DatasetNotFoundError, match="Any one of these gets it"):
        load_fashion_mnist()


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        (FILES[0], np.zeros((2000, 32, 32), np.uint8), r"shape \[2000, 32, 32\]; expected \[N, 28, 28\]"),
        (FILES[2], np.zeros((0, 28, 28), np.uint8), "with N > 0"),
        (FILES[1], np.zeros(1999, np.uint8), "one label for each of the 2000 images"),
        (FILES[3], np.full(1000, 10, np.uint8), "the label 10; expected labels from 0 to 9"),
    ],
    ids=["other size", "no images", "labels missing", "unknown label"],
)
def test_files_of_something_else_are_an_error(file: str, values: np.ndarray, message: str, folder: Path) -> None:
    write_idx(folder / file, values)
    with pytest.raises(TrainingError, match=message):
        load_fashion_mnist()


def test_a_damaged_file_is_an_error_and_not_worked_around(folder: Path) -> None:
    (folder / FILES[0]).write_bytes(b"not gzip")
    with pytest.raises(TrainingError, match="cannot be read as a gzip file"):
        load_fashion_mnist()
