"""Builds the manifest of a version and holds it to its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import jsonschema

from modelyard.artifact import (
    FormatEntry,
    Latency,
    Manifest,
    Refusal,
    RuntimeChoice,
    Source,
    format_path,
    hash_files,
    json_schema,
    onnx_files,
    operator_domains,
)
from modelyard.errors import ManifestError
from modelyard.export.runtimes import FALLBACK, computed_of, renamed_of
from modelyard.export.sources import TracedModel
from modelyard.export.verification import Verification

_CONVERTERS = {
    "saved_model": ("tensorflow", "keras"),
    "onnx": ("tensorflow", "tf2onnx", "onnx", "onnxslim"),
    "tflite": ("tensorflow",),
}


def utc_now() -> str:
    """The time now, UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def build_manifest(
    directory: Path,
    *,
    model: str,
    number: int,
    created: str,
    source: Source,
    traced: TracedModel,
    checks: Mapping[str, Verification],
    latency: tuple[Latency, ...],
    choices: tuple[RuntimeChoice, ...],
    refused: tuple[Refusal, ...],
    absent: Mapping[str, str],
) -> Manifest:
    """Describes a version directory that is complete but for its manifest.

    Args:
        directory: Its files are listed with size and checksum.
        model: Name of the model.
        number: The version.
        created: UTC time, ISO 8601.
        source: Where the model came from.
        traced: Its signatures.
        checks: By format or variant, how it was verified.
        latency: Measurements.
        choices: How to serve, best first.
        refused: What was tried and is not served.
        absent: By format that is not there, the reason.

    Raises:
        ManifestError: The result does not follow the schema: something given here does not belong into a manifest.
    """
    manifest = Manifest(
        model=model,
        version=number,
        created=created,
        source=source,
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
            for name, check in checks.items()
        },
        latency=latency,
        runtime=choices[0].runtime if choices else FALLBACK,
        choices=choices,
        refused=refused,
        absent=absent,
    )
    check_schema(manifest)
    return manifest


def _domains(directory: Path, check: Verification) -> tuple[str, ...]:
    if check.format != "onnx":
        return ()
    files = onnx_files(directory / format_path("onnx", check.precision)).values()
    return tuple(sorted({domain for file in files for domain in operator_domains(file)}))


def _converters(check: Verification, traced: TracedModel) -> dict[str, str]:
    # What came as a file was converted by somebody else; its variants were not.
    names = () if check.format in traced.files else _CONVERTERS[check.format]
    if check.format == "onnx" and check.precision not in ("float32", "bfloat16"):
        names = (*names, "onnxruntime")
    return {each: version(each) for each in names}


def check_schema(manifest: Manifest) -> None:
    """Holds a manifest to its JSON Schema.

    Args:
        manifest: To check.

    Raises:
        ManifestError: It does not follow the schema.
    """
    validator = jsonschema.Draft202012Validator(json_schema())
    error = jsonschema.exceptions.best_match(validator.iter_errors(json.loads(manifest.to_json())))
    if error is not None:
        raise ManifestError(f"The manifest does not follow its schema at {error.json_path}: {error.message}")
