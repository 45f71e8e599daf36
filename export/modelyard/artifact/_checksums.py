"""Checksums: what a manifest says of the files of its version, and whether it is still so."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

from modelyard.artifact._manifest import MANIFEST_NAME, Manifest
from modelyard.artifact._manifest_parts import FileEntry
from modelyard.errors import IntegrityError, ManifestError

_CHUNK = 1 << 20


def hash_files(version_dir: Path) -> tuple[FileEntry, ...]:
    """Lists every file below a version directory but its manifest, sorted by path.

    Args:
        version_dir: The directory.
    """
    paths = sorted(path for path in version_dir.rglob("*") if path.is_file())
    return tuple(
        FileEntry(path=relative, bytes=path.stat().st_size, sha256=_sha256(path))
        for path in paths
        if (relative := path.relative_to(version_dir).as_posix()) != MANIFEST_NAME
    )


def verify_files(version_dir: Path, manifest: Manifest) -> None:
    """Recomputes size and checksum of every file that a manifest lists.

    Args:
        version_dir: The directory ``<repository>/<model>/<version>``.
        manifest: Its manifest.

    Raises:
        IntegrityError: A file is missing or its bytes differ.
        ManifestError: A path leaves the version directory.
    """
    root = version_dir.resolve()
    for entry in manifest.files:
        pure = PurePosixPath(entry.path)
        path = version_dir / pure
        if pure.is_absolute() or ".." in pure.parts or not path.resolve().is_relative_to(root):
            raise ManifestError(f"{MANIFEST_NAME} lists {entry.path!r}, which leaves the version directory.")
        if not path.is_file():
            raise IntegrityError(f"{version_dir} lacks {entry.path}, which its manifest lists. Publish it again.")
        size = path.stat().st_size
        if size != entry.bytes:
            raise IntegrityError(
                f"{path} has {size} bytes; its manifest says {entry.bytes}. It was damaged: publish it again."
            )
        digest = _sha256(path)
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
