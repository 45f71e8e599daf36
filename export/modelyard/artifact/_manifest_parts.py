"""The parts of a manifest, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote, unquote


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a version: its path relative to the version directory, with ``/``, its size and its checksum."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a version came from.

    Attributes:
        task: Name of the training task; empty for a foreign model.
        git_commit: Of the training code; empty where unknown.
        data: What it was trained on.
        config: Options of the run.
        metrics: Final metrics of the run.
    """

    task: str = ""
    git_commit: str = ""
    data: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClassAccuracy:
    """How many examples of one class are recognized.

    Attributes:
        name: Of the class; its number where it has none.
        examples: Number of labelled examples.
        before: Share that the source recognizes.
        after: Share that the exported format recognizes.
    """

    name: str
    examples: int
    before: float
    after: float


@dataclass(frozen=True, kw_only=True)
class StochasticOutput:
    """How the draws of one random output compared with those of the source, by Kolmogorov-Smirnov tests.

    Attributes:
        examples: How many were asked, again and again.
        draws: How often each.
        elements: Of the output, that were looked at; their mean is one of them.
        distance: Largest distance of the two distribution functions, 0 to 1.
        p_value: Of all tests together: how likely draws of one distribution differ as much.
        significance: A smaller ``p_value`` would have been refused.
    """

    signature: str
    output: str
    examples: int
    draws: int
    elements: int
    distance: float
    p_value: float
    significance: float


@dataclass(frozen=True, kw_only=True)
class RowsCheck:
    """Whether the rows of a batch of one signature depend on each other.

    Attributes:
        verdict: ``independent``: shown by the operations of the source and by experiment in the runtime, so that
            requests may share a batch. ``dependent``: an operation mixes rows, or an experiment saw it. ``unknown``:
            no experiment saw it, and nothing is known of some operation, or there is no source to look at.
        reason: A sentence about what decided.
    """

    verdict: Literal["independent", "dependent", "unknown"]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """How one format compared with the source function.

    Attributes:
        examples: Number of real examples compared, over all signatures.
        batch_sizes: Batch sizes at which every example was run.
        max_abs_error: Largest absolute difference of any float output.
        max_rel_error: Largest relative difference of any float output.
        top1_agreement: Share of examples, 0 to 1, with the same class; None where there are no classes.
        metric_before: The task's metric of the source on the examples.
        metric_after: The same of the exported format.
        by_signature: Maximum absolute error for each signature.
        accuracy_drop: Of a variant, what is held against the budget: on the signature that has labels the fall of the
            task's metric, on any other the share of examples whose classes, integers or strings changed; the largest of
            them. None of float32, where nothing may change.
        tolerance: Absolute error that was allowed of an output that spreads over 1 or less, where the source rounds to
            half precision and the format does not; None for what the export was told.
        by_class: Where there are labels, the accuracy of each class that has
            some; of more than 100 classes, those that change most.
        stochastic: Outputs that were compared in distribution, not by value.
        rows: By signature, whether rows of a batch depend on each other here; manifests of earlier exporters say
            nothing of it.
    """

    examples: int
    batch_sizes: tuple[int, ...]
    max_abs_error: float
    max_rel_error: float
    top1_agreement: float | None = None
    metric_before: float | None = None
    metric_after: float | None = None
    by_signature: Mapping[str, float] = field(default_factory=dict)
    accuracy_drop: float | None = None
    tolerance: float | None = None
    by_class: tuple[ClassAccuracy, ...] = ()
    stochastic: tuple[StochasticOutput, ...] = ()
    rows: Mapping[str, RowsCheck] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FloatLayer:
    """A layer that a variant leaves in float32, because of what it costs.

    Attributes:
        graph: The graph that it is in.
        layer: Name of its first operation.
        operator: Of the same, as the format calls it.
        error: With this layer alone converted, the root mean square error of the worst output as a share of its
            standard deviation (of integers and strings, the share that changed); None where it has no bound.
    """

    graph: str
    layer: str
    operator: str
    error: float | None


