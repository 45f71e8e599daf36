"""Checksums: what a manifest says of the files of its version, and whether it is still so."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath, PureWindowsPath

from modelyard.artifact._manifest import MANIFEST_NAME, Manifest
from modelyard.artifact._manifest_parts import FileEntry
from modelyard.artifact._remote import Location, RemotePath
from modelyard.artifact._signing import SIGNATURE_NAME
from modelyard.errors import ArtifactError, IntegrityError, ManifestError


def hash_files(version_dir: Path) -> tuple[FileEntry, ...]:
    """Lists every file below a version directory but its manifest and the signature of that, sorted by path."""
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
        ArtifactError: A file cannot be read, or the store that holds it cannot be reached.
        IntegrityError: A file is missing or its bytes differ.
        ManifestError: A path leaves the version directory.
    """
    check_paths(manifest)
    root = None if isinstance(version_dir, RemotePath) else version_dir.resolve()
    tree = version_dir.tree() if isinstance(version_dir, RemotePath) else {}
    for entry in manifest.files:
        path = version_dir / entry.path
        try:
            # Before anything resolves it: a loop of links has no end to resolve to.
            if entry.path not in tree if isinstance(path, RemotePath) else not path.is_file():
                raise IntegrityError(f"{version_dir} lacks {entry.path}, which its manifest lists. Publish it again.")
            if root is not None and isinstance(path, Path) and not path.resolve().is_relative_to(root):
                raise _leaves(entry)
            size = tree[entry.path].bytes if isinstance(path, RemotePath) else path.stat().st_size
            check_size(path, size, entry)
            digest = path.sha256() if isinstance(path, RemotePath) else _sha256(path)
        except OSError as exc:
            raise ArtifactError(f"{path} cannot be read: {exc}") from exc
        if digest != entry.sha256:
            raise IntegrityError(
                f"{path} has sha256 {digest}; its manifest says {entry.sha256}. It was damaged: publish it again."
            )


def check_paths(manifest: Manifest) -> None:
    """Raises a ManifestError where a path of a manifest leaves its version, on any system, or is there twice."""
    # One large file that is listed again and again would be read for hours.
    seen: set[PurePosixPath] = set()
    for entry in manifest.files:
        if PurePosixPath(entry.path) in seen:
            raise ManifestError(f"{MANIFEST_NAME} lists {entry.path!r} twice. Publish the model again.")
        seen.add(PurePosixPath(entry.path))
        for pure in (PurePosixPath(entry.path), PureWindowsPath(entry.path)):
            if pure.anchor or ".." in pure.parts or not pure.parts:
                raise _leaves(entry)


def check_size(path: Location, size: int, entry: FileEntry) -> None:
    """Raises an IntegrityError where a file has another size than its manifest says."""
    if size != entry.bytes:
        raise IntegrityError(
            f"{path} has {size} bytes; its manifest says {entry.bytes}. It was damaged: publish it again."
        )


def _leaves(entry: FileEntry) -> ManifestError:
    return ManifestError(f"{MANIFEST_NAME} lists {entry.path!r}, which leaves the version directory.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
