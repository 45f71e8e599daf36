"""``manifest.json``: what a version holds, where it came from, and what was checked.

The schema of version 1 is ``manifest.schema.json`` beside this file. Reading is
strict: a field that is missing or has the wrong type is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from modelyard.artifact._signature import ExampleDecode, FeatureSpec, ImageDecode, Signature, TensorSpec
from modelyard.errors import ManifestError

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of a version.

    Attributes:
        path: Relative to the version directory, with ``/``.
        bytes: Its size.
        sha256: Hexadecimal digest of its bytes.
    """

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a version came from.

    Attributes:
        task: Name of the training task; empty for a foreign model.
        git_commit: Commit of the training code; empty where unknown.
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
class VerifyReport:
    """How one format compared with the source function.

    Attributes:
        examples: Number of real examples compared, over all signatures.
        batch_sizes: Batch sizes at which every example was run.
        max_abs_error: Largest absolute difference of any float output.
        max_rel_error: Largest relative difference of any float output.
        top1_agreement: Share of examples, 0 to 1, with the same class; None
            where there are no classes.
        metric_before: The task's metric of the source on the examples.
        metric_after: The same of the exported format.
        by_signature: Maximum absolute error for each signature.
        empty_batch: Whether every signature that answers an empty batch in the
            source answers it in the same way here; None where none does, or
            where it was not tried.
    """

    examples: int
    batch_sizes: tuple[int, ...]
    max_abs_error: float
    max_rel_error: float
    top1_agreement: float | None = None
    metric_before: float | None = None
    metric_after: float | None = None
    by_signature: Mapping[str, float] = field(default_factory=dict)
    empty_batch: bool | None = None


@dataclass(frozen=True, kw_only=True)
class FormatEntry:
    """One format of the model inside a version.

    Attributes:
        path: The file or folder that holds it, ``.`` for the version directory.
        precision: Such as ``float32``.
        converter: Versions of the packages that made it.
        runtime: Name and version of what it was verified with.
        verify: The comparison with the source.
    """

    path: str
    precision: str
    converter: Mapping[str, str]
    runtime: Mapping[str, str]
    verify: VerifyReport


