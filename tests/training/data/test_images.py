from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import decode_image as decode_without_tensorflow
from modelyard.errors import ConfigurationError, TrainingError
from modelyard.export.sources._trace import decode_in_graph
from modelyard.training.data import (
    Augmentation,
    FashionMnist,
    ImageCache,
    ImageOptions,
    ImageSplits,
    decode_image,
    image_folder_dataset,
    scan_images,
)
from tests.training.data.conftest import Batches, assert_same, jpeg

IMAGE = ImageOptions(height=24, width=20, channels=3, crop=0.8)


@pytest.fixture(scope="module")
def folder(photos: Path) -> ImageSplits:
    return scan_images(photos, save=False)


def batches(folder: ImageSplits, split: str = "train", **options: Any) -> Batches:
    arguments = {"image": IMAGE, "batch_size": 16, **options}
    return list(image_folder_dataset(split, folder=folder, **arguments).as_numpy_iterator())


def test_evaluation_is_bit_for_bit_what_a_server_computes(folder: ImageSplits) -> None:
    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def serve(data: tf.Tensor) -> tf.Tensor:
        return IMAGE.preprocess(decode_in_graph(data, channels=3))

    found = batches(folder, "test")
    images = np.concatenate([images for images, _ in found])
    assert images.shape == (len(folder.test.paths), 24, 20, 3)
    assert images.dtype == np.float32
    assert 0 <= images.min() < 0.1 < 0.9 < images.max() <= 1
    for path, pixels in zip(folder.test.paths, images, strict=True):
        np.testing.assert_array_equal(serve(path.read_bytes()), pixels)
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in found]), folder.test.labels)


@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_those_of_servers_without_tensorflow(channels: int, folder: ImageSplits) -> None:
    for path in folder.test.paths[:4]:
        data = path.read_bytes()
        expected = decode_without_tensorflow(data, channels)
        np.testing.assert_array_equal(decode_image(tf.constant(data), channels=channels), expected)


def test_a_crop_of_one_sees_the_whole_image() -> None:
    whole = ImageOptions(height=4, width=6)
    assert whole.enlarged == (4, 6)
    pixels = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)
    np.testing.assert_allclose(whole.preprocess(tf.constant(pixels)), pixels / 255.0, rtol=1e-6)
    assert IMAGE.enlarged == (30, 25)
    middle = IMAGE.preprocess(tf.constant(np.tile(np.arange(25, dtype=np.uint8)[:, None], (30, 1, 3))))
    np.testing.assert_allclose(middle[0, :, 0] * 255, np.arange(2, 22), rtol=1e-5)


@pytest.mark.parametrize("augmentation", [None, Augmentation()])
def test_any_start_gives_the_rest_of_the_epoch(augmentation: Augmentation | None, folder: ImageSplits) -> None:
    options: dict[str, Any] = {"seed": 4, "epoch": 2, "augmentation": augmentation}
    whole = batches(folder, **options)
    assert_same(batches(folder, **options, skip_batches=5), whole[5:])
    other = batches(folder, **{**options, "epoch": 3})
    assert not np.array_equal(other[0][1], whole[0][1])
    tf.random.set_seed(77)
    assert_same(batches(folder, **options, skip_batches=6), whole[6:])


def test_workers_together_draw_what_one_worker_draws(folder: ImageSplits) -> None:
    options: dict[str, Any] = {"seed": 4, "augmentation": Augmentation(), "drop_remainder": True}
    whole = batches(folder, **options)
    parts = [batches(folder, **{**options, "batch_size": 8}, num_shards=2, shard_index=index) for index in range(2)]
    joined = [
        (np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]]))
        for one, other in zip(*parts, strict=True)
    ]
    assert_same(joined, whole)


