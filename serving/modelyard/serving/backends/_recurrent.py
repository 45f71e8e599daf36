"""Graphs with an LSTM or a GRU: they must not be given a tensor without a value.

onnxruntime ends the whole process on one (1.31, 1.32): an LSTM on no rows, a GRU also on no steps. OpenVINO (2026.4)
answers no rows to any number of rows without steps.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

from modelyard.errors import InvalidInputError
from modelyard.serving.backends._base import Arrays

#: As the file has them: the field of a node's operator (number 4), its length, its name.
_OPERATORS = tuple(b'"' + bytes([len(name)]) + name for name in (b"LSTM", b"GRU", b"DynamicQuantizeLSTM", b"AttnLSTM"))


def recurrent_graphs(files: Mapping[str, Path]) -> frozenset[str]:
    """The graphs that have an LSTM or a GRU anywhere, also in a branch or a loop."""
    return frozenset(name for name, path in files.items() if _is_recurrent(path))


def _is_recurrent(path: Path) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(each) >= 0 for each in _OPERATORS)


def check_values(graph: str, inputs: Arrays) -> None:
    """Refuses inputs without a value."""
    for name, array in inputs.items():
        if not array.size:
            raise InvalidInputError(
                f"Input {name!r} has shape {list(array.shape)}, which holds no value; expected at least one: graph "
                f"{graph!r} has an LSTM or a GRU, which computes nothing from nothing."
            )
