"""Decode of encoded images without TensorFlow, equal to TensorFlow's own decode.

This is the decode step of an ``image_bytes`` signature on servers that have no TensorFlow. What it is equal to,
measured against TensorFlow 2.21 bit by bit: ``tf.io.decode_image(channels=C, expand_animations=False)`` for PNG, BMP,
GIF (first frame) and WebP, and ``tf.io.decode_jpeg(channels=C, dct_method="INTEGER_ACCURATE")`` for JPEG. The exporter
puts exactly these two into the SavedModel. TensorFlow's default for JPEG is a faster, less accurate inverse transform
that differs by up to 12 levels from everybody else's. The one difference left: a colour PNG of 16 bits per channel,
asked for in grey, may be one level off.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from modelyard.errors import ImageDecodeError, RequestTooLargeError
from modelyard.lazy import needs_extra

if TYPE_CHECKING:
    from PIL import Image as PilImage

MAX_IMAGE_PIXELS = 1 << 26
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
# libpng's fixed point weights for red, green and blue; it truncates where others round.
_PNG_GREY = np.array([9797, 19234, 3737], dtype=np.int32)
_PNG_GREY_SHIFT = 15
#: Pixels that are converted at a time: a large image takes its decoded form and the result, and little more.
_TILE = 1 << 18
#: Bytes of a text that may be the name of a file.
_LONGEST_NAME = 256


def decode_image(data: bytes, channels: int, *, max_pixels: int = MAX_IMAGE_PIXELS) -> npt.NDArray[np.uint8]:
    """Decodes one JPEG, PNG, BMP, GIF (first frame) or WebP image.

    EXIF orientation is ignored and an alpha channel is dropped, as TensorFlow
    does, which refuses a WebP with one, or one that moves. BMP, GIF and WebP
    files have no grey output, there as here.

    Args:
        data: The whole encoded file.
        channels: 1 (grey) or 3 (RGB), whatever the file holds.
        max_pixels: Larger images are refused before they are decompressed.

    Returns:
        uint8 ``[height, width, channels]``.

    Raises:
        ImageDecodeError: The bytes are no complete image of a known format, or the format has no such channels.
        RequestTooLargeError: The image has more than ``max_pixels`` pixels.
        MissingDependencyError: Pillow is not installed.
        ValueError: ``channels`` is neither 1 nor 3.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels is {channels}; expected 1 (grey) or 3 (RGB).")
    with needs_extra("serving", "PIL", purpose="Decoding images"):
        from PIL import Image
    if not _has_end(data):
        raise _not_an_image(data, "its end is missing")
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height <= max_pixels:
                return _pixels(image, channels, data)
            size = f"{image.width} x {image.height}"
    except ImageDecodeError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise RequestTooLargeError(f"An image is larger than the {max_pixels} pixels accepted: {exc}") from exc
    except MemoryError as exc:
        raise RequestTooLargeError("An image does not fit into memory.") from exc
    except Exception as exc:
        # Pillow's decoders raise what they like on hostile bytes (OSError, SyntaxError, struct.error, ...).
        raise _not_an_image(data, str(exc).splitlines()[0] if str(exc) else type(exc).__name__) from exc
    raise RequestTooLargeError(f"An image has {size} pixels; at most {max_pixels} in all are accepted.")


def _has_end(data: bytes) -> bool:
    """Whether a file of a format with an end mark has it: Pillow forgives a short tail, TensorFlow does not."""
    if data.startswith(b"\xff\xd8"):
        return data.rfind(b"\xff\xd9") > data.rfind(b"\xff\xda")
    if data.startswith(b"\x89PNG"):
        end = data.rfind(b"IEND")
        return 0 <= end <= len(data) - 8
    if data.startswith(b"BM"):
        return len(data) >= int.from_bytes(data[2:6], "little")
    if data.startswith(b"GIF8"):
        return b"\x00;" in data or data.endswith(b"\x00")
    return True


def _pixels(image: PilImage.Image, channels: int, data: bytes) -> npt.NDArray[np.uint8]:
    kind = "JPEG" if data.startswith(b"\xff\xd8") else image.format
    if channels == 1 and kind not in ("JPEG", "PNG"):
        raise ImageDecodeError(f"A {kind} image has no grey decode; send JPEG or PNG to this signature.")
    if kind == "JPEG" and channels == 1:
        if image.mode == "CMYK":
            raise ImageDecodeError("A CMYK JPEG has no grey decode; send a grey or RGB image to this signature.")
        # The decoder then delivers luma itself, where converting from RGB would be off by rounding.
        image.draft("L", image.size)
    if kind == "BMP" and image.mode not in ("L", "RGB", "RGBA"):
        raise ImageDecodeError(f"A BMP image of mode {image.mode} is not supported; send 24 or 32 bits per pixel.")
    if image.width * image.height <= _TILE:
        return _converted(image, channels, kind)
    pixels = np.empty((image.height, image.width, channels), np.uint8)
    for box in _tiles(image.width, image.height):
        left, top, right, bottom = box
        pixels[top:bottom, left:right] = _converted(image.crop(box), channels, kind)
    return pixels


def _tiles(width: int, height: int) -> Iterator[tuple[int, int, int, int]]:
    """Boxes of at most ``_TILE`` pixels that make up an image, however wide it is."""
    columns = min(width, _TILE)
    rows = _TILE // columns
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            yield left, top, min(left + columns, width), min(top + rows, height)


def _converted(image: PilImage.Image, channels: int, kind: str | None) -> npt.NDArray[np.uint8]:
    """The pixels of an image of a format; each is converted by itself, so that parts of an image are as the whole."""
    if image.mode.startswith("I"):
        grey = (np.asarray(image) >> 8).astype(np.uint8)[..., np.newaxis]
        return np.repeat(grey, channels, axis=2)
    if channels == 1 and kind == "PNG" and image.mode in ("P", "RGB", "RGBA"):
        rgb = np.asarray(image.convert("RGB")).astype(np.int32)
        return ((rgb @ _PNG_GREY) >> _PNG_GREY_SHIFT).astype(np.uint8)[..., np.newaxis]
    if channels == 1:
        return np.array(image.convert("L"))[..., np.newaxis]
    rgb8: npt.NDArray[np.uint8] = np.array(image.convert("RGB"))
    transparent = image.info.get("transparency") if kind == "GIF" and image.mode in ("L", "P") else None
    if isinstance(transparent, int):
        # TensorFlow leaves these pixels as the black canvas below.
        rgb8[np.asarray(image) == transparent] = 0
    return rgb8


def _not_an_image(data: bytes, reason: str) -> ImageDecodeError:
    known = ", ".join(_FORMATS).replace("WEBP", "WebP")
    # Pillow's own messages hold the repr of a buffer, which tells a sender nothing.
    reason = "no decoder knows it" if "cannot identify" in reason else reason
    text = f"{len(data)} bytes are not a complete image of a known format ({known}): {reason}."
    return ImageDecodeError(text + _what_it_may_be(data))


def _what_it_may_be(data: bytes) -> str:
    """A hint for two things that are sent for an image by mistake; empty for others."""
    if data.startswith((b"data:image/", b"/9j/", b"iVBORw0K", b"R0lGOD", b"UklGR")):
        return ' They are Base64 text: send the bytes that it stands for; in JSON {"b64": "<this text>"}.'
    if len(data) < _LONGEST_NAME and data.isascii() and data.decode().isprintable() and b"." in data[1:]:
        return " They look like the name of a file: send what the file holds."
    return ""
