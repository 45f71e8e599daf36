"""Which outputs tell the class of each example, and which class they tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def holds_class_ids(dtype: str, shape: tuple[int, ...] | None) -> bool:
    """Whether an output can be class ids: integers ``[N]`` or ``[N, 1]``.

    Args:
        dtype: Of the output, such as ``int64``.
        shape: Of the output, -1 where a size is open; None where the rank is unknown.
    """
    return dtype.startswith(("int", "uint")) and shape is not None and (len(shape) == 1 or shape[1:] == (1,))


def holds_class_scores(dtype: str, shape: tuple[int, ...] | None) -> bool:
    """Whether an output can be a value for each class: floats ``[N, K]`` of at least two classes, or of open ``K``.

    Args:
        dtype: Of the output, such as ``float32``.
        shape: Of the output, -1 where a size is open; None where the rank is unknown.
    """
    # The largest of one value is always the first: the sigmoid of a binary classifier tells no class that way.
    return dtype.startswith(("float", "bfloat")) and shape is not None and len(shape) == 2 and shape[1] not in (0, 1)


def class_ids(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The class of each example.

    Args:
        values: Class ids, integers ``[N]`` or ``[N, 1]``; or a value for each class, floats ``[N, K]``.

    Returns:
        Integers ``[N]``.
    """
    if values.dtype.kind in "iu":
        return values.reshape(len(values))
    classes: npt.NDArray[np.intp] = values.argmax(-1)
    return classes
