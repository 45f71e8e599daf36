"""Answers that differ in their floats only, told apart from others without being parsed.

A server writes the same bytes around the values in answer after answer of one signature, version and shape. Protobuf
parses the first of them, and where its values lie is noted; the next ones are compared with it and cut at these places.
Whatever stands elsewhere is the same, so a parser would say the same of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from modelyard.wire import read_varint

_OUTPUT = 0x0A
_KEY, _VALUE = 0x0A, 0x12
#: ``tensor_content``, ``float_val`` and ``double_val``.
_VALUES = (0x22, 0x2A, 0x32)
#: Bits of a tag: its type, and whether it has a second byte.
_KIND, _MORE = 0x07, 0x80
_VARINT, _BYTES = 0, 2

Arrays = dict[str, npt.NDArray[Any]]


class Echo(NamedTuple):
    """What a server says that it has called; empty or None where it does not."""

    model: str
    version: int | None
    signature: str


class Form(NamedTuple):
    """What answers of one length have in common."""

    #: Bytes around the values, and where they stand.
    fixed: tuple[tuple[int, bytes], ...]
    #: Of each output: its name, its shape, its dtype, and where its values begin and end.
    outputs: tuple[tuple[str, tuple[int, ...], np.dtype[Any], int, int], ...]
    #: What the answers say besides the outputs.
    echo: Echo

    def cut(self, data: bytes) -> Arrays | None:
        """The outputs of an answer; None where it is of another form."""
        for at, part in self.fixed:
            if not data.startswith(part, at):
                return None
        # Slices, and not views at an offset: numpy is slow on values that lie between two words.
        return {name: np.ndarray(shape, kind, data[start:stop]) for name, shape, kind, start, stop in self.outputs}


def form_of(data: bytes, outputs: Mapping[str, npt.NDArray[Any]], echo: Echo) -> Form | None:
    """The form of an answer; None where it is not one that is known by its bytes."""
    # Any bytes are a float; not every byte is a boolean, and integers are written in as many bytes as they need.
    if not outputs or any(array.dtype.kind != "f" for array in outputs.values()):
        return None
    try:
        places = list(_places(data))
    except ValueError:
        return None
    if sorted(name for name, _, _ in places) != sorted(name.encode() for name in outputs):
        return None
    fixed, found = [], []
    at = 0
    for key, start, stop in places:
        name = key.decode()
        array = outputs[name]
        if stop - start != array.nbytes:
            return None
        fixed.append((at, data[at:start]))
        found.append((name, array.shape, array.dtype, start, stop))
        at = stop
    return Form((*fixed, (at, data[at:])), tuple(found), echo)


def _places(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The name of every output, and where its values begin and end: once for each field that may hold some."""
    for tag, start, stop in _fields(data, 0, len(data)):
        if tag != _OUTPUT:
            continue
        name = b""
        places = []
        for part, begin, end in _fields(data, start, stop):
            if part == _KEY:
                name = data[begin:end]
            elif part == _VALUE:
                places += [place for kind, *place in _fields(data, begin, end) if kind in _VALUES]
        for begin, end in places:
            yield name, begin, end


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The fields of bytes in a message that can be parsed: their tags, and where their values begin and end."""
    while at < stop:
        tag = data[at]
        value, at = read_varint(data, at + 1)
        if tag & _MORE or tag & _KIND not in (_VARINT, _BYTES):
            raise ValueError("a field of another kind")
        if tag & _KIND == _BYTES:
            yield tag, at, at + value
            at += value
