"""What verification finds out, as plain data. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import FloatLayer, VerifyReport

#: Decades of absolute error that a histogram tells apart: below 1e-10, up to 1e-9, ... up to 1e-1, above.
ERROR_EDGES: tuple[float, ...] = tuple(10.0**power for power in range(-10, 0))


@dataclass(frozen=True, kw_only=True)
class WorstExample:
    """One example on which a format differs most from its source.

    Attributes:
        index: Of the example in the data of the signature.
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
        precision: Such as ``float32``.
        served_by: Name of the runtime that ran it, such as ``litert``.
        runtime: Package and version of it.
        report: The figures that go into the manifest.
        histogram: Number of compared float values in each decade of absolute error; see :data:`ERROR_EDGES`.
        spread_error: Of each signature, the largest error as a share of its output's spread.
        changed: Of each signature with integer or string outputs, the largest share of examples of which one changed.
        worst: Examples with the largest errors first, over all signatures.
        classes_before: Class ids predicted by the source, ``[N]``; empty where there are no classes.
        classes_after: The same by the format, at the batch size where most are wrong.
        others: By name of another runtime that serves the same files, how it compared.
        kept: Layers that a variant leaves in float32, the costliest first.
    """

    format: str
    runtime: Mapping[str, str]
    report: VerifyReport
    histogram: tuple[int, ...]
    precision: str = "float32"
    served_by: str = ""
    spread_error: Mapping[str, float] = field(default_factory=dict)
    changed: Mapping[str, float] = field(default_factory=dict)
    worst: tuple[WorstExample, ...] = ()
    classes_before: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    classes_after: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    others: Mapping[str, VerifyReport] = field(default_factory=dict)
    kept: tuple[FloatLayer, ...] = ()
