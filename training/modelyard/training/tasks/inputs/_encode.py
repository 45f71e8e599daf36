"""Image files made from arrays: what clients would send."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image


def _tinted(image: Image.Image) -> Image.Image:
    """The image on colour channels that differ, so that the weights of a grey conversion matter."""
    return Image.merge("RGB", (image, image.point(lambda value: value * 0.9), image.point(lambda value: value * 0.7)))


def _resized(image: Image.Image, width: int, height: int) -> Image.Image:
    return image.resize((width, height), Image.Resampling.BILINEAR)


#: What is done to an image, the kind of file, and its quality, which PNG ignores.
_VARIANTS: tuple[tuple[Callable[[Image.Image], Image.Image], str, int], ...] = (
    (lambda image: image, "PNG", 75),
    (_tinted, "PNG", 75),
    (lambda image: image, "JPEG", 95),
    (lambda image: _resized(image.convert("RGB"), image.width * 3, image.height * 3), "PNG", 75),
    (lambda image: _resized(_tinted(image), image.width + 13, image.height + 5), "JPEG", 90),
)


def encode_variants(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.object_]:
    """Encodes grey images, uint8 ``[N, H, W]``, in turn as the kinds of file that clients send.

    In turn: grey PNG; tinted RGB PNG; grey JPEG; RGB PNG three times as large; tinted RGB JPEG of odd size and aspect.
    """
    encoded = np.empty(len(images), dtype=object)
    for index, pixels in enumerate(images):
        change, kind, quality = _VARIANTS[index % len(_VARIANTS)]
        buffer = io.BytesIO()
        change(Image.fromarray(pixels)).save(buffer, kind, quality=quality)
        encoded[index] = buffer.getvalue()
    return encoded
