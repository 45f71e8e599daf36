"""Arrays from values of JSON, which has no dtypes: what they are is looked at before numpy makes anything of them."""

from __future__ import annotations

import base64
import binascii
import reprlib
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.wire import object_array

_NAMES = {str: "text", dict: "an object", bool: "a boolean", int: "an integer", float: "a float", type(None): "null"}


def numbers_of_json(value: object, wanted: np.dtype[Any]) -> npt.NDArray[Any]:
    """Numbers or booleans of a dtype.

    Args:
        value: One, or nested lists.
        wanted: Integers are taken for floats, too; nothing else is for another thing.

    Raises:
        OverflowError: An integer is out of the dtype's range.
        ValueError: Other values, or lists of different lengths.
    """
    accepted = {bool} if wanted.kind == "b" else {int} if wanted.kind in "iu" else {int, float}
    # Numpy would read text as numbers, and where it is alone take its length for every other value, too.
    if wrong := _kinds(value) - accepted:
        raise ValueError(f"received {' and '.join(sorted(_NAMES.get(kind, kind.__name__) for kind in wrong))}")
    if wanted.kind in "iu":
        return _integers(value, wanted)
    with np.errstate(over="ignore", under="ignore"):
        # bfloat16's own package takes no integers of more than 63 bits.
        return np.array(value, dtype=np.float32 if wanted.kind == "V" else wanted).astype(wanted, copy=False)


def _integers(value: object, wanted: np.dtype[Any]) -> npt.NDArray[Any]:
    # Told the dtype, numpy 1 wraps around what that cannot hold.
    array, limits = np.array(value), np.iinfo(wanted)
    if array.dtype.kind not in "iu":
        # Integers of which some need 64 bits without a sign, or more, were taken for floats.
        array = np.array(value, dtype=object)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise OverflowError(f"received integers beyond {limits.min} to {limits.max}")
    return array.astype(wanted, copy=False)


def strings_of_json(value: object) -> npt.NDArray[Any]:
    """Bytes as an array of objects: texts are UTF-8, others ``{"b64": ...}``.

    Args:
        value: One, or nested lists.

    Raises:
        ValueError: Other values, or lists of different lengths.
    """
    shape: list[int] = []
    level = value
    while isinstance(level, list):
        shape.append(len(level))
        if not level:
            break
        level = level[0]
    flat: list[Any] = value if isinstance(value, list) else [value]
    for size in shape[1:]:
        if not all(isinstance(row, list) and len(row) == size for row in flat):
            raise ValueError("received a ragged list")
        flat = list(chain.from_iterable(flat))
    return object_array([_bytes(item) for item in flat]).reshape(shape)


def _kinds(value: object) -> set[type]:
    rows, found = [[value]], set[type]()
    while rows:
        deeper: list[list[object]] = []
        for row in rows:
            kinds = set(map(type, row))
            found |= kinds
            if list in kinds:
                deeper += [item for item in row if isinstance(item, list)]
        rows = deeper
    return found - {list}


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return base64.b64decode(value["b64"], validate=True)
    except (KeyError, TypeError, binascii.Error) as exc:
        raise ValueError(f"expected text or {{'b64': ...}}; received {reprlib.repr(value)}") from exc
