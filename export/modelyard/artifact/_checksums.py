"""Checksums: what a manifest says of the files of its version, and whether it is still so."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from modelyard.artifact._manifest import MANIFEST_NAME, Manifest
from modelyard.artifact._manifest_parts import FileEntry
from modelyard.artifact._remote import Location, RemotePath
from modelyard.artifact._signing import SIGNATURE_NAME
from modelyard.errors import IntegrityError, ManifestError

_CHUNK = 1 << 20


def hash_files(version_dir: Path) -> tuple[FileEntry, ...]:
    """Lists every file below a version directory but its manifest and the signature of that, sorted by path.

    Args:
        version_dir: The directory.
    """
    paths = sorted(path for path in version_dir.rglob("*") if path.is_file())
    return tuple(
        FileEntry(path=relative, bytes=path.stat().st_size, sha256=_sha256(path))
        for path in paths
        if (relative := path.relative_to(version_dir).as_posix()) not in (MANIFEST_NAME, SIGNATURE_NAME)
    )


def verify_files(version_dir: Location, manifest: Manifest) -> None:
    """Recomputes size and checksum of every file that a manifest lists.

    Args:
        version_dir: The directory ``<repository>/<model>/<version>``.
        manifest: Its manifest.

    Raises:
        ArtifactError: The store that holds it cannot be reached.
        IntegrityError: A file is missing or its bytes differ.
        ManifestError: A path leaves the version directory.
    """
    check_paths(manifest)
    if isinstance(version_dir, RemotePath):
        _verify_objects(version_dir, manifest)
        return
    root = version_dir.resolve()
    for entry in manifest.files:
        path = version_dir / entry.path
        if not path.resolve().is_relative_to(root):
            raise _leaves(entry)
        if not path.is_file():
            raise IntegrityError(f"{version_dir} lacks {entry.path}, which its manifest lists. Publish it again.")
        _check_size(path, path.stat().st_size, entry)
        _check_digest(path, _sha256(path), entry)


def check_paths(manifest: Manifest) -> None:
    """Checks that no path of a manifest leaves its version, on any system.

    Args:
        manifest: The manifest.

    Raises:
        ManifestError: One does.
    """
    for entry in manifest.files:
        for pure in (PurePosixPath(entry.path), PureWindowsPath(entry.path)):
            if pure.anchor or ".." in pure.parts or not pure.parts:
                raise _leaves(entry)


def _verify_objects(version_dir: RemotePath, manifest: Manifest) -> None:
    found = version_dir.tree()
    for entry in manifest.files:
        if entry.path not in found:
            raise IntegrityError(f"{version_dir} lacks {entry.path}, which its manifest lists. Publish it again.")
        path = version_dir / entry.path
        _check_size(path, found[entry.path].bytes, entry)
        _check_digest(path, hashlib.sha256(path.read_bytes()).hexdigest(), entry)


def _leaves(entry: FileEntry) -> ManifestError:
    return ManifestError(f"{MANIFEST_NAME} lists {entry.path!r}, which leaves the version directory.")


def _check_size(path: Location, size: int, entry: FileEntry) -> None:
    if size != entry.bytes:
        raise IntegrityError(
            f"{path} has {size} bytes; its manifest says {entry.bytes}. It was damaged: publish it again."
        )


def _check_digest(path: Location, digest: str, entry: FileEntry) -> None:
    if digest != entry.sha256:
        raise IntegrityError(
            f"{path} has sha256 {digest}; its manifest says {entry.sha256}. It was damaged: publish it again."
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
