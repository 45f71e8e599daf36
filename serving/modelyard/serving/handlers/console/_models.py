"""What the pages about models show."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from modelyard.artifact import ImageDecode, Manifest, Signature, TensorSpec, read_manifest
from modelyard.errors import ArtifactError, ModelNotFoundError
from modelyard.serving.config import ModelConfig
from modelyard.serving.handlers.openapi import EXAMPLE_VALUES, example_body, request_url
from modelyard.serving.handlers.rest import read_loaded, signatures_of, statuses_of
from modelyard.serving.repository import ModelManager, VersionState, VersionStatus, file_stats
from modelyard.serving.requests import ModelSpec, format_shape

#: By model, rows to show about its canary and shadow: text by heading, the same headings in each row.
Traffic = Callable[[str], Sequence[Mapping[str, str]]]

_REPORT_NAME = "report.html"
_MAX_REPORT_BYTES = 64 << 20
#: JSON text of so many characters stays on one line.
_LINE = 100


@dataclass(frozen=True, kw_only=True)
class VersionView:
    """One version."""

    number: int
    state: str
    labels: Sequence[str]
    #: Requests without a version are answered by it.
    default: bool
    #: Why it failed; empty where it did not.
    error: str
    #: What serves it; empty where nothing does.
    backend: str
    #: Of its files; None where that is not known.
    bytes: int | None
    #: What its exporter wrote; None of a foreign version.
    manifest: Manifest | None
    report: bool


@dataclass(frozen=True, kw_only=True)
class SignatureView:
    """One signature, and how to try it."""

    name: str
    #: Such as ``predict``.
    method: str
    inputs: Sequence[tuple[str, str, str]]
    outputs: Sequence[tuple[str, str, str]]
    image: bool
    path: str
    #: A body that it takes; empty where that would be too long.
    example: str


@dataclass(frozen=True, kw_only=True)
class ModelView:
    name: str
    #: Empty for who may not administer it.
    base_path: str
    ready: bool
    versions: Sequence[VersionView]
    signatures: Sequence[SignatureView] = ()
    traffic: Sequence[Mapping[str, str]] = ()
    limit: int = EXAMPLE_VALUES


def models_view(manager: ModelManager, administered: Callable[[str], bool]) -> list[ModelView]:
    return [
        _model(manager, config, place=administered(config.name))
        for config in sorted(manager.configs, key=lambda config: config.name)
    ]


def model_view(manager: ModelManager, name: str, traffic: Traffic | None, *, place: bool) -> ModelView:
    view = _model(manager, _config(manager, name), place=place)
    signatures = sorted(signatures_of(manager, name).items())
    return replace(
        view,
        signatures=[_signature(name, key, signature) for key, signature in signatures],
        traffic=() if traffic is None else traffic(name),
    )


def _model(manager: ModelManager, config: ModelConfig, *, place: bool) -> ModelView:
    return ModelView(
        name=config.name,
        base_path=str(config.base_path) if place else "",
        ready=manager.ready(config.name),
        versions=_versions(manager, config),
    )


def report_of(manager: ModelManager, name: str, version: int) -> bytes:
    config = _config(manager, name)
    known = [status.version for status in statuses_of(manager, name)]
    folder = _folder(manager, config, version) if version in known else None
    # A version may be removed at any moment.
    with suppress(OSError):
        if folder is not None:
            with open(folder / _REPORT_NAME, "rb", opener=_no_link) as file:
                regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                if regular and len(content := file.read(_MAX_REPORT_BYTES + 1)) <= _MAX_REPORT_BYTES:
                    return content
    raise ModelNotFoundError(
        f"Version {version} of model {name} has no export report; modelyard export writes one for each version."
    )


def _no_link(path: str, flags: int) -> int:
    """Opens a file of a version, which nobody may have checked: no link out of it, and no pipe, which would wait."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _config(manager: ModelManager, name: str) -> ModelConfig:
    for config in manager.configs:
        if config.name == name:
            return config
    raise ModelNotFoundError(f"There is no model {name!r} here.")


def _versions(manager: ModelManager, config: ModelConfig) -> list[VersionView]:
    labels = manager.labels(config.name)
    default = read_loaded(manager, ModelSpec(name=config.name), lambda servable: servable.version, 0)
    return [
        _version(
            manager, config, status, [label for label, number in labels.items() if number == status.version], default
        )
        for status in statuses_of(manager, config.name)
    ]


def _version(
    manager: ModelManager, config: ModelConfig, status: VersionStatus, labels: Sequence[str], default: int
) -> VersionView:
    folder = _folder(manager, config, status.version)
    report = None if folder is None else folder / _REPORT_NAME
    return VersionView(
        number=status.version,
        state=status.state.name,
        labels=labels,
        default=status.version == default,
        error="" if status.error is None else status.error.message,
        backend=_backend(manager, config.name, status),
        bytes=None if folder is None else _size(folder),
        manifest=None if folder is None else _manifest(folder),
        report=report is not None and os.path.isfile(report) and not os.path.islink(report),
    )


def _backend(manager: ModelManager, name: str, status: VersionStatus) -> str:
    if status.state is not VersionState.AVAILABLE:
        return ""
    spec = ModelSpec(name=name, version=status.version)
    return read_loaded(manager, spec, lambda servable: servable.backend.name, "")


def _folder(manager: ModelManager, config: ModelConfig, version: int) -> Path | None:
    """Where a version's files are on this machine."""
    folder = config.base_path / str(version)
    unloaded = folder if isinstance(folder, Path) and folder.is_dir() else None
    return read_loaded(manager, ModelSpec(name=config.name, version=version), lambda servable: servable.path, unloaded)


def _size(folder: Path) -> int | None:
    """Of all files in a folder; None where they cannot be listed."""
    try:
        return sum(each.st_size for each in file_stats(folder))
    except ArtifactError:
        return None


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except ArtifactError:
        # A foreign version has none; of one that is damaged, the version's error tells.
        return None


def _signature(model: str, name: str, signature: Signature) -> SignatureView:
    body = example_body(name, signature)
    return SignatureView(
        name=name,
        method=signature.method.rpartition("/")[2],
        inputs=[_tensor(spec) for spec in signature.inputs],
        outputs=[_tensor(spec) for spec in signature.outputs],
        image=isinstance(signature.decode, ImageDecode),
        path=request_url(model, signature),
        example="" if body is None else readable(body),
    )


def _tensor(spec: TensorSpec) -> tuple[str, str, str]:
    return spec.name, spec.dtype, format_shape(spec.shape)


def readable(value: object, indent: str = "") -> str:
    """JSON text for people: what is short, or a list of plain values, is on one line."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LINE:
        return text
    if isinstance(value, dict):
        inner = indent + "  "
        lines = [
            f"{inner}{json.dumps(key, ensure_ascii=False)}: {readable(item, inner)}" for key, item in value.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list) and any(map(_is_deep, value)):
        inner = indent + " "
        return "[" + f",\n{inner}".join(readable(item, inner) for item in value) + "]"
    return text


def _is_deep(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and (len(value) > 1 or any(map(_is_deep, value))))
