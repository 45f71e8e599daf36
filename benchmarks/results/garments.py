"""Garments of Fashion-MNIST as a folder of JPEG files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from modelyard.training.data import FashionMnist


def rendered_folder(
    data: FashionMnist, *, labels: Sequence[int] = (1, 8, 9), first: int = 0, train: int = 300, test: int = 300
) -> str:
    """A folder of JPEG files, of several sizes; it stays for the process's time.

    Args:
        data: The images.
        labels: Which kinds of garment.
        first: Training images of each kind that are left out before those.
        train: Training images of each kind.
        test: Test images of each.
    """
    folder = Path(tempfile.mkdtemp(prefix="garments-"))
    for label in labels:
        name = data.class_names[label].lower().replace(" ", "-").replace("/", "-")
        for split, begin, count in (("train", first, train), ("test", 0, test)):
            images, of = getattr(data, f"{split}_images"), getattr(data, f"{split}_labels")
            (folder / split / name).mkdir(parents=True)
            for number, pixels in enumerate(images[of == label][begin : begin + count]):
                side = 28 + number % 9
                image = Image.fromarray(pixels).resize((side, side)).convert("RGB")
                image.save(folder / split / name / f"{number:03d}.jpeg", quality=95)
    return str(folder)
