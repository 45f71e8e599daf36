from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError, DatasetNotFoundError, TrainingError
from modelyard.training.data import (
    Augmentation,
    FashionMnist,
    ImageOptions,
    RecordFolder,
    Records,
    image_folder_dataset,
    open_records,
    scan_images,
    tfrecord_dataset,
)
from tests.training.data.conftest import Batches, assert_same, example, jpeg

IMAGE = ImageOptions(height=24, width=20, channels=1, crop=0.8)


def write(path: Path, messages: list[bytes]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for message in messages:
            writer.write(message)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> RecordFolder:
    """The files of the photos' training split, in eleven files of different length, by TensorFlow's own writer."""
    root = tmp_path_factory.mktemp("records")
    files = scan_images(photos, save=False).train
    messages = [example(path.read_bytes(), int(label)) for path, label in zip(files.paths, files.labels, strict=True)]
    bounds = np.linspace(0, 1, 12) ** 1.5 * len(messages)
    for index, (begin, end) in enumerate(zip(bounds, bounds[1:], strict=False)):
        write(root / f"train-{index:05}-of-00011.tfrecord", messages[int(begin) : int(end)])
    write(root / "test-00000-of-00001.tfrecord", messages[:3])
    return open_records(root)


def batches(records: RecordFolder, **options: Any) -> Batches:
    arguments = {"image": IMAGE, "batch_size": 16, "shuffle_window": 40, **options}
    return list(tfrecord_dataset("train", records=records, **arguments).as_numpy_iterator())


def as_set(found: Batches) -> set[tuple[int, bytes]]:
    return {
        (int(label), image.tobytes()) for images, labels in found for image, label in zip(images, labels, strict=True)
    }


@pytest.mark.parametrize("seed", [None, 3])
def test_it_delivers_what_the_image_folder_does(seed: int | None, records: RecordFolder, photos: Path) -> None:
    folder = scan_images(photos, save=False)
    expected = list(image_folder_dataset("train", folder=folder, image=IMAGE, batch_size=16).as_numpy_iterator())
    found = batches(records, seed=seed)
    assert [len(labels) for _, labels in found] == [len(labels) for _, labels in expected]
    assert len(as_set(found)) == len(folder.train.paths)
    assert as_set(found) == as_set(expected)
    same = all(np.array_equal(one[0], other[0]) for one, other in zip(found, expected, strict=True))
    assert same == (seed is None)


@pytest.mark.parametrize(("window", "augmentation"), [(1, None), (7, Augmentation()), (1000, None)])
def test_any_start_gives_the_rest_of_the_epoch(
    window: int, augmentation: Augmentation | None, records: RecordFolder
) -> None:
    options: dict[str, Any] = {"seed": 4, "epoch": 2, "augmentation": augmentation, "shuffle_window": window}
    whole = batches(records, **options)
    for skip in (1, 6):
        assert_same(batches(records, **options, skip_batches=skip), whole[skip:])


def test_the_order_is_a_function_of_seed_and_epoch_alone(records: RecordFolder) -> None:
    first = batches(records, seed=1)
    tf.random.set_seed(99)
    assert_same(batches(records, seed=1), first)
    assert not np.array_equal(batches(records, seed=1, epoch=1)[0][1], first[0][1])
    assert not np.array_equal(batches(records, seed=2)[0][1], first[0][1])
    assert_same(batches(records, skip_batches=2), batches(records)[2:])


def test_workers_together_see_what_one_worker_sees(records: RecordFolder) -> None:
    options: dict[str, Any] = {"seed": 4, "augmentation": Augmentation()}
    whole = batches(records, **options)
    parts = [batches(records, **options, batch_size=8, num_shards=2, shard_index=index) for index in range(2)]
    joined = [
        (np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]]))
        for one, other in zip(*parts, strict=True)
    ]
    assert_same(joined, whole)
    fixed = tfrecord_dataset("train", records=records, image=IMAGE, batch_size=16, seed=4, drop_remainder=True)
    assert fixed.element_spec[0].shape == [16, 24, 20, 1]
    assert int(fixed.cardinality()) == len(list(fixed)) == records.split("train").count // 16


