"""``manifest.json``: what a version holds, where it came from, and what was checked.

The schema of version 1 is ``manifest.schema.json`` beside this file. Reading is
strict: a field that is missing or has the wrong type is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import Any

from modelyard.artifact._manifest_parts import FileEntry, FormatEntry, Latency, Refusal, RuntimeChoice, Source
from modelyard.artifact._manifest_reader import (
    Reader,
    read_choice,
    read_file,
    read_format,
    read_latency,
    read_refusal,
    read_signature,
    read_source,
    read_texts,
)
from modelyard.artifact._remote import Location
from modelyard.artifact._signature import Signature
from modelyard.errors import ManifestError

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The whole manifest of one version.

    Attributes:
        model: Name of the model.
        version: Positive integer.
        created: UTC time, ISO 8601.
        source: Where it came from.
        signatures: By name.
        files: Every file but the manifest itself.
        formats: By format name, ``saved_model``, ``onnx`` or ``tflite``; a
            variant of another precision by :func:`format_key`, such as ``onnx.int8``.
        latency: Measurements on the exporting machine.
        runtime: The runtime that was chosen from them: that of ``choices[0]``.
        choices: The best way to serve with each runtime, the fastest first and
            TensorFlow last; empty where nothing was measured.
        refused: Variants and runtimes that were tried and are not served.
        absent: By format that this version does not have, the reason.
    """

    model: str
    version: int
    created: str
    source: Source
    signatures: Mapping[str, Signature]
    files: tuple[FileEntry, ...]
    formats: Mapping[str, FormatEntry]
    latency: tuple[Latency, ...] = ()
    runtime: str = "onnxruntime"
    choices: tuple[RuntimeChoice, ...] = ()
    refused: tuple[Refusal, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of ``manifest.json``.

        Raises:
            ManifestError: It holds something that JSON cannot hold, NaN for example.
        """
        document = {"schema_version": SCHEMA_VERSION, **asdict(self)}
        try:
            return json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n"
        except (TypeError, ValueError) as exc:
            raise ManifestError(
                f"The manifest of {self.model!r} cannot be written as JSON: {exc}. Expected finite numbers, strings, "
                "lists and mappings only; look at source.config and source.metrics."
            ) from exc

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parses ``manifest.json``.

        Args:
            text: The file's text.

        Raises:
            ManifestError: Not JSON, another schema version, or a field is
                missing or has the wrong type.
        """
        try:
            document = json.loads(text)
        except ValueError as exc:
            raise ManifestError(f"{MANIFEST_NAME} is not JSON: {exc}") from exc
        reader = Reader(document, MANIFEST_NAME)
        version = reader.get("schema_version", int)
        if version != SCHEMA_VERSION:
            raise ManifestError(
                f"{MANIFEST_NAME} has schema_version {version}; this modelyard reads {SCHEMA_VERSION}. "
                "Upgrade modelyard, or export the model again."
            )
        return cls(
            model=reader.get("model", str),
            version=reader.get("version", int),
            created=reader.get("created", str),
            source=read_source(reader.child("source")),
            signatures=reader.mapping("signatures", read_signature),
            files=reader.sequence("files", read_file),
            formats=reader.mapping("formats", read_format),
            latency=reader.sequence("latency", read_latency),
            runtime=reader.get("runtime", str),
            # Manifests of the first exporters do not have these.
            choices=reader.sequence("choices", read_choice, optional=True),
            refused=reader.sequence("refused", read_refusal, optional=True),
            absent=read_texts(reader, "absent"),
        )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``manifest.json``."""
    text = resources.files("modelyard.artifact").joinpath("manifest.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def read_manifest(version_dir: Location) -> Manifest:
    """Reads the manifest of a version directory.

    Args:
        version_dir: The directory ``<repository>/<model>/<version>``.

    Raises:
        ArtifactError: The store that holds it cannot be reached.
        ManifestError: There is none, or it is not valid.
    """
    return parse_manifest(read_manifest_bytes(version_dir), version_dir)


def read_manifest_bytes(version_dir: Location) -> bytes:
    """The exact bytes of a manifest, which a signature is of.

    Args:
        version_dir: The directory ``<repository>/<model>/<version>``.

    Raises:
        ArtifactError: The store that holds it cannot be reached.
        ManifestError: There is none, or it cannot be read.
    """
    path = version_dir / MANIFEST_NAME
    try:
        return path.read_bytes()
    except FileNotFoundError as exc:
        raise ManifestError(f"{version_dir} has no {MANIFEST_NAME}: it was not published by modelyard.") from exc
    except OSError as exc:
        raise ManifestError(f"{path} cannot be read: {exc}") from exc


def parse_manifest(content: bytes, version_dir: Location) -> Manifest:
    """Parses the bytes of a manifest.

    Args:
        content: The bytes.
        version_dir: Where they are from, for errors.

    Raises:
        ManifestError: They are no valid manifest.
    """
    path = version_dir / MANIFEST_NAME
    try:
        return Manifest.from_json(content.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise ManifestError(f"{path} cannot be read: {exc}") from exc
    except ManifestError as exc:
        raise ManifestError(f"{path}: {exc.message}") from exc
