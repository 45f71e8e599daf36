"""What the operators of an ONNX graph ask for.

Graphs with an LSTM or a GRU must not be given a tensor without a value: onnxruntime ends the whole process on one
(1.31, 1.32), an LSTM on no rows, a GRU also on no steps. OpenVINO (2026.4) answers no rows to any number of rows
without steps.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

from modelyard.errors import InvalidInputError
from modelyard.serving.backends._base import Arrays

RECURRENT = ("LSTM", "GRU", "DynamicQuantizeLSTM", "AttnLSTM")
CONVOLUTIONS = ("Conv", "ConvTranspose")


def graphs_with(files: Mapping[str, Path], operators: Sequence[str]) -> frozenset[str]:
    """The graphs that have one of some operators anywhere, also in a branch or a loop."""
    # As the file has them: the field of a node's operator (number 4), its length, its name.
    wanted = [b'"' + bytes([len(name)]) + name.encode() for name in operators]
    return frozenset(name for name, path in files.items() if _has_any(path, wanted))


def _has_any(path: Path, wanted: Sequence[bytes]) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(each) >= 0 for each in wanted)


def check_values(graph: str, inputs: Arrays) -> None:
    """Refuses inputs without a value."""
    for name, array in inputs.items():
        if not array.size:
            raise InvalidInputError(
                f"Input {name!r} has shape {list(array.shape)}, which holds no value; expected at least one: graph "
                f"{graph!r} has an LSTM or a GRU, which computes nothing from nothing."
            )
