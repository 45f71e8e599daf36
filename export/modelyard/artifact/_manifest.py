"""``manifest.json``: what a version holds, where it came from, and what was checked.

The schema of version 1 is ``manifest.schema.json`` beside this file. Reading is
strict: a field that is missing or has the wrong type is an error that names it.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from importlib import resources
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from modelyard.artifact._manifest_parts import (
    FileEntry,
    FormatEntry,
    Latency,
    Refusal,
    RowsCheck,
    RuntimeChoice,
    Source,
    VerifyReport,
)
from modelyard.artifact._remote import Location, read_file
from modelyard.artifact._signature import ExampleDecode, FeatureSpec, ImageDecode, Signature
from modelyard.errors import ArtifactError, ManifestError

MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1
#: Of a manifest; what JSON makes of such a text takes up to 30 times as many bytes.
MAX_BYTES = 8 << 20
_MAX_DEPTH = 100
#: Characters of an error, which may quote what it is about.
_MAX_MESSAGE = 2000
#: Of all other fields: what is damaged may still be JSON that makes sense.
_CHECKSUM = "sha256"
_T = TypeVar("_T")
#: Fields that have a default in Python and that every manifest has; other fields with a default may be missing, as
#: manifests of earlier exporters lack them.
_REQUIRED: Mapping[type, frozenset[str]] = {
    ExampleDecode: frozenset({"kind"}),
    FeatureSpec: frozenset({"shape"}),
    ImageDecode: frozenset({"channels", "kind"}),
    RowsCheck: frozenset({"reason"}),
    Signature: frozenset({"method"}),
    Source: frozenset({"config", "data", "git_commit", "metrics", "task"}),
    VerifyReport: frozenset({"by_signature"}),
}


@dataclass(frozen=True)
class _Header:
    schema_version: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The whole manifest of one version.

    Attributes:
        created: UTC time, ISO 8601.
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
        try:
            document = json.loads(json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, allow_nan=False))
            _check_depth(document)
            # As a reader sees it: JSON has no keys but texts.
            document[_CHECKSUM] = _checksum(document)
            text = json.dumps(document, indent=2, sort_keys=True) + "\n"
        except (TypeError, ValueError, RecursionError) as exc:
            raise ManifestError(
                f"The manifest of {self.model!r} cannot be written as JSON: {exc}. Expected finite numbers, strings, "
                "lists and mappings only; look at source.config and source.metrics."
            ) from exc
        if len(text) > MAX_BYTES:
            raise ManifestError(
                f"The manifest of {self.model!r} would have {len(text):,} bytes; expected up to {MAX_BYTES:,}. Look at "
                "source.config."
            )
        return text

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parses ``manifest.json``.

        Raises:
            ManifestError: Not JSON, another schema version, a field is missing or has the wrong type, or its checksum
                is of something else.
        """
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise ManifestError(f"{MANIFEST_NAME} is not JSON: {exc}") from exc
        try:
            _check_depth(document)
        except ValueError as exc:
            raise ManifestError(f"{MANIFEST_NAME} is {exc}. Publish the model again.") from exc
        version = _read_object(_Header, document, MANIFEST_NAME).schema_version
        if version != SCHEMA_VERSION:
            raise ManifestError(
                f"{MANIFEST_NAME} has schema_version {version}; this modelyard reads {SCHEMA_VERSION}. "
                "Upgrade modelyard, or export the model again."
            )
        # Manifests of earlier exporters have no checksum.
        expected = document.pop(_CHECKSUM, None)
        if expected is not None and expected != (actual := _checksum(document)):
            raise ManifestError(
                f"{MANIFEST_NAME} has sha256 {actual}; it says {expected} itself. It was damaged: publish it again. "
                f"If you changed it yourself, remove its field {_CHECKSUM!r}."
            )
        return _read_object(cls, document, MANIFEST_NAME, required=frozenset({"latency", "runtime"}))


def _check_depth(value: object, left: int = _MAX_DEPTH) -> None:
    if isinstance(value, (dict, list)):
        if not left:
            raise ValueError(f"nested deeper than {_MAX_DEPTH} levels")
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, left - 1)


