"""Whether two versions answer the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.serving.requests import Arrays

Mask = npt.NDArray[np.bool_]
_STRINGS = np.dtype(object)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far two answers are apart."""

    #: Rows of the answers; one where they have none.
    rows: int
    disagreed: int
    max_error: float = 0.0


def compare(answer: Arrays, shadow: Arrays, *, tolerance: float) -> Comparison:
    """Compares two answers to the same inputs.

    Floating-point numbers ``[rows, classes]``, with at least two classes, are class scores: a row disagrees where its
    highest score is another class's, or a NaN or an infinity stands against a number. In other numbers it disagrees
    where one differs by more than the tolerance, in whole numbers, booleans and strings where one differs at all; and
    everywhere where names, dtypes or shapes do.
    """
    sizes = {array.shape[:1] for array in answer.values()}
    (first,) = sizes if len(sizes) == 1 else {()}
    rows = first[0] if first else 1
    wrong = np.zeros(rows, bool)
    if answer.keys() != shadow.keys():
        wrong[:] = True
    worst = 0.0
    for name in answer.keys() & shadow.keys():
        ours, theirs = answer[name], shadow[name]
        if ours.shape != theirs.shape or _dtype(ours) != _dtype(theirs):
            wrong[:] = True
            continue
        if not ours.size:
            continue
        found, error = _differences(ours, theirs, tolerance)
        worst = max(worst, error)
        wrong |= found.reshape(rows, -1).any(axis=1) if first else found.any()
    return Comparison(rows=rows, disagreed=int(wrong.sum()), max_error=worst)


def _differences(ours: npt.NDArray[Any], theirs: npt.NDArray[Any], tolerance: float) -> tuple[Mask, float]:
    """Where two arrays disagree: by element, or by row in class scores; and their largest difference."""
    if _dtype(ours) == _STRINGS:
        return np.asarray(_texts(ours) != _texts(theirs), bool), 0.0
    # bfloat16 is of no kind that numpy knows.
    if ours.dtype.kind not in "fcV":
        return np.asarray(ours != theirs, bool), 0.0
    if ours.dtype.kind != "c":
        ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(ours - theirs)
    # Two NaN, or two infinities of one sign, are the same; a NaN and a number cannot be further apart.
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    error = np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))
    scores = ours.ndim == 2 and ours.shape[1] > 1 and ours.dtype.kind == "f"
    different = error > tolerance
    if scores:
        # To argmax a NaN is the highest score.
        different = (ours.argmax(axis=1) != theirs.argmax(axis=1)) | np.isinf(error).any(axis=1)
    return different, float(error.max())


def _dtype(array: npt.NDArray[Any]) -> np.dtype[Any]:
    """An array's dtype: one for all the kinds of strings that runtimes have."""
    return _STRINGS if array.dtype.kind in "OSU" else array.dtype


def _texts(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Strings as bytes: some runtimes have them as text."""
    texts = np.empty(array.size, object)
    texts[:] = [value if isinstance(value, bytes) else str(value).encode() for value in array.ravel().tolist()]
    return texts.reshape(array.shape)
