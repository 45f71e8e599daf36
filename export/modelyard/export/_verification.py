"""What verification finds out, as plain data. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import VerifyReport

#: Decades of absolute error that a histogram tells apart: below 1e-10, up to 1e-9, ... up to 1e-3, above.
ERROR_EDGES: tuple[float, ...] = tuple(10.0**power for power in range(-10, -2))


@dataclass(frozen=True, kw_only=True)
class WorstExample:
    """One example on which a format differs most from its source.

    Attributes:
        signature: The signature that was called.
        index: Of the example in the data of that signature.
        error: Its largest absolute error.
        source: Outputs of the source for this example.
        exported: Outputs of the format for this example.
    """

    signature: str
    index: int
    error: float
    source: Mapping[str, npt.NDArray[Any]]
    exported: Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """How one format compared with the source it was made from.

    Attributes:
        format: Such as ``onnx``.
        runtime: Name and version of what ran it.
        report: The figures that go into the manifest.
        histogram: Number of compared float values in each decade of absolute
            error; see :data:`ERROR_EDGES`.
        worst: Examples with the largest errors first, over all signatures.
        classes_before: Class ids predicted by the source, ``[N]``; empty where there are no classes.
        classes_after: The same by the format.
    """

    format: str
    runtime: Mapping[str, str]
    report: VerifyReport
    histogram: tuple[int, ...]
    worst: tuple[WorstExample, ...] = ()
    classes_before: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    classes_after: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
