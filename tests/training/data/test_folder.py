from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modelyard.errors import ConfigurationError, DatasetNotFoundError, TrainingError
from modelyard.training.data import (
    FashionMnist,
    ImageCache,
    ImageFiles,
    ImageOptions,
    image_examples,
    image_folder_dataset,
    load_idx_folder,
    open_records,
    read_vocabulary,
    scan_images,
    write_vocabulary,
)
from tests.training.data.conftest import COUNT, folder_name


@pytest.fixture
def copy(photos: Path, tmp_path: Path) -> Path:
    shutil.copytree(photos, tmp_path / "copy", ignore=shutil.ignore_patterns("vocabulary.txt"))
    return tmp_path / "copy"


def test_labels_come_from_the_folders(copy: Path, subset: FashionMnist) -> None:
    folder = scan_images(copy)
    assert folder.class_names == tuple(sorted(folder_name(name) for name in subset.class_names))
    assert len(folder.train.paths) + len(folder.test.paths) == COUNT
    assert 0 < len(folder.test.paths) < COUNT / 4
    for files in (folder.train, folder.test):
        assert [folder.class_names[label] for label in files.labels] == [path.parent.name for path in files.paths]
        assert files.labels.dtype == np.int64
    assert folder.description.endswith(f"images in 10 classes from {copy}")


def test_the_vocabulary_is_fixed_and_saved(copy: Path) -> None:
    first = scan_images(copy)
    assert read_vocabulary(copy / "vocabulary.txt") == first.class_names
    shutil.rmtree(copy / "bag")
    assert scan_images(copy).class_names == first.class_names
    (copy / "aprons").mkdir()
    shutil.copy(next((copy / "coat").iterdir()), copy / "aprons")
    with pytest.raises(ConfigurationError, match=r"'aprons' are not in the vocabulary .*vocabulary.txt"):
        scan_images(copy)
    write_vocabulary(copy / "vocabulary.txt", [*first.class_names, "aprons"])
    assert 10 in [*scan_images(copy).train.labels, *scan_images(copy).test.labels]


def test_the_vocabulary_may_be_elsewhere_or_given(copy: Path, tmp_path: Path) -> None:
    names = scan_images(copy, vocabulary=tmp_path / "names.txt").class_names
    assert read_vocabulary(tmp_path / "names.txt") == names
    assert scan_images(copy, class_names=names[::-1]).class_names == names[::-1]
    assert scan_images(copy, save=False).class_names == names
    assert not (copy / "vocabulary.txt").exists()
    with pytest.raises(ConfigurationError, match="vocabulary cannot be saved"):
        scan_images(copy, vocabulary=tmp_path / "no" / "such" / "names.txt")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ConfigurationError, match="cannot be saved"):
        write_vocabulary(folder, names)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_paths_may_be_text(copy: Path, tmp_path: Path) -> None:
    write_vocabulary(str(tmp_path / "classes.txt"), ["coat", "shoe"])
    assert read_vocabulary(str(tmp_path / "classes.txt")) == ("coat", "shoe")
    cache, image = ImageCache(str(tmp_path / "cache")), ImageOptions(height=8, width=8)
    assert len(cache.images(scan_images(str(copy)), "test", image)) > 0
    assert len(list((tmp_path / "cache").iterdir())) == 1
    with pytest.raises(DatasetNotFoundError, match="files named like train-00000-of-00008"):
        open_records(str(tmp_path))
    with pytest.raises(DatasetNotFoundError, match="Received the data folder"):
        load_idx_folder(str(tmp_path))


def test_an_image_stays_in_its_split(copy: Path) -> None:
    before = {path.name for path in scan_images(copy).test.paths}
    for path in list((copy / "coat").iterdir())[::2]:
        path.unlink()
    assert {path.name for path in scan_images(copy).test.paths} <= before
    assert scan_images(copy, test_share=0).test.paths == ()