@dataclass(frozen=True, kw_only=True)
class Latency:
    """One latency measurement on the exporting machine.

    Attributes:
        format: Such as ``onnx``.
        runtime: Such as ``onnxruntime``.
        signature: The signature that was called.
        batch_size: Rows per call.
        threads: Intra-op threads.
        p50_us: Median time of a call, in microseconds.
    """

    format: str
    runtime: str
    signature: str
    batch_size: int
    threads: int
    p50_us: float


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
        formats: By format name: ``saved_model``, ``onnx``, ``tflite``.
        latency: Measurements on the exporting machine.
        runtime: The runtime that was chosen from them.
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
        reader = _Reader(document, MANIFEST_NAME)
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
            source=_source(reader.child("source")),
            signatures=reader.mapping("signatures", _signature),
            files=reader.sequence("files", _file),
            formats=reader.mapping("formats", _format),
            latency=reader.sequence("latency", _latency),
            runtime=reader.get("runtime", str),
            # Manifests of the first exporters do not have it.
            absent=_texts(reader, "absent"),
        )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``manifest.json``."""
    text = resources.files("modelyard.artifact").joinpath("manifest.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def read_manifest(version_dir: Path) -> Manifest:
    """Reads the manifest of a version directory.

    Args:
        version_dir: The directory ``<repository>/<model>/<version>``.

    Raises:
        ManifestError: There is none, or it is not valid.
    """
    path = version_dir / MANIFEST_NAME
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError as exc:
        raise ManifestError(f"{version_dir} has no {MANIFEST_NAME}: it was not published by modelyard.") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ManifestError(f"{path} cannot be read: {exc}") from exc
    try:
        return Manifest.from_json(text)
    except ManifestError as exc:
        raise ManifestError(f"{path}: {exc.message}") from exc


class _Reader:
    """Reads one JSON object; every error names the place in the document."""

    def __init__(self, document: Any, place: str) -> None:
        if not isinstance(document, dict):
            raise ManifestError(f"{place}: expected an object; received {type(document).__name__}.")
        self.document = document
        self.place = place

    def get(self, key: str, kind: type[Any] | tuple[type[Any], ...], *, optional: bool = False) -> Any:
        if key not in self.document:
            if optional:
                return None
            raise ManifestError(f"{self.place}: missing {key!r}.")
        value = self.document[key]
        if optional and value is None:
            return None
        # bool is a subclass of int, and no field that is read here is a bool.
        if not isinstance(value, kind) or isinstance(value, bool):
            names = [item.__name__ for item in (kind if isinstance(kind, tuple) else (kind,))]
            raise ManifestError(f"{self.place}.{key}: expected {' or '.join(names)}; received {type(value).__name__}.")
        return value

    def flag(self, key: str) -> bool | None:
        """A field that is true, false, null or not there."""
        value = self.document.get(key)
        if value is not None and not isinstance(value, bool):
            raise ManifestError(f"{self.place}.{key}: expected bool; received {type(value).__name__}.")
        return value

    def child(self, key: str) -> _Reader:
        return _Reader(self.get(key, dict), f"{self.place}.{key}")

    def mapping(self, key: str, parse: Callable[[_Reader], _T]) -> dict[str, _T]:
        child = self.child(key)
        return {name: parse(child.child(name)) for name in child.document}

    def sequence(self, key: str, parse: Callable[[_Reader], _T]) -> tuple[_T, ...]:
        items = self.get(key, list)
        return tuple(parse(_Reader(item, f"{self.place}.{key}[{index}]")) for index, item in enumerate(items))


def _texts(reader: _Reader, key: str) -> dict[str, str]:
    if reader.get(key, dict, optional=True) is None:
        return {}
    child = reader.child(key)
    return {name: child.get(name, str) for name in child.document}


def _source(reader: _Reader) -> Source:
    return Source(
        task=reader.get("task", str),
        git_commit=reader.get("git_commit", str),
        data=reader.get("data", str),
        config=reader.get("config", dict),
        metrics=reader.get("metrics", dict),
    )


def _spec(reader: _Reader) -> TensorSpec:
    shape = reader.get("shape", list, optional=True)
    return TensorSpec(
        name=reader.get("name", str),
        dtype=reader.get("dtype", str),
        shape=None if shape is None else _integers(reader, "shape"),
    )


def _integers(reader: _Reader, key: str) -> tuple[int, ...]:
    items = reader.get(key, list)
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        raise ManifestError(f"{reader.place}.{key}: expected integers; received {items}.")
    return tuple(items)


def _signature(reader: _Reader) -> Signature:
    decode = None if reader.get("decode", dict, optional=True) is None else _decode(reader.child("decode"))
    return Signature(
        inputs=reader.sequence("inputs", _spec),
        outputs=reader.sequence("outputs", _spec),
        compute=reader.get("compute", str),
        method=reader.get("method", str),
        decode=decode,
        preprocess=reader.get("preprocess", str, optional=True),
    )


def _decode(reader: _Reader) -> ImageDecode | ExampleDecode:
    kind = reader.get("kind", str)
    if kind == "example":
        return ExampleDecode(input=reader.get("input", str), features=reader.sequence("features", _feature))
    channels = reader.get("channels", int) if kind == "image" else None
    if channels not in (1, 3):
        raise ManifestError(
            f"{reader.place}: decode kind {kind!r} with {channels} channels is unknown; expected 'image' with 1 or 3, "
            "or 'example'."
        )
    return ImageDecode(input=reader.get("input", str), channels=channels)


def _feature(reader: _Reader) -> FeatureSpec:
    default = reader.get("default", list, optional=True)
    return FeatureSpec(
        name=reader.get("name", str),
        dtype=reader.get("dtype", str),
        shape=_integers(reader, "shape"),
        default=None if default is None else tuple(default),
        input=reader.get("input", str, optional=True),
    )


def _file(reader: _Reader) -> FileEntry:
    return FileEntry(path=reader.get("path", str), bytes=reader.get("bytes", int), sha256=reader.get("sha256", str))


def _format(reader: _Reader) -> FormatEntry:
    verify = reader.child("verify")
    return FormatEntry(
        path=reader.get("path", str),
        precision=reader.get("precision", str),
        converter=reader.get("converter", dict),
        runtime=reader.get("runtime", dict),
        verify=VerifyReport(
            examples=verify.get("examples", int),
            batch_sizes=_integers(verify, "batch_sizes"),
            max_abs_error=verify.get("max_abs_error", (float, int)),
            max_rel_error=verify.get("max_rel_error", (float, int)),
            top1_agreement=verify.get("top1_agreement", (float, int), optional=True),
            metric_before=verify.get("metric_before", (float, int), optional=True),
            metric_after=verify.get("metric_after", (float, int), optional=True),
            by_signature=verify.get("by_signature", dict),
            empty_batch=verify.flag("empty_batch"),
        ),
    )


def _latency(reader: _Reader) -> Latency:
    return Latency(
        format=reader.get("format", str),
        runtime=reader.get("runtime", str),
        signature=reader.get("signature", str),
        batch_size=reader.get("batch_size", int),
        threads=reader.get("threads", int),
        p50_us=reader.get("p50_us", (float, int)),
    )
