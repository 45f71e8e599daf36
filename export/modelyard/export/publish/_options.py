"""What an export is asked to do and what it reports. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Literal, get_args

from modelyard.artifact import PRECISIONS as PRECISIONS
from modelyard.artifact import Manifest, ModelVersion
from modelyard.artifact import Precision as Precision
from modelyard.console import Shown, printable
from modelyard.errors import ConfigurationError
from modelyard.export.verification import Verification

Format = Literal["saved_model", "onnx", "tflite"]
FORMATS: tuple[Format, ...] = get_args(Format)
#: Whose models are converted by an exporter of theirs; each is the name of the extra that brings it, too.
Library = Literal["torch", "sklearn", "xgboost", "lightgbm"]
LIBRARIES: tuple[Library, ...] = get_args(Library)
RuntimeName = Literal["onnxruntime", "litert", "openvino", "tensorflow"]
RUNTIMES: tuple[RuntimeName, ...] = get_args(RuntimeName)


def _check_number(name: str, value: object, kind: type[Integral] | type[Real]) -> None:
    if not isinstance(value, kind):
        raise ConfigurationError(f"{name} is {value!r}; expected a {'whole ' if kind is Integral else ''}number.")


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How far a variant of lower precision may be from its source; outside of it, it is refused.

    Attributes:
        max_accuracy_drop: A share. On the signature that has labels: how far the task's metric may fall. On any other:
            of how many examples the classes, integers or strings may change.
        max_abs_error: Largest absolute error of a float output. None sets no limit where classes, integers or strings
            that tell the examples apart show the accuracy, and ``max_spread_error`` elsewhere.
        max_spread_error: Largest error, as a share of the output's spread, of a float output of a signature without
            such classes, where ``max_abs_error`` is None.

    Raises:
        ConfigurationError: A value makes no sense.
    """

    max_accuracy_drop: float = 0.005
    max_abs_error: float | None = None
    max_spread_error: float = 0.05

    def __post_init__(self) -> None:
        for name in ("max_accuracy_drop", "max_spread_error"):
            _check_number(name, getattr(self, name), Real)
        if self.max_abs_error is not None:
            _check_number("max_abs_error", self.max_abs_error, Real)
        if not 0 <= self.max_accuracy_drop <= 1 or not 0 < self.max_spread_error <= 1:
            raise ConfigurationError(
                f"max_accuracy_drop is {self.max_accuracy_drop}, max_spread_error {self.max_spread_error}; expected "
                "shares from 0 to 1, such as 0.005 for half a percent."
            )
        if self.max_abs_error is not None and not 0 <= self.max_abs_error < float("inf"):
            raise ConfigurationError(f"max_abs_error is {self.max_abs_error}; expected a finite number >= 0, or None.")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to export and how strictly to check it.

    Attributes:
        formats: The formats to make, some of :data:`FORMATS`.
        optional: Formats whose failure is reported instead of raised: the version is then published without them.
        precision: Precisions of the ONNX and TFLite files; a SavedModel is always float32. Others than float32 are
            variants, files of their own beside it: ``float16`` and ``int8_dynamic`` (weights in 8 bits) need no data,
            ``int8`` is calibrated, and ``bfloat16`` is no file but a way in which OpenVINO computes the ONNX graphs.
            Without float32 here only the variants are published, and it is an error where none holds.
        budget: What variants are held to.
        calibration_examples: Examples that ``int8`` is calibrated on.
        opset: ONNX operator set; None for the newest that tf2onnx writes and onnxruntime reads.
        simplify: Simplify ONNX graphs, with onnxslim, before they are verified.
        batch_sizes: Batch sizes at which every example is compared: 1 and at least one larger.
        min_examples: Fewer examples than this for a signature are an error.
        max_abs_error: Of float32: largest absolute error allowed in a float output that spreads over 1 or less; over
            more, that many times more. The spread is the largest value of the source less the smallest. It holds for
            encoded images too: their decode is bit-exact.
        max_spread_error: Largest error allowed as a share of the spread, so that
            an output of small figures cannot be wrong below ``max_abs_error``.
        isolate: Converters and other runtimes than TensorFlow work in a process of their own,
            which is all that ends where one of them ends its process. It costs
            the memory of another TensorFlow, and a copy of the weights on disk.
        stage_dir: Folder that keeps conversions, for a later try to take up; None to keep none.
        signing_key: File of the private Ed25519 key that signs the manifest; None for no signature.
        allow_unsafe_ops: Export a foreign SavedModel though it has operations that run Python or touch the file system.
        constant_outputs: Float outputs that may be the same for every example
            though the graph computes them from the inputs.
        stochastic: Outputs that are random by intention: they are compared in
            distribution, see :mod:`modelyard.export.verification`. A random output
            that is not listed is refused, and so is one that is listed and not random.
        latency_calls: Calls per latency measurement at most, after a tenth as many to warm up.
        measure_seconds: About how long all measurements may take; what does not fit is left out of the table, larger
            batches first. TensorFlow is measured with other numbers of threads than its process has where there are at
            least 5 seconds.
        runtimes: The runtimes to verify and measure; None for all that are
            installed. The one that a format is first verified in is always there.
        runtime: Choose this runtime whatever the measurements say; None for the fastest that needs no TensorFlow.

    Raises:
        ConfigurationError: A value makes no sense.
    """

    formats: tuple[Format, ...] = FORMATS
    optional: tuple[Format, ...] = ()
    precision: tuple[Precision, ...] = ("float32",)
    budget: Budget = Budget()
    calibration_examples: int = 128
    opset: int | None = None
    simplify: bool = True
    batch_sizes: tuple[int, ...] = (1, 7, 32)
    min_examples: int = 256
    max_abs_error: float = 1e-5
    max_spread_error: float = 0.01
    constant_outputs: tuple[str, ...] = ()
    stochastic: tuple[str, ...] = ()
    latency_calls: int = 1000
    measure_seconds: float = 20.0
    runtimes: tuple[RuntimeName, ...] | None = None
    runtime: RuntimeName | None = None
    allow_unsafe_ops: bool = False
    isolate: bool = True
    stage_dir: Path | None = None
    signing_key: Path | None = None

    def __post_init__(self) -> None:
        for name in ("formats", "optional", "precision", "constant_outputs", "stochastic", "runtimes", "batch_sizes"):
            value = getattr(self, name)
            if value is None and name == "runtimes":
                continue
            if not isinstance(value, Iterable):
                raise ConfigurationError(f"{name} is {value!r}; expected a tuple.")
            # A string is one name, not its letters.
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        for name in ("calibration_examples", "min_examples", "latency_calls"):
            _check_number(name, getattr(self, name), Integral)
        for name in ("max_abs_error", "max_spread_error", "measure_seconds"):
            _check_number(name, getattr(self, name), Real)
        for size in self.batch_sizes:
            _check_number("batch_sizes has a size that", size, Integral)
        if self.opset is not None:
            _check_number("opset", self.opset, Integral)
        if not isinstance(self.budget, Budget):
            raise ConfigurationError(f"budget is {self.budget!r}; expected Budget(...).")
        for name in ("stage_dir", "signing_key"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, Path(getattr(self, name)))
        _check_known("Export format", (*self.formats, *self.optional), FORMATS)
        _check_each_once("formats", self.formats, FORMATS)
        if not set(self.optional) <= set(self.formats):
            raise ConfigurationError(f"optional is {self.optional}; expected some of the formats {self.formats}.")
        if set(self.optional) == set(self.formats):
            raise ConfigurationError("Every format is optional; at least one must be required to publish anything.")
        if 1 not in self.batch_sizes or max(self.batch_sizes) < 2 or min(self.batch_sizes) < 1:
            raise ConfigurationError(f"batch_sizes is {self.batch_sizes}; expected 1 and at least one larger size.")
        if self.min_examples < 2:
            raise ConfigurationError(f"min_examples (--min-examples) is {self.min_examples}; expected at least 2.")
        if self.latency_calls < 10:
            raise ConfigurationError(f"latency_calls is {self.latency_calls}; expected at least 10.")
        if not 0 <= self.max_abs_error < float("inf"):
            raise ConfigurationError(
                f"max_abs_error (--tolerance) is {self.max_abs_error}; expected a finite number >= 0."
            )
        if not 0 < self.max_spread_error <= 1:
            raise ConfigurationError(f"max_spread_error is {self.max_spread_error}; expected a share from 0 to 1.")
        _check_known("Precision", self.precision, PRECISIONS)
        _check_each_once("precision", self.precision, PRECISIONS)
        if self.precision != ("float32",) and not set(self.formats) & {"onnx", "tflite"}:
            raise ConfigurationError(
                f"precision is {self.precision}, the formats are {self.formats}; only onnx and tflite have variants."
            )
        if self.calibration_examples < 1:
            raise ConfigurationError(f"calibration_examples is {self.calibration_examples}; expected at least 1.")
        _check_known("Runtime", (*(self.runtimes or ()), *filter(None, (self.runtime,))), RUNTIMES)
        if not 0 < self.measure_seconds < float("inf"):
            raise ConfigurationError(f"measure_seconds is {self.measure_seconds}; expected a finite number > 0.")


def _check_known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigurationError(f"{what} {name!r} is unknown; expected some of {', '.join(known)}.")


def _check_each_once(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    if not names or len(set(names)) != len(names):
        raise ConfigurationError(f"{what} is {names}; expected one or more of {', '.join(known)}, each once.")


@dataclass(frozen=True, kw_only=True)
class ExportEvent:
    """One step of progress: units that are finished of a stage, such as ``verify onnx``."""

    stage: str
    done: int
    total: int

    def shown(self) -> Shown:
        """What a progress bar shows of it: a bar for each stage."""
        announce = f"export: {printable(self.stage)}"
        return Shown(stage=self.stage, label=self.stage, done=self.done, total=self.total, announce=announce)


Progress = Callable[[ExportEvent], None]


def ignore_progress(event: ExportEvent) -> None:
    """The progress callable that does nothing."""


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was published.

    Attributes:
        version: Number and directory of the version; in an object store a :class:`RemoteVersion`, whatever the
            annotation says: for local repositories, which most are, its path is to be a plain one.
        manifest: Its manifest, as written.
        report_html: The page that shows what was checked; of the same kind.
        checks: By format, or by :func:`modelyard.artifact.format_key` for a variant, how it compared with the source.
            What was refused is in the manifest.
        skipped: By optional format that failed, the reason.
        data: What the examples were, for people.
        sizes: Bytes of the files of each format or variant.
    """

    version: ModelVersion
    manifest: Manifest
    report_html: Path
    checks: Mapping[str, Verification]
    skipped: Mapping[str, str]
    data: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """What ``modelyard export`` says at its end: a line for each format, and what is served."""
        from modelyard.export.report import describe_choice

        lines = [f"{self.manifest.model} version {self.manifest.version}: {self.version.path}"]
        for name, check in self.checks.items():
            verified = check.report
            agreement = "" if verified.top1_agreement is None else f", top-1 agreement {verified.top1_agreement:.2%}"
            random = sorted({each.output for each in verified.stochastic})
            drop = "" if verified.accuracy_drop is None else f", accuracy drop {verified.accuracy_drop:.2%}"
            computed = " and ".join(self.manifest.formats[name].computed)
            within = f" of {verified.tolerance:.2g}, as the source rounds to {computed}" if verified.tolerance else ""
            size = f", {self.sizes[name] / 1e3:,.1f} kB" if name in self.sizes else ""
            kept = len(check.kept)
            size += f", {kept} layer{'' if kept == 1 else 's'} in float32" if kept else ""
            lines.append(
                f"  {name}: verified on {verified.examples:,} examples, max. error {verified.max_abs_error:.2g}{within}"
                f"{agreement}{drop}{size}" + (f"; in distribution: {', '.join(random)}" if random else "")
            )
        lines += [f"  {name}: left out. {reason}" for name, reason in self.skipped.items()]
        lines += [f"  refused: {each.reason}" for each in self.manifest.refused]
        if self.data:
            lines.append(f"Examples: {self.data}")
        if self.manifest.choices:
            lines.append(describe_choice(self.manifest.choices))
        lines.append(f"Report: {self.report_html}")
        return "\n".join(lines)
