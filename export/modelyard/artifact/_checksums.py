"""Files of a version: what is there, what a manifest says of it, and whether it is still so."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

from modelyard.artifact._manifest import MANIFEST_NAME, Manifest
from modelyard.artifact._manifest_parts import FileEntry
from modelyard.artifact._remote import Location, RemotePath
from modelyard.artifact._signing import SIGNATURE_NAME
from modelyard.errors import ArtifactError, IntegrityError, ManifestError

#: Far beyond any model's: more of either is damage, or there to hold somebody up.
MAX_ENTRIES, MAX_DEPTH = 10_000, 100


def entries_below(folder: Path) -> dict[str, os.stat_result]:
    """Everything below a folder by its relative path with ``/``: what is there itself, as no link is followed.

    What is removed meanwhile is left out.

    Raises:
        ArtifactError: Something cannot be read, or there are more folders in each other, or entries, than a model has.
    """
    found: dict[str, os.stat_result] = {}
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        if inside.count("/") > MAX_DEPTH:
            raise ArtifactError(f"{folder} has more than {MAX_DEPTH} folders in each other; expected a model's files.")
        try:
            with os.scandir(folder / inside) as entries:
                for entry in entries:
                    name = inside + entry.name
                    found[name] = entry.stat(follow_symlinks=False)
                    if len(found) > MAX_ENTRIES:
                        raise ArtifactError(
                            f"{folder} has more than {MAX_ENTRIES:,} files and folders; expected a model's files."
                        )
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{name}/")
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise ArtifactError(f"{folder / inside} cannot be read: {exc.strerror or exc}") from exc
    return found


def targets_below(folder: Path) -> dict[str, os.stat_result]:
    """As :func:`entries_below`, but a link is what it leads to, and is left out where it leads nowhere.

    Raises:
        ArtifactError: As :func:`entries_below`.
    """
    found = {}
    for name, entry in entries_below(folder).items():
        if stat.S_ISLNK(entry.st_mode):
            try:
                entry = (folder / name).stat()
            except OSError:
                continue
        found[name] = entry
    return found


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
