"""decode_image: what it delivers, and that bad bytes are one clear error.

That it equals TensorFlow bit by bit is tested in tests/export/test_decode_parity.py,
which needs TensorFlow.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from modelyard.artifact import decode_image
from modelyard.errors import ImageDecodeError, MissingDependencyError, RequestTooLargeError

PIXELS = np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)


def encode(kind: str, *, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "BMP"])
def test_lossless_formats_come_back_exactly(kind: str) -> None:
    decoded = decode_image(encode(kind), 3)
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, PIXELS)


@pytest.mark.parametrize(("kind", "channels"), [("JPEG", 1), ("JPEG", 3), ("PNG", 1), ("GIF", 3), ("WEBP", 3)])
def test_shape_follows_the_channels(kind: str, channels: int) -> None:
    decoded = decode_image(encode(kind), channels)
    assert decoded.shape == (20, 30, channels)
    assert decoded.std() > 10


def test_exif_orientation_is_ignored() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "JPEG", exif=exif.tobytes())
    assert decode_image(buffer.getvalue(), 3).shape == (20, 30, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP"])
@pytest.mark.parametrize("missing", [2, 20, "half"])
def test_a_truncated_image_is_an_error(kind: str, missing: int | str) -> None:
    data = encode(kind)
    cut = data[: len(data) // 2] if missing == "half" else data[: -int(missing)]
    with pytest.raises(ImageDecodeError, match=r"not a complete image of a known format \(JPEG, PNG"):
        decode_image(cut, 3)


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\xff\xd8\xff\xd9", b"BM", b"GIF89a\x00;", b"\x89PNG\r\n\x1a\nIEND----"]
)
def test_other_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(ImageDecodeError, match=f"^{len(data)} bytes are not a complete image"):
        decode_image(data, 3)


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"photos/shirt.png", "They look like the name of a file: send what the file holds."),
        (base64.b64encode(encode("PNG")), "They are Base64 text: send the bytes that it stands for"),
        (b"data:image/png;base64," + base64.b64encode(encode("PNG")), "They are Base64 text"),
        (base64.b64encode(encode("JPEG")), "They are Base64 text"),
        (base64.b64encode(encode("GIF")), "They are Base64 text"),
        (base64.b64encode(encode("WEBP")), "They are Base64 text"),
    ],
)
def test_what_is_often_sent_for_an_image_is_told(data: bytes, hint: str) -> None:
    with pytest.raises(ImageDecodeError, match=hint):
        decode_image(data, 3)


def test_a_damaged_png_is_an_error() -> None:
    data = bytearray(encode("PNG"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(ImageDecodeError):
        decode_image(bytes(data), 3)


def test_an_unlisted_format_is_an_error() -> None:
    with pytest.raises(ImageDecodeError, match="no decoder knows it"):
        decode_image(encode("TIFF"), 3)


@pytest.mark.parametrize("kind", ["BMP", "GIF", "WEBP"])
def test_grey_is_refused_where_tensorflow_refuses_it(kind: str) -> None:
    with pytest.raises(ImageDecodeError, match=f"A {kind} image has no grey decode"):
        decode_image(encode(kind), 1)


def test_cmyk_and_palette_bmp_are_refused() -> None:
    with pytest.raises(ImageDecodeError, match="CMYK"):
        decode_image(encode("JPEG", mode="CMYK"), 1)
    with pytest.raises(ImageDecodeError, match="mode P"):
        decode_image(encode("BMP", mode="P"), 3)


def test_a_large_image_is_refused_before_it_is_decompressed() -> None:
    with pytest.raises(RequestTooLargeError, match="30 x 20 pixels; at most 599"):
        decode_image(encode("PNG"), 3, max_pixels=599)
    assert decode_image(encode("PNG"), 3, max_pixels=600).shape == (20, 30, 3)


def test_a_decompression_bomb_is_refused() -> None:
    # A header that claims 60,000 x 60,000 pixels: pixels are never allocated.
    data = bytearray(encode("PNG"))
    data[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises((RequestTooLargeError, ImageDecodeError)):
        decode_image(bytes(data), 3)


def test_channels_are_checked() -> None:
    with pytest.raises(ValueError, match="channels is 4"):
        decode_image(encode("PNG"), 4)


def test_importing_the_artifact_imports_neither_tensorflow_nor_pillow() -> None:
    code = "import sys, modelyard.artifact; sys.exit(int(bool({'tensorflow', 'PIL', 'jsonschema'} & set(sys.modules))))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode("PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'modelyard\[serving\]'"):
        decode_image(data, 3)
