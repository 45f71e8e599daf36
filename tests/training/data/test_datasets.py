from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelyard.errors import ConfigurationError
from modelyard.training import InputRequest
from modelyard.training.data import FashionMnist, memory_images


def batches(data: FashionMnist, **options: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    training = options.get("seed") is not None
    source = memory_images(data, "train")
    return list(source.batches(InputRequest(**options), training=training).as_numpy_iterator())


def test_one_epoch_has_every_image_once_scaled(subset: FashionMnist) -> None:
    found = batches(subset, batch_size=300, seed=5)
    assert [len(labels) for _, labels in found] == [300] * 6 + [200]
    images, labels = (np.concatenate(parts) for parts in zip(*found, strict=True))
    assert images.shape == (2000, 28, 28, 1)
    assert images.dtype == np.float32
    assert labels.dtype == np.int64
    assert (images.min(), images.max()) == (0.0, 1.0)
    flat = np.rint(images * 255).astype(np.uint8).reshape(2000, -1)
    expected = subset.train_images.reshape(2000, -1)
    np.testing.assert_array_equal(flat[np.lexsort(flat.T)], expected[np.lexsort(expected.T)])
    assert not np.array_equal(labels, subset.train_labels)


def test_without_a_seed_the_order_is_that_of_the_files(subset: FashionMnist) -> None:
    dataset = memory_images(subset, "test").batches(InputRequest(batch_size=400), training=False)
    found = list(dataset.as_numpy_iterator())
    assert int(dataset.cardinality()) == 3
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in found]), subset.test_labels)
    np.testing.assert_allclose(found[0][0][7, ..., 0], subset.test_images[7] / 255.0, rtol=1e-6)


def test_the_order_depends_on_seed_and_epoch_alone(subset: FashionMnist) -> None:
    first = batches(subset, batch_size=2000, seed=1, epoch=0)[0][1]
    np.testing.assert_array_equal(first, batches(subset, batch_size=2000, seed=1, epoch=0)[0][1])
    assert not np.array_equal(first, batches(subset, batch_size=2000, seed=1, epoch=1)[0][1])
    assert not np.array_equal(first, batches(subset, batch_size=2000, seed=2, epoch=0)[0][1])


def test_it_goes_on_in_the_middle(subset: FashionMnist) -> None:
    whole = batches(subset, batch_size=300, seed=1, epoch=2)
    rest = batches(subset, batch_size=300, seed=1, epoch=2, skip_batches=4)
    assert len(rest) == 3
    for (images, labels), (expected_images, expected_labels) in zip(rest, whole[4:], strict=True):
        np.testing.assert_array_equal(images, expected_images)
        np.testing.assert_array_equal(labels, expected_labels)
    assert batches(subset, batch_size=300, seed=1, skip_batches=9) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "validation"}, "Unknown split 'validation'"),
        ({"split": "train", "batch_size": 0}, "batch_size 0"),
        ({"split": "train", "batch_size": 8, "skip_batches": -1}, "skip_batches -1"),
        ({"split": "train", "batch_size": 8, "epoch": -1, "seed": 1}, "epoch -1"),
        ({"split": "train", "batch_size": 8, "seed": -1}, "seed -1"),
    ],
)
def test_numbers_out_of_range_are_an_error(options: dict[str, Any], message: str, subset: FashionMnist) -> None:
    with pytest.raises(ConfigurationError, match=message):
        memory_images(subset, options.pop("split")).batches(InputRequest(**options))
