"""One format from conversion to verdict: float32 first, then the variants, then the other runtimes that read them."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from modelyard.artifact import (
    ONNX_FOLDER,
    TFLITE_NAME,
    Refusal,
    VerifyReport,
    format_key,
    format_path,
    has_own_files,
)
from modelyard.errors import ConversionError, ExportError, PublishError, VerificationError
from modelyard.export.formats._apart import Apart
from modelyard.export.formats._onnx import export_onnx
from modelyard.export.formats._resume import Conversions
from modelyard.export.formats._saved_model import export_saved_model
from modelyard.export.formats._tflite import TfliteInt8, export_tflite
from modelyard.export.isolation import WorkerEndedError
from modelyard.export.publish import ExportEvent, ExportOptions, Format, Precision, Progress, ignore_progress
from modelyard.export.runtimes import load_runtime, runtimes_of
from modelyard.export.sources import SAVED_MODEL_PARTS, Reference, TracedModel, check_graphs, copy_file, weight_files
from modelyard.export.variants import Calibration, OnnxVariant, Variant, check_budget, fewest, most_tries, rank_layers
from modelyard.export.verification import Verification, verify

_LOG = logging.getLogger("modelyard.export")


@dataclass(kw_only=True)
class FormatMaker:
    """Makes and verifies formats in a staging directory."""

    reference: Reference
    staged: Path
    options: ExportOptions
    calibration: Callable[[], Calibration]
    progress: Progress
    checks: dict[str, Verification] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)
    conversions: Conversions | None = None
    apart: Apart | None = None

    def make(self, format: Format) -> None:
        """Makes one format in every precision asked for."""
        self._convert_once(format, lambda: self._do(ConversionError, f"convert {format}", "convert", format))
        self.checks[format] = self._in_other_runtimes(self._verify_float32(format))
        if format == "saved_model":
            return
        variants = [each for each in self.options.precision if each != "float32"]
        kept = [each for each in variants if self._make_variant(format, each)]
        if "float32" not in self.options.precision:
            self._drop_float32(format, kept)

    def remove(self, format: Format) -> None:
        """Removes what a failed format left: an unverified file must not be published beside verified ones."""
        for key in [key for key, check in self.checks.items() if check.format == format]:
            del self.checks[key]
        names = {"saved_model": SAVED_MODEL_PARTS, "onnx": (ONNX_FOLDER,), "tflite": ("model*.tflite",)}[format]
        self._delete(path for name in names for path in self.staged.glob(name))

    def drop(self, format: str, precision: str, runtime: str, reason: str) -> bool:
        """Gives up a variant, or a runtime beside the first, that ended its process after it was verified."""
        key = format_key(format, precision)
        check = self.checks[key]
        if runtime in check.others:
            others = {name: report for name, report in check.others.items() if name != runtime}
            self.checks[key] = replace(check, others=others)
        elif precision == "float32":
            return False
        else:
            del self.checks[key]
            if has_own_files(precision):
                self._delete([self.staged / format_path(format, precision)])
        self.refused.append(_failure(format, precision, runtime, reason))
        return True

    def sizes(self) -> dict[str, int]:
        """Bytes of the files of every format and variant that stays."""
        found: dict[str, int] = {}
        for key, check in self.checks.items():
            path = self.staged / format_path(check.format, check.precision)
            if check.format == "saved_model":
                files = [
                    each
                    for name in SAVED_MODEL_PARTS[:-1]
                    for each in [self.staged / name, *(self.staged / name).rglob("*")]
                ]
            else:
                files = [path, *path.glob("*.onnx")]
                files += self._weight_files() if path == self.staged / ONNX_FOLDER else []
            found[key] = sum(each.stat().st_size for each in files if each.is_file())
        return found

    def _make_variant(self, format: Format, precision: Precision) -> bool:
        key = format_key(format, precision)
        runtimes = runtimes_of(format, precision, among=self.options.runtimes)
        if not runtimes:
            reason = f"Variant {key}: no runtime installed here computes {precision} for it."
            self.refused.append(_failure(format, precision, "", reason))
            return False
        try:
            if has_own_files(precision):
                self._convert_once(key, lambda: self._convert_variant(format, precision))
            found = self._judged(format, precision)
            if isinstance(found, Refusal):
                calibration, stage = self.calibration(), f"budget {key}"
                found = self._do(
                    ConversionError, stage, "keep_layers", format, precision, found, calibration, progress=self.progress
                )
        except (ConversionError, VerificationError) as exc:
            found = _failure(format, precision, "", exc.message)
        if isinstance(found, Verification):
            self.checks[key] = self._in_other_runtimes(found)
            return True
        self.refused.append(found)
        if has_own_files(precision):
            self._delete([self.staged / format_path(format, precision)])
        return False

    def _judged(self, format: Format, precision: Precision) -> Verification | Refusal:
        """A variant that was verified, or why it is refused."""
        try:
            check = self._verify(format, precision, None)
        except VerificationError as exc:
            return _failure(format, precision, "", exc.message)
        return check_budget(self.reference, check, self.options.budget) or check

    def keep_layers(
        self, format: Format, precision: Precision, refusal: Refusal, calibration: Calibration, progress: Progress
    ) -> Verification | Refusal:
        """Makes a variant again, with as few layers in float32 as the budget needs, in this process."""
        if not has_own_files(precision) or (format == "tflite" and precision != "int8"):
            return refusal
        tried: dict[int, Verification | Refusal] = {0: refusal}
        with tempfile.TemporaryDirectory() as folder:
            variant: Variant
            if format == "onnx":
                variant = OnnxVariant(self.staged, precision=precision, calibration=calibration, work=Path(folder))
            else:
                variant = TfliteInt8(self.reference.source, calibration, work=Path(folder))
            ranked = rank_layers(variant, load_runtime(format, self.staged), calibration, progress)
            # Something has to be left that is worth the name.
            most = len(ranked) - 1

            def holds(count: int) -> bool:
                variant.write(self.staged, [layer for layer, _ in ranked[:count]])
                tried[count] = self._judged(format, precision)
                event = ExportEvent(stage=f"budget {variant.format}.{precision}", done=len(tried) - 1, total=limit)
                progress(event)
                return isinstance(tried[count], Verification)

            limit = most_tries(most)
            count = fewest(most, holds)
            if count is None:
                more = f" Leaving the {most} costliest of {len(ranked)} layers in float32 does not help."
                return replace(refusal, reason=refusal.reason + more) if most > 0 else refusal
            if count != list(tried)[-1]:
                variant.write(self.staged, [layer for layer, _ in ranked[:count]])
        found = tried[count]
        kept = tuple(entry for _, entry in ranked[:count])
        return replace(found, kept=kept) if isinstance(found, Verification) else found

    def _verify(self, format: str, precision: str, runtime: str | None) -> Verification:
        stage = f"verify {format_key(format, precision)}" + (f" in {runtime}" if runtime else "")
        found: Verification = self._do(
            VerificationError, stage, "check", format, precision, runtime, progress=self.progress
        )
        return found

    def _do(
        self, error: type[ExportError], stage: str, method: str, format: str, *arguments: Any, **options: Any
    ) -> Any:
        """Calls a method of this class in the process for what may end it; in this one for TensorFlow's own format."""
        if self.apart is None or format == "saved_model":
            return getattr(self, method)(format, *arguments, **options)
        try:
            return self.apart.call(method, format, *arguments, stage=stage, **options)
        except WorkerEndedError as exc:
            raise error(f"Format {format}: {exc.message}") from exc.__cause__

    def check(self, format: str, precision: str, runtime: str | None, progress: Progress) -> Verification:
        """Verifies one file in one runtime, in this process."""
        return verify(
            self.reference,
            self.staged,
            format=format,
            precision=precision,
            runtime=runtime,
            options=self.options,
            progress=progress,
        )

    def _verify_float32(self, format: Format) -> Verification:
        """A graph that is wrong once it is simplified may be right as it was converted."""
        try:
            return self._verify(format, "float32", None)
        except VerificationError as exc:
            traced, options = self.reference.source, self.options
            if format != "onnx" or not options.simplify or format in traced.files:
                raise
            stage = "onnx without onnxslim"
            plain = partial(self._do, ConversionError, f"convert {stage}", "convert_plain", format)
            self._report_conversion(stage, plain)
            try:
                check = self._verify(format, "float32", None)
            except VerificationError:
                # The first says the same of what was asked for.
                raise exc from None
            _LOG.warning("Format onnx: not simplified, as it is wrong once onnxslim has simplified it: %s", exc.message)
            return check

    def convert_plain(self, _: Format) -> None:
        """Converts the model to ONNX without onnxslim, in this process."""
        export_onnx(self.reference.source, self.staged, opset=self.options.opset, simplify=False)

    def _in_other_runtimes(self, check: Verification) -> Verification:
        """The same files in the other runtimes: that they are right is shown, so that a failure is the runtime's."""
        others: dict[str, VerifyReport] = {}
        format, precision = check.format, check.precision
        for runtime in runtimes_of(format, precision, among=self.options.runtimes)[1:]:
            try:
                other = self._verify(format, precision, runtime)
            except VerificationError as exc:
                self.refused.append(_failure(format, precision, runtime, exc.message))
                continue
            refusal = None if precision == "float32" else check_budget(self.reference, other, self.options.budget)
            if refusal is None:
                others[runtime] = other.report
            else:
                self.refused.append(refusal)
        return replace(check, others=others)

    def _drop_float32(self, format: Format, kept: Sequence[Precision]) -> None:
        if not kept:
            reasons = " ".join(each.reason for each in self.refused if each.format == format)
            asked = " and ".join(self.options.precision)
            raise VerificationError(
                f"Format {format} was asked for in {asked} only, and nothing of it is left. {reasons}"
            )
        del self.checks[format]
        if not all(map(has_own_files, kept)):
            # One of them computes these very files.
            return
        folder = self.staged / ONNX_FOLDER
        files = [*folder.glob("*.onnx"), *self._weight_files()] if format == "onnx" else [self.staged / TFLITE_NAME]
        self._delete(files)

    def _weight_files(self) -> list[Path]:
        """What an ONNX file that was taken over keeps its weights in."""
        source = self.reference.source.files.get("onnx")
        return [] if source is None else [self.staged / ONNX_FOLDER / name for name in weight_files(source)]

    def convert(self, format: Format) -> None:
        """Converts the model to one format, in float32, in this process."""
        traced, staged, options = self.reference.source, self.staged, self.options
        if format in traced.files:
            _copy(format, traced.files[format], staged)
        elif format == "saved_model":
            export_saved_model(traced, staged)
        else:
            # What a converter says of it, after minutes perhaps, would be less.
            check_graphs(traced.graphs, format)
            if format == "onnx":
                _check_stateless(traced)
                export_onnx(traced, staged, opset=options.opset, simplify=options.simplify)
            else:
                export_tflite(traced, staged)

    def _convert_variant(self, format: Format, precision: Precision) -> None:
        calibration = self.calibration() if precision == "int8" else None
        stage = f"convert {format_key(format, precision)}"
        self._do(ConversionError, stage, "convert_variant", format, precision, calibration)

    def convert_variant(self, format: Format, precision: Precision, calibration: Calibration | None) -> None:
        """Makes a variant of a format, in this process."""
        if format == "onnx":
            with tempfile.TemporaryDirectory() as folder:
                variant = OnnxVariant(self.staged, precision=precision, calibration=calibration, work=Path(folder))
                variant.write(self.staged)
        elif format in self.reference.source.files:
            raise ConversionError(f"Variant {format_key(format, precision)}: a TFLite file cannot be converted again.")
        else:
            export_tflite(self.reference.source, self.staged, precision=precision, calibration=calibration)

    def _convert_once(self, key: str, convert: Callable[[], None]) -> None:
        conversions = self.conversions
        if conversions is None or key == "saved_model" or key in self.reference.source.files:
            # What is quickly written is not kept.
            self._report_conversion(key, convert)
        else:
            self._report_conversion(key, lambda: conversions.run(key, self.staged, convert))

    def _report_conversion(self, key: str, work: Callable[[], None]) -> None:
        self.progress(ExportEvent(stage=f"convert {key}", done=0, total=1))
        work()
        self.progress(ExportEvent(stage=f"convert {key}", done=1, total=1))

    def _delete(self, paths: Iterator[Path] | list[Path]) -> None:
        try:
            for path in list(paths):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        except OSError as exc:
            raise PublishError(f"Cannot remove files that are not to be published from {self.staged}: {exc}") from exc


