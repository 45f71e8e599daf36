"""Image files made from arrays: what clients would send."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image


def encode_variants(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.object_]:
    """Encodes grey images in turn as the kinds of file that clients send.

    In turn: grey PNG; tinted RGB PNG; grey JPEG; RGB PNG three times as large;
    tinted RGB JPEG of odd size, with another aspect.

    Args:
        images: uint8 ``[N, H, W]``.

    Returns:
        Bytes objects, ``[N]``.
    """
    makers = (_grey_png, _tinted_png, _grey_jpeg, _large_png, _odd_jpeg)
    encoded = np.empty(len(images), dtype=object)
    for index, pixels in enumerate(images):
        encoded[index] = makers[index % len(makers)](Image.fromarray(pixels))
    return encoded


def _grey_png(image: Image.Image) -> bytes:
    return _encode(image, "PNG")


def _tinted_png(image: Image.Image) -> bytes:
    return _encode(_tinted(image), "PNG")


def _grey_jpeg(image: Image.Image) -> bytes:
    return _encode(image, "JPEG", quality=95)


def _large_png(image: Image.Image) -> bytes:
    size = (image.width * 3, image.height * 3)
    return _encode(image.convert("RGB").resize(size, Image.Resampling.BILINEAR), "PNG")


def _odd_jpeg(image: Image.Image) -> bytes:
    size = (image.width + 13, image.height + 5)
    return _encode(_tinted(image).resize(size, Image.Resampling.BILINEAR), "JPEG", quality=90)


def _tinted(image: Image.Image) -> Image.Image:
    """The image on colour channels that differ, so that the weights of a grey conversion matter."""
    return Image.merge("RGB", (image, image.point(lambda value: value * 0.9), image.point(lambda value: value * 0.7)))


def _encode(image: Image.Image, kind: str, *, quality: int = 75) -> bytes:
    buffer = io.BytesIO()
    # PNG has no quality and ignores it.
    image.save(buffer, kind, quality=quality)
    return buffer.getvalue()