def test_images_of_one_size_skip_the_resize_and_keep_their_values(tmp_path: Path, subset: FashionMnist) -> None:
    messages = [example(jpeg(subset.test_images[index]), index % 10 + 1) for index in range(20)]
    write(tmp_path / "train-00000-of-00001.tfrecord", messages)
    plain = open_records(tmp_path)
    assert plain.split("train").size is None
    path = tmp_path / "train-00000-of-00001.tfrecord"
    entry = {"name": path.name, "records": 20, "bytes": path.stat().st_size}
    split = {"files": [entry], "image_size": {"height": 28, "width": 28}}
    manifest = {"schema": 1, "class_names": ["a", "b"], "splits": {"train": split}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    known = open_records(tmp_path)
    assert known.split("train").size == (28, 28)
    assert known.class_names == ("a", "b")
    image = ImageOptions(height=28, width=28, channels=1)
    assert_same(batches(known, image=image, label_offset=1), batches(plain, image=image, label_offset=1))
    np.testing.assert_array_equal(batches(known, image=image, label_offset=1)[0][1], np.arange(16) % 10)
    entry["bytes"] = 5
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TrainingError, match="its manifest says 5"):
        open_records(tmp_path)


@pytest.mark.parametrize(
    "text", [
        "{", "[]", '{"schema": 9, "splits": {}}', '{"schema": 1, "splits": {"train": {}}}',
        '{"schema": 1, "splits": {"train": {"files": [{"name": "train-00000-of-00001"}]}}}',
        '{"schema": 1, "splits": {"train": {"files": [], "image_size": 28}}}',
    ],
)  # fmt: skip
def test_another_manifest_is_an_error(text: str, tmp_path: Path) -> None:
    write(tmp_path / "train-00000-of-00001", [b"x"])
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(TrainingError, match=r"manifest.json"):
        open_records(tmp_path)


def cut(root: Path) -> None:
    path = root / "train-00000-of-00002"
    path.write_bytes(path.read_bytes()[:-2])


def remove(root: Path) -> None:
    (root / "train-00001-of-00002").unlink()


def append(root: Path) -> None:
    path = root / "train-00000-of-00002"
    path.write_bytes(path.read_bytes() + b"more")


@pytest.mark.parametrize(
    ("change", "message"),
    [(cut, "ends within record 1"), (append, "ends within record 2"), (remove, "lacks file 1 of 2")],
)
def test_damaged_files_are_an_error(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    for index in range(2):
        write(tmp_path / f"train-{index:05}-of-00002", [b"first", b"second"])
    change(tmp_path)
    with pytest.raises(TrainingError, match=message):
        open_records(tmp_path)


def test_no_records_are_an_error(tmp_path: Path, records: RecordFolder) -> None:
    with pytest.raises(DatasetNotFoundError, match="There is no folder"):
        open_records(tmp_path / "none")
    with pytest.raises(DatasetNotFoundError, match="no files named like"):
        open_records(tmp_path)
    with pytest.raises(ConfigurationError, match=r"Unknown split 'validation' .* one of test, train"):
        records.split("validation")
    with pytest.raises(ConfigurationError, match="shuffle_window is 0"):
        batches(records, shuffle_window=0)
    write(tmp_path / "train-00000-of-00001", [])
    with pytest.raises(ConfigurationError, match="has no records"):
        open_records(tmp_path).split("train")


def test_folders_that_number_their_classes_differently_are_no_one_data_set(
    tmp_path: Path, subset: FashionMnist
) -> None:
    for folder, names in (("a", ["cat", "dog"]), ("b", ["dog", "cat"]), ("c", ["cat", "dog"])):
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "train-00000-of-00001.tfrecord"
        write(file, [example(jpeg(subset.train_images[index]), index % 2) for index in range(3)])
        entry = {"name": file.name, "records": 3, "bytes": file.stat().st_size}
        manifest = {"schema": 1, "class_names": names, "splits": {"train": {"files": [entry]}}}
        (tmp_path / folder / "manifest.json").write_text(json.dumps(manifest))
    image = ImageOptions(height=8, width=8, channels=1)
    with pytest.raises(ConfigurationError, match="a and .*b number their classes differently"):
        assert Records(str(tmp_path / "[ab]" / "train-*"), image=image).class_names
    alike = Records(str(tmp_path / "[ac]" / "train-*"), image=image)
    assert (alike.class_names, alike.files.split("all").counts) == (("cat", "dog"), (3, 3))
    # As training and test data of one task, too.
    test = Records(str(tmp_path / "b" / "train-*"), image=image)
    with pytest.raises(ConfigurationError, match="classes dog, cat, and the training data cat, dog"):
        test.fitted([], class_names=("cat", "dog"))
    assert test.fitted([], class_names=("dog", "cat")).class_names == ("dog", "cat")
