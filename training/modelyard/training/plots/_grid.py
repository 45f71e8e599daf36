"""Many small images in one."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.run import replace_file

_GAP = 2
_WHITE = 255


def to_uint8(images: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Pixels for a file, of the same shape; floats are taken to be from 0 to 1."""
    if np.issubdtype(images.dtype, np.floating):
        finite = np.nan_to_num(images, nan=0.0, posinf=1.0, neginf=0.0)
        return np.rint(np.clip(finite, 0.0, 1.0) * _WHITE).astype(np.uint8)
    return np.clip(images, 0, _WHITE).astype(np.uint8)


def image_grid(images: npt.NDArray[Any], *, columns: int | None = None, gap: int = _GAP) -> npt.NDArray[np.uint8]:
    """Puts images side by side, row by row, on white.

    Args:
        images: ``[N, H, W]``, ``[N, H, W, 1]`` or ``[N, H, W, 3]``; values as for :func:`to_uint8`.
        columns: Images in a row; None for about as many as there are rows.
        gap: Pixels between two images.

    Returns:
        uint8 ``[height, width]`` for grey images, ``[height, width, 3]`` for colour.
    """
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[-1] not in (1, 3) or not len(images):
        raise ConfigurationError(
            f"Received an array of shape {list(images.shape)}; expected at least one image, as "
            "[N, H, W], [N, H, W, 1] or [N, H, W, 3]."
        )
    pixels = to_uint8(images)
    count, height, width, channels = pixels.shape
    columns = columns or math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    pixels = np.pad(pixels, ((0, rows * columns - count), (0, gap), (0, gap), (0, 0)), constant_values=_WHITE)
    paper = pixels.reshape(rows, columns, height + gap, width + gap, channels).swapaxes(1, 2)
    paper = paper.reshape(rows * (height + gap), columns * (width + gap), channels)[: -gap or None, : -gap or None]
    return paper[..., 0] if channels == 1 else paper


def save_image(pixels: npt.NDArray[np.uint8], path: Path, *, scale: int = 1) -> None:
    """Writes a PNG of uint8 ``[H, W]`` or ``[H, W, 3]``, enlarged by a factor, in place only when it is complete."""
    from PIL import Image

    image = Image.fromarray(pixels)
    if scale > 1:
        image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    replace_file(path, buffer.getvalue(), error=TrainingError)