def test_augmentation_crops_flips_and_shifts(folder: ImageSplits) -> None:
    plain = batches(folder, seed=1)[0][0]
    flipped = batches(folder, seed=1, image=IMAGE, augmentation=Augmentation(brightness=0, contrast=0))[0][0]
    assert not np.array_equal(plain, flipped)
    uncropped = ImageOptions(height=24, width=20)
    only_flip = Augmentation(brightness=0, contrast=0)
    before = batches(folder, seed=1, image=uncropped)[0][0]
    after = batches(folder, seed=1, image=uncropped, augmentation=only_flip)[0][0]
    mirrored = [np.array_equal(one, other[:, ::-1]) for one, other in zip(after, before, strict=True)]
    same = [np.array_equal(one, other) for one, other in zip(after, before, strict=True)]
    assert all(one or other for one, other in zip(mirrored, same, strict=True))
    assert 0 < sum(mirrored) < len(mirrored)
    bright = Augmentation(flip=False, contrast=0, brightness=0.2)
    change = batches(folder, seed=1, image=uncropped, augmentation=bright)[0][0] - before
    inner = (before > 0.21) & (before < 0.79)
    for each, where in zip(change, inner, strict=True):
        assert np.ptp(each[where]) < 1e-5
        assert abs(each[where].mean()) <= 0.2
    assert np.ptp([each[where].mean() for each, where in zip(change, inner, strict=True)]) > 0.1


def test_a_cache_changes_no_value_and_is_used_again(folder: ImageSplits, tmp_path: Path) -> None:
    expected = batches(folder, seed=2, augmentation=Augmentation())
    for cache in (ImageCache(), ImageCache(tmp_path), ImageCache(tmp_path)):
        assert_same(batches(folder, seed=2, augmentation=Augmentation(), cache=cache), expected)
    (file,) = tmp_path.iterdir()
    values = np.load(file, mmap_mode="r+")
    values[:] = 255.0
    values.flush()
    assert batches(folder, seed=2, cache=ImageCache(tmp_path))[0][0].min() == 1.0


def test_shapes_are_known(folder: ImageSplits) -> None:
    dataset = image_folder_dataset("train", folder=folder, image=IMAGE, batch_size=16, drop_remainder=True)
    assert dataset.element_spec[0].shape == [16, 24, 20, 3]
    assert dataset.element_spec[1].shape == [16]
    assert int(dataset.cardinality()) == len(folder.train.paths) // 16
    loose = image_folder_dataset("train", folder=folder, image=IMAGE, batch_size=16)
    assert loose.element_spec[0].shape.as_list() == [None, 24, 20, 3]


def test_a_bad_image_is_an_error_that_names_it(subset: FashionMnist, tmp_path: Path) -> None:
    (tmp_path / "coat").mkdir()
    for index in range(4):
        (tmp_path / "coat" / f"{index}.jpeg").write_bytes(jpeg(subset.test_images[index]))
    bad = tmp_path / "coat" / "2.jpeg"
    whole = bad.read_bytes()
    bad.write_bytes(b"<html>" + whole)
    folder = scan_images(tmp_path, test_share=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(bad)):
        batches(folder)
    bad.write_bytes(whole[:200])
    with pytest.raises(TrainingError, match=f"The image {bad} cannot be read"):
        batches(folder, cache=ImageCache())


def test_a_cache_that_cannot_be_kept_or_is_damaged_is_an_error_that_names_it(
    folder: ImageSplits, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=f"cached images {tmp_path}/file/.* cannot be read or written"):
        batches(folder, cache=ImageCache(tmp_path / "file"))
    batches(folder, cache=ImageCache(tmp_path / "cache"))
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(b"no array")
    with pytest.raises(TrainingError, match=f"cached images {kept} cannot be read or written"):
        batches(folder, cache=ImageCache(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 0}, "height is 0; expected a whole number >= 1"),
        ({"width": "8"}, "width is '8'; expected a whole number >= 1"),
        ({"width": 8.5}, "width is 8.5"),
        ({"channels": 4}, "channels is 4"),
        ({"crop": 0.0}, "crop is 0.0"),
        ({"crop": 1.5}, "crop is 1.5"),
        ({"crop": None}, "crop is None"),
    ],
)
def test_impossible_images_are_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ImageOptions(**{"height": 8, "width": 8, **options})


@pytest.mark.parametrize("options", [{"brightness": -0.1}, {"contrast": 1.1}, {"brightness": None}])
def test_impossible_augmentation_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="expected a number from 0 to 1"):
        Augmentation(**options)