@dataclass(frozen=True, kw_only=True)
class FormatEntry:
    """One format of the model inside a version.

    Attributes:
        path: The file or folder that holds it, ``.`` for the version directory.
        precision: ``float32``, ``float16``, ``bfloat16``, ``int8_dynamic`` (weights
            in 8 bits, activations as they come) or ``int8`` (both, calibrated).
        converter: Versions of the packages that made it.
        runtime: Name and version of what it was verified with.
        verify: The comparison with the source.
        other_runtimes: By name of another runtime that serves the same files, the same comparison.
        renamed: By graph, what outputs are called in the file that have another
            name there: in ONNX no output can have the name of an input.
        computed: By dtype of the signatures that the runtime has no operations for, such as ``bfloat16``, the one that
            the file has in its place, inputs and outputs among it. Servers cast.
        domains: Operator domains of its ONNX graphs beside ONNX's own: a runtime
            needs them. onnxruntime has ``ai.onnx.ml`` and ``com.microsoft``.
        kept_float32: Layers that a variant leaves in float32, the costliest first.
    """

    path: str
    precision: str
    converter: Mapping[str, str]
    runtime: Mapping[str, str]
    verify: VerifyReport
    other_runtimes: Mapping[str, VerifyReport] = field(default_factory=dict)
    renamed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    computed: Mapping[str, str] = field(default_factory=dict)
    domains: tuple[str, ...] = ()
    kept_float32: tuple[FloatLayer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Latency:
    """One latency measurement on the exporting machine.

    Attributes:
        batch_size: Rows per call.
        threads: Intra-op threads.
        p50_us: Median time of a call, in microseconds.
        precision: Of the files or, for ``bfloat16``, of the computation.
        examples_per_s: Rows answered per second by one caller; None in manifests of the first exporters.
    """

    format: str
    runtime: str
    signature: str
    batch_size: int
    threads: int
    p50_us: float
    precision: str = "float32"
    examples_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class RuntimeChoice:
    """The best measured way to serve a version with one runtime.

    Attributes:
        threads: Intra-op threads.
        p50_us: Median time of a call of one row, in microseconds.
        speedup: How many times as fast as TensorFlow that is; None where TensorFlow was not measured.
    """

    runtime: str
    format: str
    precision: str
    threads: int
    p50_us: float
    speedup: float | None = None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A variant, or a runtime for one, that was tried and is not served.

    Attributes:
        runtime: The runtime that it was tried in; empty where the conversion failed.
        measure: ``accuracy_drop``, ``abs_error``, ``spread_error`` or ``failure``.
        value: What was measured; None of a failure.
        allowed: The budget; None of a failure.
        reason: A sentence for people.
    """

    format: str
    precision: str
    runtime: str
    measure: str
    value: float | None
    allowed: float | None
    reason: str


Precision = Literal["float32", "float16", "bfloat16", "int8_dynamic", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
ONNX_FOLDER = "onnx"
TFLITE_NAME = "model.tflite"
_ONNX_SUFFIX = ".onnx"
#: Precisions that the float32 files are computed in.
_FLOAT32_FILES = frozenset({"float32", "bfloat16"})


def has_own_files(precision: str) -> bool:
    """Whether a precision has files beside the float32 ones; the others are ways to compute these."""
    return precision not in _FLOAT32_FILES


def format_path(format: str, precision: str = "float32") -> str:
    """The file or folder of a format or variant, relative to the version directory.

    The names of the float32 files are those that other servers look for; a variant is where none of them looks by
    itself. ``bfloat16`` is a way to compute the float32 files.
    """
    if format == "saved_model":
        return "."
    plain = not has_own_files(precision)
    if format == "onnx":
        return ONNX_FOLDER if plain else f"{ONNX_FOLDER}/{precision}"
    return TFLITE_NAME if plain else f"model.{precision}.tflite"


def onnx_file_name(graph: str) -> str:
    """The name of the file that holds a graph, percent-encoded (RFC 3986) so that no graph's name is a path."""
    return f"{quote(graph, safe='')}{_ONNX_SUFFIX}"


def onnx_files(folder: Path) -> dict[str, Path]:
    """The ONNX files of the folder of one precision, by the names of their graphs."""
    files = sorted(file for file in folder.glob(f"*{_ONNX_SUFFIX}") if file.is_file())
    return {unquote(file.name.removesuffix(_ONNX_SUFFIX)): file for file in files}


def format_key(format: str, precision: str = "float32") -> str:
    """The name of a format, or of a variant of it, in a manifest: ``onnx`` for float32, else such as ``onnx.int8``."""
    return format if precision == "float32" else f"{format}.{precision}"
