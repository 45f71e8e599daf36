"""decode_image equals, bit by bit, the decode that the exporter puts into a SavedModel."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from modelyard.artifact import EncodedImageFunction, SignatureFunction, TensorSpec, decode_image
from modelyard.errors import ImageDecodeError
from modelyard.export import TracedModel, trace
from modelyard.export.formats import export_onnx, export_saved_model, export_tflite, newest_opset
from modelyard.export.runtimes import call_signature, load_runtime
from modelyard.export.sources._trace import decode_in_graph
from tests.export.conftest import preprocess

SIZES = [(28, 28), (61, 83), (1, 1), (200, 17)]


def smooth(height: int, width: int, channels: int, seed: int) -> np.ndarray[Any, Any]:
    """An image like a photograph: JPEG of plain noise would test little."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, channels), dtype=np.uint8)
    image = Image.fromarray(small[..., 0] if channels == 1 else small)
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def save(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_16(channels: int) -> bytes:
    pixels = np.random.default_rng(3).integers(0, 65536, (20, 30, channels)).astype(np.uint16)
    encoded: bytes = tf.io.encode_png(pixels).numpy()
    return encoded


def encodings() -> Iterator[tuple[str, bytes]]:
    for seed, (height, width) in enumerate(SIZES):
        rgb = Image.fromarray(smooth(height, width, 3, seed))
        rgba = Image.fromarray(smooth(height, width, 4, seed))
        grey = Image.fromarray(smooth(height, width, 1, seed))
        size = f"{height}x{width}"
        for quality in (100, 95, 75, 30):
            for subsampling in (0, 1, 2):
                yield (
                    f"jpeg-{quality}-{subsampling}-{size}",
                    save(rgb, "JPEG", quality=quality, subsampling=subsampling),
                )
        yield f"jpeg-progressive-{size}", save(rgb, "JPEG", progressive=True)
        yield f"jpeg-grey-{size}", save(grey, "JPEG")
        yield f"jpeg-cmyk-{size}", save(rgb.convert("CMYK"), "JPEG")
        yield f"jpeg-trailing-{size}", save(rgb, "JPEG") + b"trailing"
        palette = rgb.quantize(17)
        for name, image in {"rgb": rgb, "rgba": rgba, "grey": grey, "palette": palette}.items():
            yield f"png-{name}-{size}", save(image, "PNG")
        yield f"png-la-{size}", save(Image.merge("LA", [grey, rgba.getchannel(3)]), "PNG")
        yield f"png-bit-{size}", save(grey.convert("1"), "PNG")
        yield f"png-palette-transparent-{size}", save(palette, "PNG", transparency=0)
        yield f"png-rgb-transparent-{size}", save(rgb, "PNG", transparency=(1, 2, 3))
        for name, image in {"rgb": rgb, "rgba": rgba, "grey": grey}.items():
            yield f"bmp-{name}-{size}", save(image, "BMP")
        yield f"gif-{size}", save(palette, "GIF")
        yield f"gif-transparent-{size}", save(palette, "GIF", transparency=0)
        yield f"gif-animated-{size}", save(palette, "GIF", save_all=True, append_images=[grey])
        yield f"webp-{size}", save(rgb, "WEBP")
    for channels in (1, 2, 3, 4):
        yield f"png-16-bit-{channels}", png_16(channels)


CASES = dict(encodings())


@pytest.mark.parametrize("channels", [1, 3])
def test_equal_to_tensorflow(channels: int) -> None:
    differing = {}
    for name, data in CASES.items():
        try:
            expected = decode_in_graph(tf.constant(data), channels=channels).numpy()
        except tf.errors.InvalidArgumentError:
            with pytest.raises(ImageDecodeError):
                decode_image(data, channels)
            continue
        decoded = decode_image(data, channels)
        if decoded.shape != expected.shape or (decoded != expected).any():
            differing[name] = (decoded.shape, expected.shape, int(np.abs(decoded - expected.astype(int)).max()))
    # The one known difference: libpng weighs colours of 16 bits before it drops the low byte, Pillow after.
    known = {name: difference[2] for name, difference in differing.items() if name in ("png-16-bit-3", "png-16-bit-4")}
    assert channels == 1 or not known
    assert set(known.values()) <= {1}
    assert not differing.keys() - known.keys()
    assert len(CASES) > 100


def photographs(count: int) -> Iterator[bytes]:
    """JPEGs and PNGs in turn, grey and in colour, each of another size."""
    for index in range(count):
        rng = np.random.default_rng(index)
        height, width = (int(size) for size in rng.integers(5, 300, 2))
        image = Image.fromarray(smooth(height, width, 3, index))
        if index % 5 == 0:
            image = image.convert("L")
        if index % 2:
            yield save(image, "PNG")
        else:
            yield save(image, "JPEG", quality=int(rng.integers(30, 100)), subsampling=int(rng.integers(0, 3)))


class TenClasses(tf.Module):
    """A layer on what stands out in an image, so that images are of many classes."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(2)
        self.layer = keras.layers.Dense(10, kernel_initializer=keras.initializers.RandomNormal(stddev=3.0))
        self.layer.build((None, 64))

    def classify(self, image: Any) -> dict[str, Any]:
        flat = tf.reshape(image, [-1, 64])
        probabilities = tf.nn.softmax(self.layer(flat - tf.reduce_mean(flat, -1, keepdims=True)))
        return {"class_id": tf.argmax(probabilities, -1), "probabilities": probabilities}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[TracedModel, Path]:
    folder, model = tmp_path_factory.mktemp("exported"), TenClasses()
    spec = TensorSpec(name="image", dtype="float32", shape=(-1, 8, 8, 1))
    traced = trace(
        model,
        {
            "serving_default": SignatureFunction(inputs=(spec,), function=model.classify),
            "image_bytes": EncodedImageFunction(compute="serving_default", preprocess=preprocess, channels=3),
        },
    )
    export_saved_model(traced, folder)
    export_onnx(traced, folder, opset=newest_opset())
    export_tflite(traced, folder)
    return traced, folder


@pytest.mark.parametrize("place", [("onnx", "onnxruntime"), ("onnx", "openvino"), ("tflite", "litert")])
def test_200_images_are_classified_alike_with_and_without_tensorflow(
    exported: tuple[TracedModel, Path], place: tuple[str, str]
) -> None:
    traced, folder = exported
    signature = traced.signatures["image_bytes"]
    images = np.empty(200, dtype=object)
    images[:] = list(photographs(200))
    expected, found = (
        call_signature(load_runtime(format, folder, runtime=runtime), "image_bytes", signature, {"image_bytes": images})
        for format, runtime in (("saved_model", "tensorflow"), place)
    )
    assert len(set(expected["class_id"].tolist())) == 10
    np.testing.assert_array_equal(found["class_id"], expected["class_id"])
    assert np.abs(found["probabilities"] - expected["probabilities"]).max() < 1e-5
