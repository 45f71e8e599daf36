"""Many small images in one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError

_GAP = 2
_PAPER = 255


def to_uint8(images: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Pixels for a file.

    Args:
        images: Of any shape; floats count from 0 to 1, anything outside is
            clipped; integers are taken as they are, from 0 to 255.

    Returns:
        uint8 of the same shape.
    """
    if np.issubdtype(images.dtype, np.floating):
        finite = np.nan_to_num(images, nan=0.0, posinf=1.0, neginf=0.0)
        return np.rint(np.clip(finite, 0.0, 1.0) * _PAPER).astype(np.uint8)
    return np.clip(images, 0, _PAPER).astype(np.uint8)


def image_grid(images: npt.NDArray[Any], *, columns: int | None = None, gap: int = _GAP) -> npt.NDArray[np.uint8]:
    """Puts images side by side, row by row, on white.

    Args:
        images: ``[N, H, W]``, ``[N, H, W, 1]`` or ``[N, H, W, 3]``; values as for :func:`to_uint8`.
        columns: Images in a row; None for about as many as there are rows.
        gap: Pixels between two images.

    Returns:
        uint8 ``[height, width]`` for grey images, ``[height, width, 3]`` for colour.

    Raises:
        ConfigurationError: There is no image, or the array has another shape.
    """
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or not len(images):
        raise ConfigurationError(
            f"A grid was asked for of an array of shape {list(images.shape)}; expected at least one image, as "
            "[N, H, W], [N, H, W, 1] or [N, H, W, 3]."
        )
    pixels = to_uint8(images)
    count, height, width, channels = pixels.shape
    columns = columns or math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    shape = (rows * (height + gap) - gap, columns * (width + gap) - gap, channels)
    paper = np.full(shape, _PAPER, np.uint8)
    for index, image in enumerate(pixels):
        top, left = (index // columns) * (height + gap), (index % columns) * (width + gap)
        paper[top : top + height, left : left + width] = image
    return paper[..., 0] if channels == 1 else paper


def save_image(pixels: npt.NDArray[np.uint8], path: Path, *, scale: int = 1) -> None:
    """Writes a PNG, in place only when it is whole.

    Args:
        pixels: uint8 ``[H, W]`` or ``[H, W, 3]``.
        path: Where; missing folders are made.
        scale: How many pixels of the file each pixel gets, in both directions.
    """
    from PIL import Image

    image = Image.fromarray(pixels)
    if scale > 1:
        image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    image.save(partial, "PNG")
    partial.replace(path)
