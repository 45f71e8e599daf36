"""TFLite Metadata: Google's public schema ``metadata_schema.fbs``, written by its field numbers.

Google's own writer is in the package mediapipe, whose wheels (1.2.3) lack a native module that it imports; it also
brings OpenCV and an audio library. What is needed of the schema are nine tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The file that holds a label in each line, inside the bundle.
LABELS_FILE = "labels.txt"
_IDENTIFIER = b"M001"
#: Of the first version of the schema, which has all that is written here.
_PARSER = "1.0.0"
_AXIS_LABELS = 2
_FEATURES, _IMAGE = 1, 2
_NORMALIZATION = 1
_COLOUR_SPACES = {1: 2, 3: 1}


@dataclass(frozen=True, kw_only=True)
class Image:
    """An input that is an image: its size, and what becomes of a pixel's 0 to 255: ``(pixel - mean) / std``.

    Attributes:
        height: Rows of pixels.
        width: Columns of pixels.
        channels: 1 (grey) or 3 (RGB).
        mean: For each channel.
        std: For each channel.
        normalized: Whether the pixels are changed at all; an input of uint8 takes them as they are.
    """

    height: int
    width: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    normalized: bool = True


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """What is said of an input or an output."""

    name: str
    image: Image | None = None
    labelled: bool = False


def write_metadata(
    name: str, version: str, description: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> bytes:
    """The metadata of a file with one graph, for the buffer ``TFLITE_METADATA``."""
    writer = _Writer()
    graph = writer.table(
        {2: writer.tables([writer.tensor(each) for each in inputs]), 3: writer.tables([*map(writer.tensor, outputs)])}
    )
    texts = {slot: writer.text(text) for slot, text in ((0, name), (1, description), (2, version), (7, _PARSER))}
    return writer.finish(writer.table({**texts, 3: writer.tables([graph])}))


class _Writer:
    """Flatbuffers are written from the leaves on: each method returns where in the file its part is."""

    def __init__(self) -> None:
        import flatbuffers

        self._builder: Any = flatbuffers.Builder()

    def tensor(self, tensor: Tensor) -> int:
        """TensorMetadata."""
        image = tensor.image
        kind, properties = (_FEATURES, self.table({})) if image is None else (_IMAGE, self._image(image))
        fields = {0: self.text(tensor.name), 3: self.table({1: properties}, {0: kind})}
        if image is not None and image.normalized:
            options = self.table({0: self._floats(image.mean), 1: self._floats(image.std)})
            fields[4] = self.tables([self.table({1: options}, {0: _NORMALIZATION})])
        if tensor.labelled:
            fields[6] = self.tables([self.table({0: self.text(LABELS_FILE)}, {2: _AXIS_LABELS})])
        return self.table(fields)

    def _image(self, image: Image) -> int:
        self._builder.StartObject(2)
        self._builder.PrependUint32Slot(0, image.width, 0)
        self._builder.PrependUint32Slot(1, image.height, 0)
        size = self._builder.EndObject()
        return self.table({1: size}, {0: _COLOUR_SPACES[image.channels]})

    def table(self, parts: Mapping[int, int], numbers: Mapping[int, int] | None = None) -> int:
        """A table of parts that are written already, and of bytes, by field number."""
        self._builder.StartObject(8)
        for slot, part in parts.items():
            self._builder.PrependUOffsetTRelativeSlot(slot, part, 0)
        for slot, number in (numbers or {}).items():
            self._builder.PrependUint8Slot(slot, number, 0)
        return int(self._builder.EndObject())

    def tables(self, parts: Sequence[int]) -> int:
        """A list of tables."""
        self._builder.StartVector(4, len(parts), 4)
        for part in reversed(parts):
            self._builder.PrependUOffsetTRelative(part)
        return int(self._builder.EndVector())

    def _floats(self, values: Sequence[float]) -> int:
        self._builder.StartVector(4, len(values), 4)
        for value in reversed(values):
            self._builder.PrependFloat32(value)
        return int(self._builder.EndVector())

    def text(self, text: str) -> int:
        return int(self._builder.CreateString(text))

    def finish(self, root: int) -> bytes:
        self._builder.Finish(root, _IDENTIFIER)
        return bytes(self._builder.Output())
