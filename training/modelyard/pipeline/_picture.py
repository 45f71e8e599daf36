"""A picture of test images with what was predicted for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import MissingDependencyError

_SCALE = 6
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

    Args:
        path: The file to write.
        images: Grey images, uint8 ``[N, height, width]``.
        predicted: N labels.
        true: N labels.

    Raises:
        MissingDependencyError: Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ModuleNotFoundError as exc:
        if exc.name != "PIL":
            raise
        raise MissingDependencyError(package="pillow", extra="training", purpose="Drawing predictions") from exc
    count, height, width = images.shape
    tile_width, tile_height = width * _SCALE + _MARGIN, height * _SCALE + _TEXT + _MARGIN
    rows = -(-count // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * tile_width + _MARGIN, rows * tile_height + _MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    large: Any = ImageFont.load_default(size=17)
    small: Any = ImageFont.load_default(size=14)
    for index in range(count):
        left = _MARGIN + index % _COLUMNS * tile_width
        top = _MARGIN + index // _COLUMNS * tile_height
        tile = Image.fromarray(images[index]).resize((width * _SCALE, height * _SCALE), Image.Resampling.NEAREST)
        sheet.paste(tile.convert("RGB"), (left, top))
        right = predicted[index] == true[index]
        below = top + height * _SCALE
        draw.text((left, below + 4), predicted[index], fill=_RIGHT if right else _WRONG, font=large)
        draw.text((left, below + 25), "right" if right else f"is: {true[index]}", fill=_INK, font=small)
    sheet.save(path)
