"""The operators that ONNX graphs need of a runtime."""

from __future__ import annotations

import mmap
from pathlib import Path

#: Of what onnxruntime has beside ONNX's own: classic machine learning, and onnxruntime's additions.
_DOMAINS = ("ai.onnx.ml", "com.microsoft")


def operator_domains(file: Path) -> tuple[str, ...]:
    """The operator domains beside ONNX's own that a graph names, of those that onnxruntime has.

    Args:
        file: An ONNX file.

    Returns:
        Sorted names, such as ``com.microsoft``.
    """
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # As the file has a text: its length before it.
        return tuple(each for each in _DOMAINS if content.find(bytes([len(each)]) + each.encode()) >= 0)
