"""Checks of answers: against the signature's outputs, and what a classifier's outputs must satisfy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from modelyard.artifact import class_ids, holds_class_ids, holds_class_scores
from modelyard.clients import TensorInfo
from modelyard.errors import LoadTestError
from modelyard.loadtests.traffic._requests import Array, Arrays
from modelyard.wire import dtype_by_numpy

#: How far float32 probabilities may be from a sum of 1.
SUM_TOLERANCE = 1e-4


def check_answer(outputs: Arrays, rows: int, class_names: Sequence[str]) -> None:
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


def check_outputs(
    outputs: Arrays,
    known: Mapping[str, TensorInfo],
    rows: int | None = None,
    recorded: Arrays | None = None,
) -> None:
    """Checks names, dtypes and shapes of outputs against their signature, and that no float is NaN.

    NaN is right where the recorded answer has it: some models mask values with it.
    """
    if outputs.keys() != known.keys():
        raise LoadTestError(f"Wrong answer: expected the outputs {sorted(known)}; received {sorted(outputs)}.")
    for name, array in outputs.items():
        info = known[name]
        dtype, shape = dtype_by_numpy(array.dtype).name, info.shape
        if shape is not None and rows is not None and shape[:1] == (-1,):
            shape = (rows, *shape[1:])
        fits = shape is None or (
            len(shape) == array.ndim and all(size in (-1, have) for size, have in zip(shape, array.shape, strict=True))
        )
        if dtype != info.dtype or not fits:
            expected = info.dtype if shape is None else f"{info.dtype}{list(shape)}"
            raise LoadTestError(f"Wrong answer: {name} is {dtype}{list(array.shape)}; expected {expected}.")
        if array.dtype.kind not in "fc":
            continue
        wrong = np.isnan(array)
        before = None if recorded is None else recorded.get(name)
        if before is not None and before.shape == array.shape and before.dtype == array.dtype:
            wrong &= ~np.isnan(before)
        if wrong.any():
            raise LoadTestError(f"Wrong answer: {name} has {int(wrong.sum())} values that are NaN.")


def class_output(known: Mapping[str, TensorInfo]) -> str:
    """The output that tells the class of each row.

    That is ``class_id``, integers ``[rows]`` or ``[rows, 1]``, or the only one
    of floats ``[rows, classes]`` of at least two classes.
    """
    if "class_id" in known and holds_class_ids(known["class_id"].dtype, known["class_id"].shape):
        return "class_id"
    scores = [name for name, info in known.items() if holds_class_scores(info.dtype, info.shape)]
    return scores[0] if len(scores) == 1 else ""


def classes_of(outputs: Arrays, known: Mapping[str, TensorInfo]) -> Array:
    """The class of each row."""
    return class_ids(outputs[class_output(known)])
