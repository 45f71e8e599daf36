"""decode_image: what it delivers, and that bad bytes are one clear error.

That it equals TensorFlow bit by bit is tested in tests/export/test_decode_parity.py,
which needs TensorFlow.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import tracemalloc
import zlib

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
    with pytest.raises(ImageDecodeError, match="broken data stream"):
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


@pytest.mark.parametrize(
    ("side", "words"),
    [
        (9000, "9000 x 9000 pixels; at most 67108864 in all"),
        # Pillow itself warns of this one, and refuses that one.
        (10_000, "larger than the 67108864 pixels accepted|10000 x 10000 pixels"),
        (60_000, "larger than the 67108864 pixels accepted"),
    ],
)
def test_a_decompression_bomb_is_refused(side: int, words: str) -> None:
    # A header that claims that many pixels: they are never allocated.
    data = bytearray(encode("PNG"))
    data[16:24] = side.to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    tracemalloc.start()
    try:
        with pytest.raises(RequestTooLargeError, match=words):
            decode_image(bytes(data), 3)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [(700, 600), (1, 420_000), (270_000, 2), (40, 30)])
@pytest.mark.parametrize("mode", ["P", "RGB", "RGBA", "L", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_large_images_are_converted_in_parts_as_if_at_once(size: tuple[int, int], mode: str, channels: int) -> None:
    rng = np.random.default_rng(0)
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, size).astype(np.uint16))
    else:
        image = Image.fromarray(rng.integers(0, 256, (*size, 4), dtype=np.uint8)).convert("RGB").convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    if mode == "I;16":
        at_once = np.repeat((np.asarray(image) >> 8)[..., np.newaxis], channels, axis=2)
    elif channels == 3:
        at_once = np.asarray(image.convert("RGB"))
    elif mode == "L":
        at_once = np.asarray(image)[..., np.newaxis]
    else:
        weights = np.array([9797, 19234, 3737], np.int64)
        at_once = ((np.asarray(image.convert("RGB")).astype(np.int64) @ weights) >> 15)[..., np.newaxis]
    decoded = decode_image(buffer.getvalue(), channels)
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, at_once)


def test_transparent_pixels_of_a_large_gif_are_black() -> None:
    indices = np.random.default_rng(0).integers(0, 4, (700, 600), dtype=np.uint8)
    image = Image.fromarray(indices, "P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120])
    buffer = io.BytesIO()
    image.save(buffer, "GIF", transparency=2, optimize=False)
    palette = np.array([[10, 20, 30], [40, 50, 60], [0, 0, 0], [100, 110, 120]], np.uint8)
    np.testing.assert_array_equal(decode_image(buffer.getvalue(), 3), palette[indices])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("mode", "channels", "most_mb"), [("P", 1, 60), ("P", 3, 90), ("I;16", 3, 110)])
def test_a_large_image_takes_little_more_memory_than_its_pixels(mode: str, channels: int, most_mb: int) -> None:
    # Its own 16 Mi pixels and the result; a file of a few kB may stand for them, on every thread at once.
    script = f"""
import io, re
from pathlib import Path
from PIL import Image
from modelyard.artifact import decode_image

def peak():
    # Of this process alone; getrusage counts what its parent had before.
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

buffer = io.BytesIO()
Image.new({mode!r}, (4096, 4096)).save(buffer, "PNG")
before = peak()
decode_image(buffer.getvalue(), {channels})
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < most_mb


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
