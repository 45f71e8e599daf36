"""Copies of versions that live in object stores, as a runtime reads files, and of those that must be signed.

Whoever may write to a local folder could exchange what was checked before it is loaded: a copy is checked, and loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from modelyard.artifact import (
    MANIFEST_NAME,
    MAX_ENTRIES,
    SIGNATURE_NAME,
    AnyVersion,
    Location,
    RemoteFile,
    RemotePath,
    RemoteVersion,
    TrustedKey,
    check_paths,
    check_signature,
    check_size,
    parse_manifest,
    read_manifest_bytes,
    read_signature,
    verify_files,
)
from modelyard.errors import ArtifactError, IntegrityError, LoadError

_LOG = logging.getLogger("modelyard.serving")

_DOWNLOAD = ".download-"
#: Bytes that are copied at a time.
_PIECE = 1 << 20
#: Names of models that are names of folders as they are.
_FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


class VersionCache:
    """Downloads the versions of one model, each once."""

    def __init__(self, model: str, folder: Path | None, trusted_keys: Sequence[TrustedKey] = ()) -> None:
        self._model, self._trusted_keys = model, trusted_keys
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = folder

    def fetch(self, version: AnyVersion) -> Path:
        """A local directory with the files of a version; one that is local is there already, unless it must be signed.

        Nothing is kept that is not what the manifest says, or, without one, what the store lists.
        """
        if self._trusted_keys:
            return self._fetch_published(version)
        if not isinstance(version, RemoteVersion):
            return version.path
        return self._fetch_published(version) if version.has_manifest else self._fetch_foreign(version)

    def _fetch_published(self, version: AnyVersion) -> Path:
        content, signature = read_manifest_bytes(version.path), None
        if self._trusted_keys:
            signature = read_signature(version.path)
            # Before what nobody signed fills the disk; what is copied is checked once more.
            check_signature(content, signature, self._trusted_keys, place=str(version.path))
        manifest = parse_manifest(content, version.path)
        # Before anything is written by those names.
        check_paths(manifest)

        def check(copy: Path) -> None:
            verify_files(copy, manifest)
            if signature is not None:
                (copy / SIGNATURE_NAME).write_bytes(signature)

        def fill(copy: Path) -> None:
            tree = version.path.tree() if isinstance(version, RemoteVersion) else {}
            for entry in manifest.files:
                if entry.path in tree:
                    # Before it fills the disk.
                    check_size(version.path / entry.path, tree[entry.path].bytes, entry)
                # What is not there any more, the check below says in its own words.
                with contextlib.suppress(FileNotFoundError):
                    _download(version.path / entry.path, copy / entry.path, entry.bytes)
            (copy / MANIFEST_NAME).write_bytes(content)
            try:
                check(copy)
            except IntegrityError as exc:
                # What is wrong is wrong in the store, not in a folder that is about to go.
                raise IntegrityError(exc.message.replace(str(copy), str(version.path))) from exc

        return self._kept(version, content, check, fill)

    def _fetch_foreign(self, version: RemoteVersion) -> Path:
        """Copies a SavedModel that others put there, where it does not change meanwhile."""
        files = _files_of(version)
        listing = "".join(f"{name}\0{file.bytes} {file.stamp}\0" for name, file in sorted(files.items()))

        sizes = {name: file.bytes for name, file in files.items()}

        def check(copy: Path) -> None:
            if _sizes(copy) != sizes:
                raise ArtifactError("its files have other sizes")

        def fill(copy: Path) -> None:
            try:
                for name, size in sizes.items():
                    _download(version.path / name, copy / name, size)
                changed = _files_of(version) != files or _sizes(copy) != sizes
            except FileNotFoundError:
                changed = True
            if changed:
                raise ArtifactError(f"{version.path} changed while it was copied.")

        return self._kept(version, listing.encode("utf-8", "surrogatepass"), check, fill)

    def _kept(
        self, version: AnyVersion, content: bytes, check: Callable[[Path], None], fill: Callable[[Path], None]
    ) -> Path:
        """The copy of a version whose content is told by some bytes, made where there is none, or a damaged one.

        Whatever is called so had the same content: a version that was replaced is another copy.
        """
        digest = hashlib.sha256(str(version.path).encode() + b"\0" + content).hexdigest()[:24]
        try:
            folder = self._root() / digest
            target = folder / str(version.number)
            if target.is_dir():
                try:
                    check(target)
                    return target
                except ArtifactError as exc:
                    _LOG.warning("model %s: the copy in %s is damaged: %s", self._model, target, exc.message)
                    shutil.rmtree(target)
            folder.mkdir(parents=True, exist_ok=True)
            with _download_in(folder) as scratch:
                copy = scratch / str(version.number)
                copy.mkdir()
                fill(copy)
                try:
                    copy.rename(target)
                except OSError:
                    # Another process has made it meanwhile.
                    if not target.is_dir():
                        raise
                    check(target)
        except OSError as exc:
            raise LoadError(
                f"{version.path} cannot be copied to this machine: {exc}; expected a folder to write to, with room for "
                "it. Name one by --remote_cache_dir."
            ) from exc
        return target

    @property
    def roots(self) -> tuple[Path, ...]:
        """The folder of the copies, if there is one."""
        return (self._root(),) if self._started else ()

    def forget(self, path: Path) -> None:
        """Removes a copy that is not needed any more; what is no copy stays."""
        if self._started and path.is_relative_to(self._root()):
            shutil.rmtree(path.parent, ignore_errors=True)

    @property
    def _started(self) -> bool:
        return self._folder is not None or self._temporary is not None

    def _root(self) -> Path:
        if self._folder is not None:
            return self._folder / _folder_of(self._model)
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix=f"modelyard-{_folder_of(self._model)}-")
        return Path(self._temporary.name)


def _files_of(version: RemoteVersion) -> dict[str, RemoteFile]:
    """The files of a version by their names, which are paths below it."""
    # Consoles of stores make empty objects of such names, to show them as folders.
    files = {name: file for name, file in version.path.tree().items() if name and not name.endswith("/")}
    if len(files) > MAX_ENTRIES:
        raise LoadError(f"{version.path} has {len(files):,} files; expected up to {MAX_ENTRIES:,}.")
    for name in files:
        if "\\" in name or "\0" in name or {"", ".", ".."} & set(name.split("/")):
            raise LoadError(f"{version.path} has {name!r}, which is no path below it. Remove it from the store.")
    return files


def _download(source: Location, target: Path, size: int) -> None:
    """Copies a file, of a local one no more than a byte beyond the size that it should have."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, RemotePath):
        source.download(target)
        return
    # Others may write there: it is no pipe, which would wait, and has an end.
    most = size + 1
    with open(source, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            with target.open("xb") as copy:
                while piece := file.read(min(most, _PIECE)):
                    copy.write(piece)
                    most -= len(piece)


def _sizes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def _download_in(folder: Path) -> Iterator[Path]:
    """A place for a download; what was left by processes that were killed during theirs is removed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _LOG.info("another process downloads into %s, too", folder)
        else:
            for left in folder.glob(f"{_DOWNLOAD}*"):
                shutil.rmtree(left)
        # Whoever holds this downloads.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with tempfile.TemporaryDirectory(prefix=_DOWNLOAD, dir=folder) as name:
            yield Path(name)
    finally:
        os.close(descriptor)


def _folder_of(model: str) -> str:
    """A folder's name for a model's, which a caller may have chosen: never a path, and for each model its own."""
    if _FOLDER.fullmatch(model):
        return model
    return "~" + hashlib.sha256(model.encode("utf-8", "surrogatepass")).hexdigest()[:24]
