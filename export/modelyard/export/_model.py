"""``export_model``: from a live model to a published, verified version."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    AnyFunction,
    Manifest,
    Source,
    VerificationData,
    publish,
    staging,
)
from modelyard.errors import ConversionError, PublishError, VerificationError
from modelyard.export._document import build_manifest, utc_now
from modelyard.export._latency import measure_latency
from modelyard.export._onnx import ONNX_FOLDER, export_onnx
from modelyard.export._options import ExportEvent, ExportOptions, ExportReport, Format, Progress, ignore_progress
from modelyard.export._reference import Reference, compute_reference
from modelyard.export._saved_model import export_saved_model
from modelyard.export._tflite import TFLITE_NAME, export_tflite
from modelyard.export._trace import TracedModel, trace
from modelyard.export._verification import Verification
from modelyard.export._verify import verify
from modelyard.export._warmup import write_warmup
from modelyard.export.report import REPORT_NAME, ReportContent, render_report

_FILES: Mapping[Format, tuple[str, ...]] = {
    "saved_model": ("saved_model.pb", "fingerprint.pb", "variables", "assets", "assets.extra"),
    "onnx": (ONNX_FOLDER,),
    "tflite": (TFLITE_NAME,),
}


def export_model(
    root: Any,
    signatures: Mapping[str, AnyFunction],
    data: VerificationData,
    *,
    model_dir: Path,
    source: Source,
    options: ExportOptions | None = None,
    progress: Progress = ignore_progress,
) -> ExportReport:
    """Converts a model to every format, verifies each, and publishes them as one version.

    Nothing is published unless every format that is not optional computes what
    the live model computes. A crash at any point leaves no half version.

    Args:
        root: A ``tf.Module``, Keras model or other trackable that holds every
            variable the signatures use.
        signatures: What to serve, by name.
        data: Real examples for every signature.
        model_dir: ``<repository>/<model>``; the folder's name is the model's.
        source: Where the model came from, for the manifest.
        options: None for the defaults.
        progress: Called with an :class:`ExportEvent` as the work goes on.

    Returns:
        What was published, and how every format compared.

    Raises:
        ConversionError: A signature cannot be traced, or a converter failed.
        VerificationError: A format does not compute what the model computes,
            or the examples cannot show it.
        ManifestError: ``source`` holds something that is no JSON.
        PublishError: The repository cannot be written.
    """
    options = options or ExportOptions()
    progress(ExportEvent(stage="trace", done=0, total=1))
    traced = trace(root, signatures)
    progress(ExportEvent(stage="trace", done=1, total=1))
    reference = compute_reference(traced, data, options=options, progress=progress)
    return publish_model(reference, model_dir=Path(model_dir), source=source, options=options, progress=progress)


def publish_model(
    reference: Reference,
    *,
    model_dir: Path,
    source: Source,
    options: ExportOptions,
    absent: Mapping[str, str] | None = None,
    progress: Progress = ignore_progress,
) -> ExportReport:
    """Makes every format of a traced model, verifies each, and publishes them as one version.

    Args:
        reference: The model and its answers.
        model_dir: ``<repository>/<model>``.
        source: Where the model came from.
        options: The formats, among others.
        absent: By format that is not even tried, the reason.
        progress: Called with an :class:`ExportEvent` as the work goes on.

    Raises:
        ConversionError: A converter failed.
        VerificationError: A format does not compute what the model computes.
        ManifestError: ``source`` holds something that is no JSON.
        PublishError: The repository cannot be written.
    """
    traced = reference.source
    checks: dict[str, Verification] = {}
    skipped: dict[str, str] = dict(absent or {})
    with staging(model_dir) as staged:
        for format in options.formats:
            try:
                progress(ExportEvent(stage=f"convert {format}", done=0, total=1))
                _convert(format, traced, staged, options)
                progress(ExportEvent(stage=f"convert {format}", done=1, total=1))
                checks[format] = verify(reference, staged, format=format, options=options, progress=progress)
            except (ConversionError, VerificationError) as exc:
                if format not in options.optional:
                    raise
                skipped[format] = exc.message
                _remove(format, staged)
        write_warmup(reference, staged, model=model_dir.name)
        latency = measure_latency(reference, staged, formats=checks, options=options, progress=progress)
        created = utc_now()
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
                max_abs_error=options.max_abs_error,
            )
            (staged / REPORT_NAME).write_text(render_report(content), "utf-8")
            manifests.append(
                build_manifest(
                    staged,
                    model=model_dir.name,
                    number=number,
                    created=created,
                    source=source,
                    traced=traced,
                    checks=checks,
                    latency=latency,
                    absent=skipped,
                )
            )
            return manifests[-1]

        progress(ExportEvent(stage="publish", done=0, total=1))
        version = publish(staged, model_dir, make_manifest)
    progress(ExportEvent(stage="publish", done=1, total=1))
    return ExportReport(
        version=version,
        manifest=manifests[-1],
        report_html=version.path / REPORT_NAME,
        checks=checks,
        skipped=skipped,
    )


def _convert(format: Format, traced: TracedModel, staged: Path, options: ExportOptions) -> None:
    converters: Mapping[Format, Callable[[], None]] = {
        "saved_model": lambda: export_saved_model(traced, staged),
        "onnx": lambda: export_onnx(traced, staged, opset=options.opset),
        "tflite": lambda: export_tflite(traced, staged),
    }
    if format in traced.files:
        _copy(format, traced.files[format], staged)
    else:
        converters[format]()


def _copy(format: Format, path: Path, staged: Path) -> None:
    """Takes a file or directory over as it is, byte for byte."""
    try:
        if format == "saved_model":
            for name in _FILES[format]:
                if (path / name).is_dir():
                    shutil.copytree(path / name, staged / name)
                elif (path / name).is_file():
                    shutil.copyfile(path / name, staged / name)
            return
        target = staged / (TFLITE_NAME if format == "tflite" else f"{ONNX_FOLDER}/{DEFAULT_SIGNATURE}.onnx")
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    except OSError as exc:
        raise PublishError(f"Cannot copy {path} to {staged}: {exc}") from exc


def _remove(format: Format, staged: Path) -> None:
    """Removes what a failed format left: an unverified file must not be published beside verified ones."""
    try:
        for name in _FILES[format]:
            path = staged / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as exc:
        raise PublishError(f"Cannot remove the failed format {format} from {staged}: {exc}") from exc
