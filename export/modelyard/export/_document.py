"""Builds the manifest of a version and holds it to its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import jsonschema

from modelyard.artifact import FormatEntry, Latency, Manifest, Source, hash_files, json_schema
from modelyard.errors import ManifestError
from modelyard.export._latency import choose_runtime
from modelyard.export._onnx import ONNX_FOLDER
from modelyard.export._tflite import TFLITE_NAME
from modelyard.export._trace import TracedModel
from modelyard.export._verification import Verification

_PATHS = {"saved_model": ".", "onnx": ONNX_FOLDER, "tflite": TFLITE_NAME}
_CONVERTERS = {
    "saved_model": ("tensorflow", "keras"),
    "onnx": ("tensorflow", "tf2onnx", "onnx"),
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
        checks: By format, how it was verified.
        latency: Measurements.
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
                path=_PATHS[name],
                precision="float32",
                # What came as a file was converted by somebody else.
                converter={} if name in traced.files else {each: version(each) for each in _CONVERTERS[name]},
                runtime=check.runtime,
                verify=check.report,
            )
            for name, check in checks.items()
        },
        latency=latency,
        runtime=choose_runtime(latency),
        absent=absent,
    )
    check_schema(manifest)
    return manifest


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
