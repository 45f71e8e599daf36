"""A folder of MNIST's four files, read and trained on; the images are of the subset that ships, which has no digits."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fashion_subset import write_idx
from modelyard.errors import DatasetNotFoundError, TrainingError
from modelyard.training import Trainer
from modelyard.training.data import FashionMnist, load_idx_folder
from modelyard.training.run import read_record
from modelyard.training.tasks import make_task
from tests.training.data.conftest import FILES, SUBSET_FOLDER


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two of the files plain, two packed, and few images."""
    made = tmp_path / "mnist"
    made.mkdir()
    for number, name in enumerate(FILES):
        content = gzip.decompress((SUBSET_FOLDER / name).read_bytes())
        (made / (name if number % 2 else name.removesuffix(".gz"))).write_bytes(
            gzip.compress(content) if number % 2 else content
        )
    return made


def test_plain_and_packed_files_are_read(folder: Path, subset: FashionMnist) -> None:
    assert sorted(path.suffix for path in folder.iterdir()) == ["", "", ".gz", ".gz"]
    data = load_idx_folder(folder)
    for part in ("train_images", "train_labels", "test_images", "test_labels"):
        np.testing.assert_array_equal(getattr(data, part), getattr(subset, part))
    assert data.class_names == tuple("0123456789")
    assert data.source == f"idx files of {folder}, 2,000 + 1,000 images"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte", b"\x00\x00\x0d\x03" + bytes(12), "first four bytes are 00000d03"),
        ("train-images-idx3-ubyte", b"\x00\x00\x08\x03\x00\x00\x00\x02\x00\x00\x00\x1c\x00\x00\x00\x1c", "it has 16"),
        ("train-images-idx3-ubyte", b"\x1f\x8b", "holds 2 bytes"),
        ("t10k-labels-idx1-ubyte.gz", b"\x00\x00\x08\x01", "cannot be read as a gzip file"),
    ],
    ids=["magic number", "length", "packed without .gz", "plain with .gz"],
)
def test_a_wrong_file_is_named_with_what_is_wrong(name: str, content: bytes, message: str, folder: Path) -> None:
    assert (folder / name).is_file()
    (folder / name).write_bytes(content)
    with pytest.raises(TrainingError, match=message) as caught:
        load_idx_folder(folder)
    assert str(folder / name) in caught.value.message


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("train-images-idx3-ubyte", np.zeros((2000, 32, 32), np.uint8), r"\[2000, 32, 32\]; expected \[N, 28, 28\]"),
        ("train-labels-idx1-ubyte.gz", np.zeros(1999, np.uint8), "one label for each of the 2000 images"),
        ("t10k-labels-idx1-ubyte.gz", np.full(1000, 10, np.uint8), "the label 10; expected labels from 0 to 9"),
    ],
)
def test_files_that_do_not_fit_are_errors(name: str, values: np.ndarray, message: str, folder: Path) -> None:
    write_idx(folder / f"{name.removesuffix('.gz')}.gz", values)
    (folder / name.removesuffix(".gz")).unlink(missing_ok=True)
    with pytest.raises(TrainingError, match=message):
        load_idx_folder(folder)


def test_a_missing_file_or_folder_is_an_error(folder: Path) -> None:
    (folder / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DatasetNotFoundError, match="no t10k-images-idx3-ubyte and no t10k-images-idx3-ubyte.gz in it"):
        load_idx_folder(folder)
    with pytest.raises(DatasetNotFoundError, match="there is no such folder. Expected MNIST's four files there"):
        load_idx_folder(folder / "none")


def test_a_task_of_the_command_line_learns_from_the_folder_and_is_made_again(folder: Path, tmp_path: Path) -> None:
    task = make_task("mlp", [f"data={folder}"])
    result = Trainer(task, epochs=4, model_dir=tmp_path / "run").run()
    assert result.metrics["test_accuracy"] > 0.65
    assert result.data == f"idx files of {folder}, 2,000 + 1,000 images"
    record = read_record(tmp_path / "run")
    assert record is not None
    assert record.make_task().data_description() == result.data


@pytest.mark.parametrize(
    "name", ["capsnet", "cyclegan", "dcgan", "fashion", "gan", "ladder", "maml", "mlp", "nas", "siamese", "vae"]
)
def test_every_task_on_small_images_takes_the_folder(name: str, folder: Path) -> None:
    more = ["problem=fashion"] if name == "maml" else []
    assert str(folder) in make_task(name, [f"data={folder}", *more]).data_description()
