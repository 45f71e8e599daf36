"""What becomes of each class, and the examples on which formats differ most."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import ExampleDecode, ImageDecode, Signature, decode_examples, decode_image
from modelyard.export.sources import Reference
from modelyard.export.verification import WORST_EXAMPLES, Verification, WorstExample

MOST_CLASSES = 40
_MOST_VALUES = 4
_DECIMALS, _MOST_DECIMALS = 7, 12


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """How many of a class's examples the source and each format recognize."""

    name: str
    count: int
    right: list[int]

    @property
    def change(self) -> float:
        """The largest difference between the source and a format, as a share of the examples."""
        return max(abs(each - self.right[0]) / self.count for each in self.right)


class Classes:
    """Answers to labelled examples, of the source and of every format; needs labels."""

    def __init__(self, reference: Reference, checks: Mapping[str, Verification]) -> None:
        first = next(iter(checks.values()))
        self.labels = np.asarray(reference.data.labels)
        self.measured = reference.measured
        self.answers = {"Trained model": first.classes_before}
        self.answers |= {key: check.classes_after for key, check in checks.items()}
        known = reference.data.class_names
        highest = max(int(each.max(initial=-1)) for each in (self.labels, first.classes_before))
        self.names = [*known, *map(str, range(len(known), highest + 1))]
        self.drawn = len(self.names) <= MOST_CLASSES

    def matrices(self) -> list[tuple[str, list[list[tuple[int, float]]]]]:
        """Titles, and confusion matrices: in each cell its count and its share of the row."""
        found = []
        for key, classes in self.answers.items():
            matrix = np.zeros((len(self.names), len(self.names)), np.int64)
            np.add.at(matrix, (self.labels, classes), 1)
            shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
            cells = [list(zip(*row, strict=True)) for row in zip(matrix.tolist(), shares.tolist(), strict=True)]
            found.append((f"{key}: {float((self.labels == classes).mean()):.2%}", cells))
        return found

    def rows(self) -> list[ClassRow]:
        """The accuracy of each class that has examples; of many, those that change most."""
        found = []
        for index, name in enumerate(self.names):
            chosen = self.labels == index
            if chosen.any():
                right = [int((classes[chosen] == index).sum()) for classes in self.answers.values()]
                found.append(ClassRow(name=name, count=int(chosen.sum()), right=right))
        if len(found) > MOST_CLASSES:
            found.sort(key=lambda row: (-row.change, row.right[0] / row.count))
        return found


@dataclass(frozen=True, kw_only=True)
class Card:
    """One of the worst examples: of its image and its values it has one."""

    format: str
    worst: WorstExample
    image: str
    values: list[str]
    label: str
    rows: list[tuple[str, str, str]]


def worst_cards(reference: Reference, checks: Mapping[str, Verification], *, exact: bool) -> list[Card]:
    """The examples on which the float32 formats, or the variants, differ most from the source."""
    found = [
        (key, worst)
        for key, check in checks.items()
        if (check.precision == "float32") is exact
        for worst in check.worst
        if worst.error > 0
    ]
    found.sort(key=lambda each: -each[1].error)
    return [_card(reference, key, worst) for key, worst in found[:WORST_EXAMPLES]]


def _card(reference: Reference, key: str, worst: WorstExample) -> Card:
    data = reference.data
    signature, inputs = reference.source.signatures[worst.signature], data.inputs[worst.signature]
    image = image_url(signature, inputs, worst.index)
    label = ""
    if data.labels is not None and worst.index < len(data.labels):
        number = int(data.labels[worst.index])
        label = data.class_names[number] if number < len(data.class_names) else str(number)
    rows = []
    for name in sorted(worst.source):
        source, exported = np.asarray(worst.source[name]), np.asarray(worst.exported[name])
        # Of a long vector the largest entry is what people look for.
        place = int(np.argmax(source)) if source.dtype.kind == "f" and source.size > _MOST_VALUES else None
        title = name if place is None else f"{name}[{place}]"
        decimals = _decimals(worst.error)
        rows.append((title, _value(source, place, decimals), _value(exported, place, decimals)))
    return Card(
        format=key, worst=worst, image=image, values=[] if image else values_of(signature, inputs, worst.index),
        label=label, rows=rows,
    )  # fmt: skip


def _value(value: npt.NDArray[np.generic], place: int | None, decimals: int) -> str:
    flat = value.ravel().tolist()
    shown = flat[:_MOST_VALUES] if place is None else [flat[place]]
    return " ".join(_text(item, decimals) for item in shown)


def _decimals(error: float) -> int:
    """As many as it takes to see an error."""
    if not 0 < error < 1:
        return _DECIMALS
    return min(max(_DECIMALS, 1 - math.floor(math.log10(error))), _MOST_DECIMALS)


def _text(item: object, decimals: int) -> str:
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    return f"{item:.{decimals}f}" if isinstance(item, float) else str(item)


_SIDE = 144
_FEW = 6
_MOST_TEXT = 40

Inputs = Mapping[str, npt.NDArray[Any]]


def image_url(signature: Signature, inputs: Inputs, index: int) -> str:
    """One example as a ``data:`` URL; empty where the signature takes no images."""
    if isinstance(signature.decode, ImageDecode):
        return _png(decode_image(inputs[signature.decode.input][index], signature.decode.channels))
    if len(signature.inputs) != 1 or isinstance(signature.decode, ExampleDecode):
        return ""
    example = np.asarray(inputs[signature.inputs[0].name][index])
    is_image = example.ndim == 3 and example.shape[-1] in (1, 3) and min(example.shape[:2]) > 3
    return _png(_as_pixels(example)) if is_image and example.dtype.kind in "fu" else ""


def values_of(signature: Signature, inputs: Inputs, index: int) -> list[str]:
    """The first values of each input of one example."""
    if isinstance(signature.decode, ExampleDecode):
        inputs, index = decode_examples([inputs[signature.decode.input][index]], signature.decode), 0
    lines = []
    for name, values in sorted(inputs.items()):
        flat = np.asarray(values[index]).ravel()
        shown = " ".join(_short(value) for value in flat[:_FEW].tolist())
        lines.append(f"{name}: {shown}{' …' if flat.size > _FEW else ''}")
    return lines


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


def _png(pixels: npt.NDArray[np.uint8]) -> str:
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.thumbnail((_SIDE, _SIDE))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
