"""Examples as pictures: PNG bytes inside the page."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import ExampleDecode, ImageDecode, Signature, decode_examples, decode_image
from modelyard.export.report._markup import Markup, element

_SIDE = 144
_FEW = 6
_MOST_TEXT = 40


def picture(signature: Signature, inputs: dict[str, npt.NDArray[Any]], index: int) -> Markup:
    """One example: an image where the signature takes images, else its first values.

    Args:
        signature: The signature.
        inputs: Its examples by input name.
        index: Of the example.
    """
    if isinstance(signature.decode, ExampleDecode):
        message = inputs[signature.decode.input][index]
        return _values(decode_examples([message], signature.decode), 0)
    if isinstance(signature.decode, ImageDecode):
        return _png(decode_image(inputs[signature.decode.input][index], signature.decode.channels))
    if len(signature.inputs) == 1:
        example = np.asarray(inputs[signature.inputs[0].name][index])
        if (
            example.ndim == 3
            and example.shape[-1] in (1, 3)
            and example.dtype.kind in "fu"
            and min(example.shape[:2]) > 3
        ):
            return _png(_as_pixels(example))
    return _values(inputs, index)


def _values(inputs: dict[str, npt.NDArray[Any]], index: int) -> Markup:
    lines = []
    for name, values in sorted(inputs.items()):
        flat = np.asarray(values[index]).ravel()
        shown = " ".join(_short(value) for value in flat[:_FEW].tolist())
        lines.append(element("p", None, f"{name}: {shown}{' …' if flat.size > _FEW else ''}"))
    return element("div", {"class": "none"}, *lines)


def _short(value: object) -> str:
    if isinstance(value, bytes):
        return value[:_MOST_TEXT].decode("utf-8", "replace") + ("…" if len(value) > _MOST_TEXT else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _as_pixels(example: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    if example.dtype == np.uint8:
        return example
    values = example.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    # Values from 0 to 1 keep their brightness; any other range is stretched to what can be seen.
    low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high if high > low else low + 1)
    return np.round((values - low) / (high - low) * 255).astype(np.uint8)


def _png(pixels: npt.NDArray[np.uint8]) -> Markup:
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return element("img", {"src": f"data:image/png;base64,{encoded}", "alt": "the example"})
