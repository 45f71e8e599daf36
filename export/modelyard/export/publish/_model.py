"""From a traced model and its answers to a published, verified version."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import cast

import jsonschema

from modelyard.artifact import (
    FormatEntry,
    Location,
    Manifest,
    Source,
    VerificationData,
    format_path,
    has_own_files,
    hash_files,
    json_schema,
    load_signing_key,
    onnx_files,
    publish,
    staging,
)
from modelyard.artifact.runtimes import operator_domains
from modelyard.errors import ConversionError, ExportError, ManifestError, VerificationError
from modelyard.export.formats import Apart, Conversions, FormatMaker, keep_log, make_maker, say_logs
from modelyard.export.publish._options import (
    ExportEvent,
    ExportOptions,
    ExportReport,
    Format,
    Progress,
    ignore_progress,
)
from modelyard.export.publish._warmup import write_warmup
from modelyard.export.report import REPORT_NAME, ReportContent, render_report
from modelyard.export.runtimes import (
    FALLBACK,
    RuntimeEndedError,
    computed_of,
    main_signature,
    measure_latency,
    rank_runtimes,
    renamed_of,
)
from modelyard.export.sources import Reference, TracedModel
from modelyard.export.variants import Calibration, make_calibration
from modelyard.export.verification import Verification

_LOG = logging.getLogger("modelyard.export")


def start_apart(options: ExportOptions) -> AbstractContextManager[Apart | None]:
    """The process for converters and foreign runtimes, None where this one is good enough."""
    return Apart() if options.isolate and set(options.formats) != {"saved_model"} else nullcontext()


def publish_model(
    reference: Reference,
    *,
    model_dir: Location,
    source: Source,
    options: ExportOptions,
    absent: Mapping[str, str] | None = None,
    calibration: VerificationData | None = None,
    progress: Progress = ignore_progress,
    apart: Apart | None = None,
) -> ExportReport:
    """Makes every format of a traced model, verifies each, and publishes them as one version."""
    traced = reference.source
    # Before the work, for a key that does not fit to be told at once.
    sign = None if options.signing_key is None else load_signing_key(options.signing_key)
    skipped: dict[str, str] = dict(absent or {})

    calibrating = reference.data if calibration is None else calibration
    conversions = None
    if options.stage_dir is not None:
        conversions = Conversions(options.stage_dir, reference, options, calibration=calibrating)

    def calibrate() -> Calibration:
        return make_calibration(traced.signatures, calibrating, limit=options.calibration_examples)

    with staging(model_dir) as staged:
        maker = FormatMaker(
            reference=reference,
            staged=staged,
            options=options,
            calibration=calibrate,
            progress=progress,
            conversions=conversions,
            apart=apart,
        )
        if apart is not None:
            apart.give(make_maker, reference, staged, options)
        failed: dict[Format, ExportError] = {}
        logs: list[Path | None] = []

        def leave_out(format: Format, exc: ExportError) -> None:
            log = keep_log(exc, f"{model_dir.name}-{format}")
            maker.remove(format)
            if format not in options.optional:
                failed[format] = exc
                logs.append(log)
                return
            if log is not None:
                _LOG.warning("Format %s is left out.%s", format, say_logs([log]))
            skipped[format] = exc.message

        for format in options.formats:
            try:
                maker.make(format)
            except (ConversionError, VerificationError) as exc:
                leave_out(format, exc)
        while True:
            # All of them were tried, to be told at once.
            _check_failed(failed, logs, options)
            checks, refused = maker.checks, tuple(maker.refused)
            try:
                latency = measure_latency(
                    reference, staged, checks=checks, options=options, progress=progress, apart=apart
                )
                break
            except RuntimeEndedError as exc:
                timing = exc.timing
                if not maker.drop(timing.format, timing.precision, timing.runtime, exc.message):
                    leave_out(cast(Format, timing.format), exc)
        write_warmup(reference, staged, model=model_dir.name)
        choices = rank_runtimes(latency, signature=main_signature(traced.signatures), runtime=options.runtime)
        created, sizes = utc_now(), maker.sizes()
        manifests: list[Manifest] = []

        def make_manifest(number: int) -> Manifest:
            # The page names the version and is hashed like every file: both follow the number.
            content = ReportContent(
                model=model_dir.name,
                number=number,
                created=created,
                source=source,
                reference=reference,
                checks=checks,
                skipped=skipped,
                latency=latency,
                choices=choices,
                refused=refused,
                sizes=sizes,
                budget=options.budget,
                max_abs_error=options.max_abs_error,
            )
            (staged / REPORT_NAME).write_text(render_report(content), "utf-8")
            manifests.append(build_manifest(staged, content))
            return manifests[-1]

        progress(ExportEvent(stage="publish", done=0, total=1))
        version = publish(staged, cast(Path, model_dir), make_manifest, sign=sign)
    progress(ExportEvent(stage="publish", done=1, total=1))
    return ExportReport(
        version=version,
        manifest=manifests[-1],
        report_html=version.path / REPORT_NAME,
        checks=checks,
        skipped=skipped,
        data=reference.data.description,
        sizes=sizes,
    )


def _check_failed(failed: Mapping[Format, ExportError], logs: Sequence[Path | None], options: ExportOptions) -> None:
    if not failed:
        return
    first = next(iter(failed.values()))
    message = " ".join(each.message for each in failed.values())
    if set(options.formats) - {*failed, *options.optional}:
        flags = " ".join(f"--optional {name}" for name in failed)
        what = "it" if len(failed) == 1 else "them"
        message += f" To publish without {what}: {flags} (in Python ExportOptions.optional)."
    kind = ConversionError if isinstance(first, ConversionError) else VerificationError
    raise kind(f"{message}{say_logs(logs)}") from first


_CONVERTERS = {
    "saved_model": ("tensorflow", "keras"),
    "onnx": ("tensorflow", "tf2onnx", "onnx", "onnxslim"),
    "tflite": ("tensorflow",),
}


def utc_now() -> str:
    """The time now, UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def build_manifest(directory: Path, content: ReportContent) -> Manifest:
    """Describes a version directory that is complete but for its manifest."""
    traced = content.reference.source
    manifest = Manifest(
        model=content.model,
        version=content.number,
        created=content.created,
        source=content.source,
        signatures=traced.signatures,
        files=hash_files(directory),
        formats={
            name: FormatEntry(
                path=format_path(check.format, check.precision),
                precision=check.precision,
                converter=_converters(check, traced),
                runtime=check.runtime,
                verify=check.report,
                other_runtimes=check.others,
                renamed=renamed_of(traced, check.format),
                computed=computed_of(traced, check.format),
                domains=_domains(directory, check),
                kept_float32=check.kept,
            )
            for name, check in content.checks.items()
        },
        latency=content.latency,
        runtime=content.choices[0].runtime if content.choices else FALLBACK,
        choices=content.choices,
        refused=content.refused,
        absent=content.skipped,
    )
    validator = jsonschema.Draft202012Validator(json_schema())
    error = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(manifest.to_json())))
    if error is not None:
        raise ManifestError(f"The manifest does not follow its schema at {error.json_path}: {error.message}")
    return manifest


def _domains(directory: Path, check: Verification) -> tuple[str, ...]:
    if check.format != "onnx":
        return ()
    files = onnx_files(directory / format_path("onnx", check.precision)).values()
    return tuple(sorted({domain for file in files for domain in operator_domains(file)}))


def _converters(check: Verification, traced: TracedModel) -> dict[str, str]:
    # What came as a file was converted by somebody else; its variants were not.
    names = () if check.format in traced.files else _CONVERTERS[check.format]
    if check.format == "onnx" and has_own_files(check.precision):
        names = (*names, "onnxruntime")
    return {each: version(each) for each in names}
