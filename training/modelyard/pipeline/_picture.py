"""A picture of test images with what was predicted for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.lazy import needs_extra

_SIDE = 168
_COLUMNS = 5
_MARGIN = 14
_TEXT = 46
_INK = (28, 30, 36)
_RIGHT = (22, 128, 60)
_WRONG = (190, 40, 40)


def draw_predictions(
    path: Path,
    images: npt.NDArray[np.uint8],
    predicted: Sequence[str],
    true: Sequence[str],
) -> None:
    """Writes a PNG with one tile per image: the image, the predicted label, and the true one where they differ.

    Images are uint8 ``[N, height, width]`` or ``[N, height, width, 1]``, grey, or ``[N, height, width, 3]``.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    with needs_extra("training", "PIL", purpose="Drawing predictions"):
        from PIL import Image, ImageDraw, ImageFont
    if images.ndim == 4 and images.shape[-1] == 1:
        images = images[..., 0]
    count, height, width = images.shape[:3]
    # Whole pixels where they are magnified.
    ratio = _SIDE / max(height, width)
    ratio = float(int(ratio)) if ratio >= 1 else ratio
    shown_width, shown_height = max(1, round(width * ratio)), max(1, round(height * ratio))
    tile_width, tile_height = shown_width + _MARGIN, shown_height + _TEXT + _MARGIN
    rows = -(-count // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * tile_width + _MARGIN, rows * tile_height + _MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    large: Any = ImageFont.load_default(size=17)
    small: Any = ImageFont.load_default(size=14)
    for index in range(count):
        left = _MARGIN + index % _COLUMNS * tile_width
        top = _MARGIN + index // _COLUMNS * tile_height
        filter = Image.Resampling.NEAREST if ratio >= 1 else Image.Resampling.BILINEAR
        tile = Image.fromarray(images[index]).resize((shown_width, shown_height), filter)
        sheet.paste(tile.convert("RGB"), (left, top))
        right = predicted[index] == true[index]
        below = top + shown_height
        draw.text((left, below + 4), predicted[index], fill=_RIGHT if right else _WRONG, font=large)
        draw.text((left, below + 25), "right" if right else f"is: {true[index]}", fill=_INK, font=small)
    sheet.save(path)
