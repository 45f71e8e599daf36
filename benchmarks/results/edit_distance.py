"""How well a distance without training tells pairs of texts apart: what ``siamese_text`` is held against."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def edit_accuracy(first: npt.NDArray[Any], second: npt.NDArray[Any], same: npt.NDArray[Any]) -> float:
    """The share of pairs that Levenshtein's distance tells right, with the threshold that is best for these pairs.

    Args:
        first: Characters as numbers, ``[N, length]``, filled with 0.
        second: The other texts.
        same: 1 for pairs of the same title, ``[N]``.
    """
    lengths = (first != 0).sum(axis=1), (second != 0).sum(axis=1)
    distances = _distances(first, second)[*lengths, np.arange(len(first))] / np.maximum(*lengths)
    return max(float(((distances <= threshold) == (same == 1)).mean()) for threshold in np.unique(distances))


def _distances(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
    """Between all beginnings of the texts of each pair, ``[length + 1, length + 1, N]``."""
    size = first.shape[1] + 1
    found = np.zeros((size, size, len(first)), np.int16)
    found[:, 0] = found[0] = np.arange(size)[:, np.newaxis]
    for i in range(1, size):
        for j in range(1, size):
            replaced = found[i - 1, j - 1] + (first[:, i - 1] != second[:, j - 1])
            found[i, j] = np.minimum(np.minimum(found[i - 1, j], found[i, j - 1]) + 1, replaced)
    return found
