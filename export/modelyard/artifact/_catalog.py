"""What a model repository holds: models, versions, their state and how two of them differ."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from modelyard.artifact._checksums import entries_below, verify_files
from modelyard.artifact._labels import read_labels
from modelyard.artifact._manifest import MANIFEST_NAME, Manifest, parse_manifest, read_manifest, read_manifest_bytes
from modelyard.artifact._manifest_parts import format_key
from modelyard.artifact._remote import Location, RemotePath, RemoteVersion, read_file
from modelyard.artifact._repository import AnyVersion, ModelVersion, is_folder, list_versions
from modelyard.artifact._signing import SIGNATURE_BYTES, SIGNATURE_NAME, TrustedKey, check_signature
from modelyard.console import printable
from modelyard.errors import ArtifactError, ManifestError, ModelNotFoundError
from modelyard.wire import decimal

#: Of every export, with its times.
_REPORT = "report.html"
#: Files that an error names.
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class VersionInfo:
    """One version in a listing.

    Attributes:
        version: Number and directory.
        bytes: Size of all its files; 0 where they cannot be listed.
        manifest: None where it has none, or one that cannot be read.
        problem: Why something of it cannot be read; may be empty.
    """

    model: str
    version: AnyVersion
    bytes: int
    labels: tuple[str, ...]
    manifest: Manifest | None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in which two versions differ, such as ``metric test_accuracy``; empty where one does not have it."""

    what: str
    before: str
    after: str


def list_models(repository: Location) -> tuple[str, ...]:
    """Names of the models of a repository, sorted: its folders that have a version and may be read.

    Raises:
        ModelNotFoundError: The folder does not exist.
    """
    try:
        if isinstance(repository, RemotePath):
            names = repository.folders()
        else:
            names = sorted(path.name for path in repository.iterdir() if is_folder(path))
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ModelNotFoundError(f"{repository} is no folder; expected a model repository.") from exc
    return tuple(name for name in names if not name.startswith(".") and _has_versions(repository / name))


def _has_versions(folder: Location) -> bool:
    try:
        return bool(list_versions(folder))
    except (FileNotFoundError, PermissionError):
        # Gone by now; a store's a//b, which is a folder without a name; or lost+found, which a disk brings along.
        return False


def describe_model(model_dir: Location) -> tuple[VersionInfo, ...]:
    """Describes every version of a model, oldest first.

    Args:
        model_dir: ``<repository>/<model>``.

    Raises:
        ModelNotFoundError: There is no such model.
        ManifestError: The file of labels is damaged.
    """
    versions = versions_of(model_dir)
    labels = read_labels(model_dir)
    found = []
    for version in versions:
        manifest, size, problem = None, 0, ""
        try:
            size = sum(_files(version.path).values())
        except ArtifactError as exc:
            problem = exc.message
        try:
            manifest = read_manifest(version.path)
        except ArtifactError as exc:
            problem = exc.message
        found.append(
            VersionInfo(
                model=model_dir.name,
                version=version,
                bytes=size,
                labels=tuple(sorted(label for label, number in labels.items() if number == version.number)),
                manifest=manifest,
                problem=problem,
            )
        )
    return tuple(found)


def versions_of(model_dir: Location) -> tuple[AnyVersion, ...]:
    """As :func:`list_versions`, with errors of ours.

    Raises:
        ArtifactError: The folder cannot be read.
        ModelNotFoundError: There is no such model.
    """
    try:
        return list_versions(model_dir)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ModelNotFoundError(f"{model_dir.parent} has no model {model_dir.name!r}.") from exc
    except OSError as exc:
        raise ArtifactError(f"{model_dir} cannot be read: {exc.strerror or exc}") from exc


def _files(version_dir: Location) -> dict[str, int]:
    """Sizes of all files by their paths; a link counts, whatever it leads to.

    Raises:
        ArtifactError: They cannot be listed.
    """
    if isinstance(version_dir, RemotePath):
        return {name: file.bytes for name, file in version_dir.tree().items()}
    found = entries_below(version_dir).items()
    return {name: entry.st_size for name, entry in found if not stat.S_ISDIR(entry.st_mode)}


@overload
def find_version(model_dir: Path, name: str | int) -> ModelVersion: ...


@overload
def find_version(model_dir: RemotePath, name: str | int) -> RemoteVersion: ...