def test_folders_may_name_the_splits(photos: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(photos / "coat", tmp_path / split / "coat" / "deeper")
    (tmp_path / "train" / "bag").mkdir()
    shutil.copy(next((photos / "bag").iterdir()), tmp_path / "train" / "bag")
    folder = scan_images(tmp_path, test_share=0.5)
    assert folder.class_names == ("bag", "coat")
    assert len(folder.train.paths) == len(folder.test.paths) + 1
    assert set(folder.test.labels) == {1}


def test_what_is_no_image_folder_is_an_error(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="There is no folder"):
        scan_images(tmp_path / "none")
    (tmp_path / "empty" / "label").mkdir(parents=True)
    with pytest.raises(DatasetNotFoundError, match="holds no images"):
        scan_images(tmp_path / "empty")
    (copy / "coat" / "notes.txt").write_text("hello")
    with pytest.raises(ConfigurationError, match=r"notes.txt is no image by its name"):
        scan_images(copy)
    with pytest.raises(ConfigurationError, match="test_share is 1"):
        scan_images(copy, test_share=1)


def test_an_unknown_or_empty_split_is_an_error(copy: Path) -> None:
    folder = scan_images(copy, test_share=0)
    with pytest.raises(ConfigurationError, match="Unknown split 'validation'"):
        folder.files("validation")
    with pytest.raises(ConfigurationError, match="'test' of .* has no images"):
        folder.files("test")


def test_images_to_verify_with_come_from_both_splits(photos: Path) -> None:
    folder = scan_images(photos, test_share=0.2)
    tested, whole = len(folder.test.paths), len(folder.test.paths) + len(folder.train.paths)
    few = folder.examples(10)
    # Not the first ten, which are all of the first class.
    assert len(few.paths) == 10 and set(few.paths) <= set(folder.test.paths) and len(set(few.labels.tolist())) > 3
    assert folder.examples(tested).paths == folder.test.paths
    more = folder.examples(tested + 7)
    assert more.paths[:tested] == folder.test.paths and set(more.paths[tested:]) <= set(folder.train.paths)
    assert len(set(more.paths)) == len(more.labels) == tested + 7
    assert len(set(folder.examples(10_000).paths)) == whole
    for path, label in zip(more.paths, more.labels, strict=True):
        assert path.parent.name == folder.class_names[label]
    assert len(scan_images(photos, test_share=0).examples(5).paths) == 5
    with pytest.raises(ConfigurationError, match="count is 0"):
        folder.examples(0)


def test_examples_are_what_evaluation_sees_and_the_files(photos: Path, tmp_path: Path) -> None:
    folder = scan_images(photos, test_share=0.2)
    image = ImageOptions(height=20, width=24, channels=3, crop=0.875)
    count = len(folder.test.paths) + 5
    data = image_examples(folder, image=image, count=count)
    ((images, labels),) = image_folder_dataset("test", folder=folder, image=image, batch_size=1000).as_numpy_iterator()
    np.testing.assert_allclose(data.inputs["serving_default"]["image"][: len(images)], images, atol=1e-6)
    assert data.labels is not None and data.labels[: len(labels)].tolist() == labels.tolist()
    assert data.inputs["image_bytes"]["image_bytes"][0] == folder.test.paths[0].read_bytes()
    assert data.description.startswith(f"{len(labels)} test and 5 training images; ")
    assert image_examples(folder, image=image, count=3).description.startswith("3 test images; ")
    (tmp_path / "broken.jpeg").write_bytes(b"no image")
    bad = replace(folder, test=ImageFiles(paths=(tmp_path / "broken.jpeg",), labels=np.zeros(1, np.int64)))
    with pytest.raises(TrainingError, match=r"The image .*broken\.jpeg cannot be read"):
        image_examples(bad, image=image, count=1)


@pytest.mark.parametrize("text", ["", "a\nb\na\n", "a\n\nb\n"])
def test_what_is_no_vocabulary_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text(text)
    with pytest.raises(ConfigurationError, match="each once"):
        read_vocabulary(tmp_path / "names.txt")
    with pytest.raises(DatasetNotFoundError, match="cannot be read"):
        read_vocabulary(tmp_path / "none.txt")
    with pytest.raises(ConfigurationError, match="each once"):
        write_vocabulary(tmp_path / "other.txt", text.splitlines())


def test_names_that_are_no_text_are_an_error(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_bytes("Äpfel\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"names.txt is no text in UTF-8"):
        read_vocabulary(tmp_path / "names.txt")
    with pytest.raises(ConfigurationError, match="each once"):
        write_vocabulary(tmp_path / "other.txt", [1, 2])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="vocabulary cannot be saved"):
        write_vocabulary(tmp_path / "other.txt", [os.fsdecode(b"\xc4pfel")])
    assert [path.name for path in tmp_path.iterdir() if "other" in path.name] == []


def test_files_may_have_names_that_are_no_text(copy: Path) -> None:
    """As they come out of archives that were made elsewhere: the label is text, the file's own name need not be."""
    expected = scan_images(copy)
    path = expected.train.paths[0]
    path.rename(path.with_name(os.fsdecode(b"\xc4.jpeg")))
    found = scan_images(copy, test_share=0)
    image = ImageOptions(height=8, width=8)
    plain, cached = (
        list(image_folder_dataset("train", folder=found, image=image, batch_size=64, cache=cache).as_numpy_iterator())
        for cache in (None, ImageCache())
    )
    np.testing.assert_array_equal(plain[0][0], cached[0][0])
