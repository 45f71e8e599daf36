"""Floats as decimal text, by upstream's rule: six digits where they suffice, else as many as a round trip needs."""

from __future__ import annotations

from array import array as packed
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

#: So many values are written in one go: a call for each costs more than its digits, and all would stop other threads.
_CHUNK = 1024
_NOT_FINITE = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def float_texts(values: npt.NDArray[Any]) -> list[str]:
    """One JSON number for each float, in order; NaN, Infinity and -Infinity bare, as upstream."""
    single = values.dtype.itemsize <= np.dtype(np.float32).itemsize
    flat = values.ravel()
    texts: list[str] = []
    for start in range(0, flat.size, _CHUNK):
        texts += _texts(flat[start : start + _CHUNK].tolist(), single=single)
    return texts


def _texts(values: list[float], *, single: bool) -> list[str]:
    count, together = len(values), tuple(values)
    texts = ("%g " * count % together).split()
    read: Iterable[float] = map(float, texts)
    if single:
        read = packed("f", read)
    longer = (("%.9g " if single else "%.17g ") * count % together).split()
    chosen = [
        text if value == again else long for value, text, again, long in zip(values, texts, read, longer, strict=True)
    ]
    return [text if "." in text or "e" in text else _whole(text) for text in chosen]


def _whole(text: str) -> str:
    return _NOT_FINITE.get(text) or text + ".0"