def find_version(model_dir: Location, name: str | int) -> AnyVersion:
    """Finds a version by its number, a label, or ``latest``.

    Args:
        model_dir: ``<repository>/<model>``.
        name: What to find.

    Raises:
        ModelNotFoundError: There is no such model, version or label.
        ManifestError: The file of labels is damaged.
    """
    versions = {version.number: version for version in versions_of(model_dir)}
    labels = read_labels(model_dir)
    # A number is that of a ModelVersion, too.
    name = str(name)
    number = labels.get(name) if (typed := decimal(name)) is None else typed
    if name == "latest" and versions:
        number = max(versions)
    if number is None or number not in versions:
        raise ModelNotFoundError(
            f"Model {model_dir.name!r} has no version {name!r}; it has the versions {sorted(versions)} and the labels "
            f"{sorted(labels)}."
        )
    return versions[number]


def verify_version(version: AnyVersion, *, trusted_keys: Sequence[TrustedKey] = ()) -> Manifest:
    """Recomputes every checksum of a version; nothing may be missing, damaged, or there in excess.

    Args:
        version: The version.
        trusted_keys: Where there are some, one of them must have signed the manifest.

    Returns:
        Its manifest.

    Raises:
        ArtifactError: A file cannot be read, or the store that holds it cannot be reached.
        IntegrityError: A file is missing or damaged, or the manifest is not signed by one of the keys.
        ManifestError: There is no valid manifest, it says another number, or there are files that it does not list.
    """
    content = read_manifest_bytes(version.path)
    if trusted_keys:
        check_signature(content, read_signature(version.path), trusted_keys, place=str(version.path))
    # The very bytes that were signed, not what may be there by now.
    manifest = parse_manifest(content, version.path)
    if manifest.version != version.number:
        raise ManifestError(f"{version.path} has the manifest of version {manifest.version}; it was renamed or copied.")
    verify_files(version.path, manifest)
    listed = {entry.path for entry in manifest.files} | {MANIFEST_NAME, SIGNATURE_NAME}
    more = sorted(_files(version.path).keys() - listed)
    if more:
        names = [*map(printable, more[:_SHOWN]), *([f"and {len(more) - _SHOWN} more"] if len(more) > _SHOWN else [])]
        raise ManifestError(f"{version.path} has files that its manifest does not list: {', '.join(names)}.")
    return manifest


def read_signature(version_dir: Location) -> bytes | None:
    """The signature of a version's manifest; None where nobody has signed it.

    Raises:
        ArtifactError: It cannot be read, or the store that holds it cannot be reached.
        ManifestError: It is larger than a signature, or no file.
    """
    try:
        return read_file(version_dir / SIGNATURE_NAME, SIGNATURE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise ArtifactError(f"{version_dir / SIGNATURE_NAME} cannot be read: {exc}") from exc


def diff_versions(before: Manifest, after: Manifest) -> tuple[Difference, ...]:
    """Compares two versions: signatures, formats, metrics, errors, latency and files, in that order.

    Sizes and times are measured, so they mostly differ. The report, which shows them, is left out.
    """
    first, second = _facts(before), _facts(after)
    names = list(dict.fromkeys([*first, *second]))
    return tuple(
        Difference(what=name, before=first.get(name, ""), after=second.get(name, ""))
        for name in names
        if first.get(name) != second.get(name)
    )


def _facts(manifest: Manifest) -> Mapping[str, str]:
    facts: dict[str, str] = {}
    for name, signature in manifest.signatures.items():
        facts[f"signature {name} method"] = signature.method
        for kind, specs in (("input", signature.inputs), ("output", signature.outputs)):
            for spec in specs:
                shape = "unknown rank" if spec.shape is None else str(list(spec.shape))
                facts[f"signature {name} {kind} {spec.name}"] = f"{spec.dtype} {shape}"
        facts[f"signature {name} decode"] = "" if signature.decode is None else signature.decode.kind
    for metric, value in sorted(manifest.source.metrics.items()):
        facts[f"metric {metric}"] = f"{value:.6g}"
    for name, entry in manifest.formats.items():
        facts[f"format {name} precision"] = entry.precision
        facts[f"format {name} max. error"] = f"{entry.verify.max_abs_error:.3g}"
        if entry.verify.metric_after is not None:
            facts[f"format {name} metric"] = f"{entry.verify.metric_after:.6g}"
    for each in manifest.latency:
        key = format_key(each.format, each.precision)
        what = f"latency {key} {each.runtime} {each.signature} batch {each.batch_size} threads {each.threads}"
        facts[what] = f"{each.p50_us:.1f} us"
    facts["runtime"] = manifest.runtime
    facts["bytes"] = str(sum(entry.bytes for entry in manifest.files))
    facts |= {f"file {entry.path}": f"sha256 {entry.sha256[:12]}" for entry in manifest.files if entry.path != _REPORT}
    return facts
