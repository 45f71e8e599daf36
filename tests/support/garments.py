"""Real garments as a folder of JPEG files, by split and class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelyard.training.data import FashionMnist

#: Colour of each class, red, green and blue; the strongest is whole, so that it alone is the grey image again.
TINTS = np.array(
    [
        (1.0, 0.5, 0.2), (1.0, 0.3, 0.4), (1.0, 0.6, 0.1), (1.0, 0.4, 0.2), (1.0, 0.7, 0.3),
        (1.0, 0.2, 0.3), (1.0, 0.5, 0.4), (1.0, 0.3, 0.1), (1.0, 0.6, 0.3), (1.0, 0.4, 0.4),
    ],
    np.float32,
)  # fmt: skip


def write_garments(
    root: Path,
    data: FashionMnist,
    *,
    labels: Sequence[int] = range(10),
    count: int = 100,
    side: Callable[[int], int],
    coloured: bool = False,
) -> Path:
    """Writes ``root/<train or test>/<class>/<number>.jpeg``.

    Args:
        root: Where the folders go.
        data: The images.
        labels: Which classes.
        count: Images of each class and split, at most.
        side: Height and width of the image of a number.
        coloured: Gives each class its tint; grey images otherwise.

    Returns:
        ``root``.
    """
    for label in labels:
        name = data.class_names[label].lower().replace(" ", "-").replace("/", "-")
        for split, images, classes in (
            ("train", data.train_images, data.train_labels),
            ("test", data.test_images, data.test_labels),
        ):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number, grey in enumerate(images[classes == label][:count]):
                image = Image.fromarray(_tinted(grey, label) if coloured else grey).convert("RGB")
                size = (side(number), side(number))
                image.resize(size, Image.Resampling.BICUBIC).save(folder / f"{number:03d}.jpeg", quality=95)
    return root


def _tinted(grey: npt.NDArray[np.uint8], label: int) -> npt.NDArray[np.uint8]:
    return np.rint(grey[..., np.newaxis] * TINTS[label]).astype(np.uint8)
