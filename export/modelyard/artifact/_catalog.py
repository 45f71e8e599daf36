"""What a model repository holds: models, versions, their state and how two of them differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from modelyard.artifact._checksums import verify_files
from modelyard.artifact._labels import read_labels
from modelyard.artifact._manifest import MANIFEST_NAME, Manifest, read_manifest
from modelyard.artifact._manifest_parts import format_key
from modelyard.artifact._repository import ModelVersion, list_versions
from modelyard.errors import ArtifactError, ManifestError, ModelNotFoundError


@dataclass(frozen=True, kw_only=True)
class VersionInfo:
    """One version in a listing.

    Attributes:
        model: Name of the model.
        version: Number and directory.
        bytes: Size of all its files.
        labels: Labels that name it.
        manifest: None where it has none, or one that cannot be read.
        problem: Why there is no manifest; empty where there is one.
    """

    model: str
    version: ModelVersion
    bytes: int
    labels: tuple[str, ...]
    manifest: Manifest | None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing in which two versions differ.

    Attributes:
        what: Such as ``metric test_accuracy``.
        before: In the first; empty where it is not there.
        after: In the second; empty where it is not there.
    """

    what: str
    before: str
    after: str


def list_models(repository: Path) -> tuple[str, ...]:
    """Names of the models of a repository, sorted: its folders that have a version.

    Args:
        repository: The repository.

    Raises:
        ModelNotFoundError: The folder does not exist.
    """
    if not repository.is_dir():
        raise ModelNotFoundError(f"{repository} is no folder; expected a model repository.")
    folders = sorted(path for path in repository.iterdir() if path.is_dir() and not path.name.startswith("."))
    return tuple(path.name for path in folders if list_versions(path))


def describe_model(model_dir: Path) -> tuple[VersionInfo, ...]:
    """Describes every version of a model, oldest first.

    Args:
        model_dir: ``<repository>/<model>``.

    Raises:
        ModelNotFoundError: There is no such model.
        ManifestError: The file of labels is damaged.
    """
    if not model_dir.is_dir():
        raise ModelNotFoundError(f"{model_dir.parent} has no model {model_dir.name!r}.")
    labels = read_labels(model_dir)
    found = []
    for version in list_versions(model_dir):
        manifest, problem = None, ""
        try:
            manifest = read_manifest(version.path)
        except ArtifactError as exc:
            problem = exc.message
        found.append(
            VersionInfo(
                model=model_dir.name,
                version=version,
                bytes=sum(path.stat().st_size for path in version.path.rglob("*") if path.is_file()),
                labels=tuple(sorted(label for label, number in labels.items() if number == version.number)),
                manifest=manifest,
                problem=problem,
            )
        )
    return tuple(found)


def find_version(model_dir: Path, name: str) -> ModelVersion:
    """Finds a version by its number, a label, or ``latest``.

    Args:
        model_dir: ``<repository>/<model>``.
        name: What to find.

    Raises:
        ModelNotFoundError: There is no such model, version or label.
        ManifestError: The file of labels is damaged.
    """
    if not model_dir.is_dir():
        raise ModelNotFoundError(f"{model_dir.parent} has no model {model_dir.name!r}.")
    versions = {version.number: version for version in list_versions(model_dir)}
    labels = read_labels(model_dir)
    number = int(name) if name.isascii() and name.isdecimal() else labels.get(name)
    if name == "latest" and versions:
        number = max(versions)
    if number not in versions:
        raise ModelNotFoundError(
            f"Model {model_dir.name!r} has no version {name!r}; it has the versions {sorted(versions)} and the labels "
            f"{sorted(labels)}."
        )
    return versions[number]


def verify_version(version: ModelVersion) -> Manifest:
    """Recomputes every checksum of a version; nothing may be missing, damaged, or there in excess.

    Args:
        version: The version.

    Returns:
        Its manifest.

    Raises:
        IntegrityError: A file is missing or damaged.
        ManifestError: There is no valid manifest, it says another number, or
            there are files that it does not list.
    """
    manifest = read_manifest(version.path)
    if manifest.version != version.number:
        raise ManifestError(f"{version.path} has the manifest of version {manifest.version}; it was renamed or copied.")
    verify_files(version.path, manifest)
    listed = {entry.path for entry in manifest.files} | {MANIFEST_NAME}
    found = {path.relative_to(version.path).as_posix() for path in version.path.rglob("*") if not path.is_dir()}
    if found - listed:
        raise ManifestError(
            f"{version.path} has files that its manifest does not list: {', '.join(sorted(found - listed))}."
        )
    return manifest


def diff_versions(before: Manifest, after: Manifest) -> tuple[Difference, ...]:
    """Compares two versions: signatures, formats, metrics, errors and latency.

    Args:
        before: The first.
        after: The second.

    Returns:
        What differs, in that order; sizes and times are measured, so they mostly do.
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
    return facts
