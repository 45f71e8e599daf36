"""The fast path for large arrays of numbers: no Python object per value.

A predict body is mostly one array. Its text from the first ``[`` to the last
``]`` is cut out, and taken here only if its brackets and commas are exactly
those of a regular array and nothing else but numbers stands between them; so
the general path's rules on shape, kind and nesting hold by construction, and
whatever differs takes that path, which says what is wrong. The numbers
themselves are read, and checked as JSON, by simdjson into a buffer.
"""

from __future__ import annotations

import json
import math
import threading
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import simdjson

#: Stands in the rest of the document for the array; no JSON text decodes to this object.
_PLACE = b'{"\\u0000modelyard.array":0}'
_PLACE_KEY = "\0modelyard.array"
_BETWEEN = b"0123456789+-.eE \n\r\t"
#: The key of an array in the Open Inference Protocol.
_DATA = b'"data"'
#: simdjson's codes for 64-bit floats, signed and unsigned integers.
_BUFFERS = {"f": ("d", np.float64), "i": ("i", np.int64), "u": ("u", np.uint64)}
#: Below this many bytes the general path is as fast.
_MIN_BYTES = 64

#: Brackets and commas up to this size are remembered: a client sends the same ones again and again.
_MAX_KNOWN_BYTES = 1 << 14
#: More dimensions than any model's; numpy allows 64.
_MAX_RANK = 32

_local = threading.local()


class NumericArray:
    """A regular, nested JSON array that holds numbers only.

    Attributes:
        shape: Its sizes; the product is not 0.
    """

    def __init__(self, text: bytes, floats: npt.NDArray[np.float64]) -> None:
        self._text = text
        self._floats = floats
        self.shape = floats.shape

    def to_array(self, kind: str) -> npt.NDArray[Any] | None:
        """Reads the numbers.

        Args:
            kind: ``f`` for any numbers, ``i`` or ``u`` for integers of 64 bits.

        Returns:
            float64, int64 or uint64 of :attr:`shape`; None where some value is
            not of that kind.
        """
        if kind == "f":
            return self._floats
        flat = _read(self._text, kind)
        return None if flat is None else flat.reshape(self.shape)

    def to_list(self) -> Any:
        """The nested lists that the general path works on."""
        return json.loads(self._text)


def cut_array(body: bytes) -> tuple[bytes, NumericArray] | None:
    """Cuts the array out of a body.

    Args:
        body: JSON text.

    Returns:
        The body with a placeholder, and the array; None where the body is not
        of that kind.
    """
    if len(body) < _MIN_BYTES:
        return None
    start, end = body.find(b"["), body.rfind(b"]") + 1
    # One row with a name: the list of rows is not the array, but holds it.
    first = body.find(b"[", start + 1)
    if start >= 0 and b"{" in body[start + 1 : first]:
        data = body.find(_DATA, start)
        if data < 0:
            start, end = first, body.rfind(b"]", 0, end - 1) + 1
        else:
            # The Open Inference Protocol: the array ends with the last bracket before anything that is no number.
            start = body.find(b"[", data)
            stops = [stop for stop in (body.find(b"}", start), body.find(b'"', start)) if stop >= 0]
            end = body.rfind(b"]", start, min(stops, default=len(body))) + 1
    if start < 0 or end <= start:
        return None
    text = body[start:end]
    structure = text.translate(None, _BETWEEN)
    shape = _known_shape(structure) if len(structure) <= _MAX_KNOWN_BYTES else _shape(structure)
    if shape is None or len(shape) > _MAX_RANK:
        return None
    floats = _read(text, "f")
    if floats is None or floats.size != math.prod(shape):
        return None
    return body[:start] + _PLACE + body[end:], NumericArray(text, floats.reshape(shape))


def is_placeholder(value: dict[str, Any]) -> bool:
    """Whether an object stands for the array that was cut out.

    Args:
        value: A parsed object.
    """
    return len(value) == 1 and _PLACE_KEY in value


@lru_cache(maxsize=128)
def _known_shape(structure: bytes) -> tuple[int, ...] | None:
    return _shape(structure)


def _shape(structure: bytes) -> tuple[int, ...] | None:
    """Sizes of a regular array from its brackets and commas; None for anything else."""
    rank = len(structure) - len(structure.lstrip(b"["))
    inner = structure[rank - 1 : structure.find(b"]") + 1]
    if inner.count(b",") != len(inner) - 2:
        return None
    # An empty innermost list looks like one with a single value: the count of values tells them apart.
    shape = [len(inner) - 1]
    for level in range(rank - 2, -1, -1):
        count, position = 0, level + 1
        while structure.startswith(inner, position):
            count += 1
            position += len(inner)
            if structure[position : position + 1] != b",":
                break
            position += 1
        inner = b"[" + b",".join([inner] * count) + b"]"
        shape.append(count)
    return tuple(reversed(shape)) if structure == inner else None


def _read(text: bytes, kind: str) -> npt.NDArray[Any] | None:
    """The numbers in order; None where the text is no JSON, or holds a number of another kind."""
    code, dtype = _BUFFERS[kind]
    try:
        values: Any = _parser().parse(text)
        return np.frombuffer(values.as_buffer(of_type=code), dtype=dtype)
    # RuntimeError is what simdjson raises for integers beyond 64 bits.
    except (ValueError, TypeError, RuntimeError):
        return None


def _parser() -> simdjson.Parser:
    # A parser is not safe to share, and worth keeping: it holds its scratch memory.
    parser: simdjson.Parser | None = getattr(_local, "parser", None)
    if parser is None:
        parser = _local.parser = simdjson.Parser()
    return parser