def _checksum(document: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``manifest.json``."""
    text = resources.files("modelyard.artifact").joinpath("manifest.schema.json").read_text("utf-8")
    schema: dict[str, object] = json.loads(text)
    return schema


def read_manifest(version_dir: Location) -> Manifest:
    """Reads the manifest of a version directory.

    Args:
        version_dir: The directory ``<repository>/<model>/<version>``.

    Raises:
        ArtifactError: It cannot be read, or the store that holds it cannot be reached.
        ManifestError: There is none, or it is not valid.
    """
    return parse_manifest(read_manifest_bytes(version_dir), version_dir)


def read_manifest_bytes(version_dir: Location) -> bytes:
    """The exact bytes of a manifest, which a signature is of.

    Raises:
        ArtifactError: It cannot be read, or the store that holds it cannot be reached.
        ManifestError: There is none.
    """
    path = version_dir / MANIFEST_NAME
    try:
        return read_file(path, MAX_BYTES)
    except FileNotFoundError as exc:
        raise ManifestError(f"{version_dir} has no {MANIFEST_NAME}: it was not published by modelyard.") from exc
    except OSError as exc:
        # It may be in a moment: nothing is known of what it says.
        raise ArtifactError(f"{path} cannot be read: {exc}") from exc


def parse_manifest(content: bytes, version_dir: Location) -> Manifest:
    """Parses the bytes of a manifest; the version directory is for errors.

    Raises:
        ManifestError: They are no valid manifest.
    """
    path = version_dir / MANIFEST_NAME
    try:
        return Manifest.from_json(content.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise ManifestError(f"{path} cannot be read: {exc}") from exc
    except ManifestError as exc:
        reason = exc.message if len(exc.message) <= _MAX_MESSAGE else f"{exc.message[:_MAX_MESSAGE]} ..."
        raise ManifestError(f"{path}: {reason}") from exc


@functools.lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    """Evaluates annotations, which takes more time than to read an object by them; a server reads as it answers."""
    return get_type_hints(kind)


def _read_object(kind: type[_T], document: object, place: str, *, required: frozenset[str] = frozenset()) -> _T:
    """Reads a dataclass from a JSON object; ``place`` names it in errors, ``required`` adds to what may not lack."""
    if not isinstance(document, dict):
        raise ManifestError(f"{place}: expected an object; received {type(document).__name__}.")
    hints = _hints(kind)  # type: ignore[arg-type]
    required |= _REQUIRED.get(kind, frozenset())
    values: dict[str, object] = {}
    for part in fields(kind):  # type: ignore[arg-type]
        has_default = part.default is not MISSING or part.default_factory is not MISSING
        optional = part.name not in required and (has_default or NoneType in get_args(hints[part.name]))
        if part.name not in document and not optional:
            raise ManifestError(f"{place}: missing {part.name!r}.")
        if optional and document.get(part.name) is None:
            values |= {} if has_default else {part.name: None}
        else:
            values[part.name] = _read(hints[part.name], document[part.name], f"{place}.{part.name}")
    return kind(**values)


def _read(kind: Any, value: object, place: str) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        kinds = [each for each in arguments if each is not NoneType]
        if ImageDecode in kinds:
            return _read_decode(value, place)
        # The values of a feature's default, which the feature checks.
        return _read(kinds[0], value, place) if len(kinds) == 1 else value
    if is_dataclass(kind):
        return _read_object(kind, _expect(dict, value, place), place)  # type: ignore[arg-type]
    if origin is Literal:
        if value not in arguments:
            known = ", ".join(map(repr, arguments[:-1])) + f" or {arguments[-1]!r}"
            raise ManifestError(f"{place}: expected {known}; received {value!r}.")
        return value
    if origin is tuple:
        found = enumerate(_expect(list, value, place))
        return tuple(_read(arguments[0], item, f"{place}[{index}]") for index, item in found)
    if origin is Mapping:
        items = _expect(dict, value, place).items()
        return {_expect(str, name, place): _read(arguments[1], each, f"{place}.{name}") for name, each in items}
    return value if kind is Any else _expect(kind, value, place)


def _expect(kind: type[_T], value: object, place: str) -> _T:
    kinds = (float, int) if kind is float else (kind,)
    # bool is a subclass of int.
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        names = " or ".join(each.__name__ for each in kinds)
        raise ManifestError(f"{place}: expected {names}; received {type(value).__name__}.")
    try:
        # JSON can spell what these cannot hold.
        if isinstance(value, str):
            value.encode()
        elif kind is float:
            float(value)  # type: ignore[arg-type]
        elif isinstance(value, int):
            value.to_bytes(8, signed=True)
    except (UnicodeEncodeError, OverflowError) as exc:
        raise ManifestError(f"{place}: {exc}.") from exc
    return value  # type: ignore[return-value]


def _read_decode(value: object, place: str) -> ImageDecode | ExampleDecode:
    document = _expect(dict, value, place)
    kind, channels = document.get("kind", "image"), document.get("channels", 3)
    if kind == "example":
        return _read_object(ExampleDecode, document, place)
    if kind != "image" or channels not in (1, 3):
        raise ManifestError(
            f"{place}: decode kind {kind!r} with {channels} channels is unknown; expected 'image' with 1 or 3, "
            "or 'example'."
        )
    return _read_object(ImageDecode, document, place)
