from __future__ import annotations

import io

import numpy as np
from PIL import Image

from modelyard.training.data import FashionMnist
from modelyard.training.tasks import FashionTask


def encoded(subset: FashionMnist, count: int) -> list[bytes]:
    return list(FashionTask(data=subset).verification_data(count).inputs["image_bytes"]["image_bytes"])


def test_the_kinds_come_in_turn(subset: FashionMnist) -> None:
    found = [Image.open(io.BytesIO(data)) for data in encoded(subset, 7)]
    assert [(image.format, image.mode, image.size) for image in found] == [
        ("PNG", "L", (28, 28)),
        ("PNG", "RGB", (28, 28)),
        ("JPEG", "L", (28, 28)),
        ("PNG", "RGB", (84, 84)),
        ("JPEG", "RGB", (41, 33)),
        ("PNG", "L", (28, 28)),
        ("PNG", "RGB", (28, 28)),
    ]


def test_a_grey_png_has_the_very_pixels(subset: FashionMnist) -> None:
    data = encoded(subset, 1)[0]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), subset.test_images[0])
