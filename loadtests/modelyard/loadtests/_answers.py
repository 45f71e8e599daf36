"""Whether an answer can be right: what a classifier's outputs must satisfy whatever its weights are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import LoadTestError

#: How far float32 probabilities may be from a sum of 1.
SUM_TOLERANCE = 1e-4


def check_answer(outputs: Mapping[str, npt.NDArray[Any]], rows: int, class_names: Sequence[str]) -> None:
    """Checks shapes, dtypes and that the outputs agree with each other.

    Args:
        outputs: ``class_id`` int64 ``[rows]``, ``label`` bytes ``[rows]`` and
            ``probabilities`` float32 ``[rows, classes]``.
        rows: Examples that were sent.
        class_names: Names of the classes, in order.

    Raises:
        LoadTestError: The answer is wrong; the message says how.
    """
    missing = [name for name in ("class_id", "label", "probabilities") if name not in outputs]
    if missing:
        raise LoadTestError(f"Wrong answer: expected the outputs {missing} too; received {sorted(outputs)}.")
    classes, labels, probabilities = outputs["class_id"], outputs["label"], outputs["probabilities"]
    for name, array, dtype, shape in (
        ("class_id", classes, "int64", (rows,)),
        ("label", labels, "object", (rows,)),
        ("probabilities", probabilities, "float32", (rows, len(class_names))),
    ):
        if array.dtype != dtype or array.shape != shape:
            raise LoadTestError(
                f"Wrong answer: {name} is {array.dtype}{list(array.shape)}; expected {dtype}{list(shape)}."
            )
    sums = probabilities.sum(axis=1, dtype=np.float64)
    # Written so that NaN, which compares false with everything, is wrong too.
    if not (np.all(np.abs(sums - 1) <= SUM_TOLERANCE) and np.all(probabilities >= 0)):
        raise LoadTestError(f"Wrong answer: probabilities add up to {sums.min()} .. {sums.max()}; expected 1.")
    best = probabilities.argmax(axis=1)
    if not np.array_equal(classes, best):
        row = int(np.flatnonzero(classes != best)[0])
        raise LoadTestError(f"Wrong answer: class_id[{row}] is {classes[row]}; the largest probability is {best[row]}.")
    names = [class_names[index].encode() for index in classes]
    if labels.tolist() != names:
        raise LoadTestError(f"Wrong answer: labels are {labels.tolist()[:3]}...; class_id means {names[:3]}...")