def make_maker(reference: Reference, staged: Path, options: ExportOptions) -> FormatMaker:
    """What converts and checks in a process of its own; examples for int8 come with the call."""
    return FormatMaker(
        reference=reference,
        staged=staged,
        options=options,
        calibration=lambda: Calibration(inputs={}),
        progress=ignore_progress,
    )


def _check_stateless(traced: TracedModel) -> None:
    """Variables are constants in files of ONNX, which would answer every call as if it were the first."""
    names = [name for name, signature in traced.signatures.items() if signature.stateful]
    if names:
        raise ConversionError(
            f"Format onnx: {'signature' if len(names) == 1 else 'signatures'} {', '.join(map(repr, names))} "
            f"{'keeps' if len(names) == 1 else 'keep'} state between calls, which ONNX does not hold. Export "
            "the others (--format saved_model --format tflite), or choose signatures without state."
        )


def _failure(format: str, precision: str, runtime: str, reason: str) -> Refusal:
    return Refusal(
        format=format, precision=precision, runtime=runtime, measure="failure", value=None, allowed=None, reason=reason
    )


def _copy(format: Format, path: Path, staged: Path) -> None:
    """Takes a file or directory over as it is, byte for byte."""
    if format != "saved_model":
        copy_file(format, path, staged)
        return
    try:
        files = [each for name in SAVED_MODEL_PARTS for each in (path / name, *(path / name).rglob("*"))]
        size, free = sum(each.stat().st_size for each in files if each.is_file()), shutil.disk_usage(staged).free
        if size > free:
            # Files that take no room where they are take it in a copy, until there is none for anybody.
            raise PublishError(f"{path} has {size:,} bytes, and below {staged} there is room for {free:,}.")
        for name in SAVED_MODEL_PARTS:
            if (path / name).is_dir():
                shutil.copytree(path / name, staged / name)
            elif (path / name).is_file():
                shutil.copyfile(path / name, staged / name)
    except OSError as exc:
        raise PublishError(f"Cannot copy {path} to {staged}: {exc}") from exc
