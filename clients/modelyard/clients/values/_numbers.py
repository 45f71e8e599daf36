"""Values as JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

_ENCODER = json.JSONEncoder(separators=(",", ":"))


def array_json(array: npt.NDArray[Any]) -> str:
    """Writes an array of numbers or booleans as nested JSON lists.

    Floats have as many digits as it takes to read the same value of their dtype back, float16 and bfloat16 those of
    float32. NaN and infinities are the bare words that TensorFlow Serving reads.
    """
    if array.dtype.kind in "fV" and array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    # orjson writes null for NaN and infinities, and takes no scalars.
    if array.ndim == 0 or (array.dtype.kind == "f" and not np.isfinite(array).all()):
        return _ENCODER.encode(array.tolist())
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return orjson.dumps(plain, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def plain_value(value: object) -> object:
    """An output as JSON has it: lists for arrays, text for bytes that are UTF-8, ``{"b64": ...}`` for others."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode("ascii")}
    return value
