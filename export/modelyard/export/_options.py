"""What an export is asked to do and what it reports. No TensorFlow here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from modelyard.artifact import Manifest, ModelVersion
from modelyard.errors import ConfigurationError
from modelyard.export._verification import Verification

Format = Literal["saved_model", "onnx", "tflite"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What to export and how strictly to check it.

    Attributes:
        formats: The formats to make, some of :data:`FORMATS`.
        optional: Formats whose failure is reported instead of raised: the
            version is then published without them.
        opset: ONNX operator set.
        batch_sizes: Batch sizes at which every example is compared: 1 and at
            least one larger. An empty batch is tried too where the source
            accepts one; what came of it is reported, and no failure.
        min_examples: Fewer examples than this for a signature are an error.
        max_abs_error: Largest absolute error allowed in a float output that
            spreads over 1 or less; over more, that many times more. The spread is
            the largest value of the source less the smallest. It holds for
            encoded images too: their decode is bit-exact.
        max_spread_error: Largest error allowed as a share of the spread, so that
            an output of small figures cannot be wrong below ``max_abs_error``.
        allow_unsafe_ops: Export a foreign SavedModel though it has operations
            that run Python or touch the file system.
        latency_calls: Calls per latency measurement, after a tenth as many to
            warm up.

    Raises:
        ConfigurationError: A value makes no sense.
    """

    formats: tuple[Format, ...] = FORMATS
    optional: tuple[Format, ...] = ()
    opset: int = 18
    batch_sizes: tuple[int, ...] = (1, 7, 32)
    min_examples: int = 256
    max_abs_error: float = 1e-5
    max_spread_error: float = 0.01
    latency_calls: int = 200
    allow_unsafe_ops: bool = False

    def __post_init__(self) -> None:
        known = ", ".join(FORMATS)
        for name in (*self.formats, *self.optional):
            if name not in FORMATS:
                raise ConfigurationError(f"Export format {name!r} is unknown; expected some of {known}.")
        if not self.formats or len(set(self.formats)) != len(self.formats):
            raise ConfigurationError(f"formats is {self.formats}; expected one or more of {known}, each once.")
        if not set(self.optional) <= set(self.formats):
            raise ConfigurationError(f"optional is {self.optional}; expected some of the formats {self.formats}.")
        if set(self.optional) == set(self.formats):
            raise ConfigurationError("Every format is optional; at least one must be required to publish anything.")
        if 1 not in self.batch_sizes or max(self.batch_sizes) < 2 or min(self.batch_sizes) < 1:
            raise ConfigurationError(f"batch_sizes is {self.batch_sizes}; expected 1 and at least one larger size.")
        if self.min_examples < 2 or self.latency_calls < 10 or not 0 <= self.max_abs_error < float("inf"):
            raise ConfigurationError(
                f"min_examples is {self.min_examples}, latency_calls {self.latency_calls}, max_abs_error "
                f"{self.max_abs_error}; expected at least 2, at least 10, and a finite number >= 0."
            )
        if not 0 < self.max_spread_error <= 1:
            raise ConfigurationError(f"max_spread_error is {self.max_spread_error}; expected a share from 0 to 1.")


@dataclass(frozen=True, kw_only=True)
class ExportEvent:
    """One step of progress.

    Attributes:
        stage: What is being done, such as ``verify onnx``.
        done: Units finished in this stage.
        total: Units of this stage.
    """

    stage: str
    done: int
    total: int


Progress = Callable[[ExportEvent], None]


def ignore_progress(event: ExportEvent) -> None:
    """The progress callable that does nothing.

    Args:
        event: Ignored.
    """


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was published.

    Attributes:
        version: Number and directory of the version.
        manifest: Its manifest, as written.
        report_html: The page that shows what was checked.
        checks: By format, how it compared with the source.
        skipped: By optional format that failed, the reason.
    """

    version: ModelVersion
    manifest: Manifest
    report_html: Path
    checks: Mapping[str, Verification]
    skipped: Mapping[str, str]
