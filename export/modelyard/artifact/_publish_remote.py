"""Versions in object stores: how one comes, and how one goes.

What makes a version exist there is its manifest. It is written last and removed
first, so that no reader of ours ever sees half of a version.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from modelyard.artifact._manifest import MANIFEST_NAME
from modelyard.artifact._remote import RemoteFile, RemotePath, RemoteVersion
from modelyard.artifact._signing import SIGNATURE_NAME
from modelyard.errors import PublishError

#: Of what is not served: directories that are being filled, and objects that reserve a number.
STAGING_PREFIX = ".staging-"
MAX_VERSION = (1 << 63) - 1
#: What a version consists of before it exists, and no longer when it does.
_LAST = (SIGNATURE_NAME, MANIFEST_NAME)


def version_numbers(folders: Iterable[str]) -> dict[int, str]:
    """Those of some names that are version numbers, by number; the first in sort order counts."""
    found: dict[int, str] = {}
    for name in sorted(folders):
        if name.isascii() and name.isdecimal() and int(name) <= MAX_VERSION:
            found.setdefault(int(name), name)
    return found


def publish_remote(staged: Path, model_dir: RemotePath, write_manifest: Callable[[int], None]) -> RemoteVersion:
    """Uploads a staged directory as the next free version.

    The number is reserved by an object that only one writer can create; then
    come the files, then the signature, and the manifest last.
    """
    try:
        number, claim = _claim(model_dir)
    except FileNotFoundError as exc:
        raise PublishError(f"Cannot publish to {model_dir}: {exc}") from exc
    version = RemoteVersion(number=number, path=model_dir / str(number))
    written: list[RemotePath] = []
    try:
        write_manifest(number)
        names = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file())
        for name in sorted(names, key=lambda each: _LAST.index(each) if each in _LAST else -1):
            # What was written half counts as written.
            written.append(version.path / name)
            written[-1].upload(staged / name)
    except BaseException as exc:
        for path in reversed(written):
            path.unlink()
        claim.unlink()
        if isinstance(exc, OSError):
            raise PublishError(f"Cannot publish {staged} as {version.path}: {exc}") from exc
        raise
    claim.unlink()
    return version


def _claim(model_dir: RemotePath) -> tuple[int, RemotePath]:
    while True:
        taken = version_numbers(_numbered(model_dir.tree()))
        number = max(taken, default=0) + 1
        if number > MAX_VERSION:
            raise PublishError(f"{model_dir} holds version {MAX_VERSION}, the largest that 64 bits hold; remove it.")
        claim = model_dir / f"{STAGING_PREFIX}{number}"
        try:
            claim.write_bytes(secrets.token_hex(8).encode(), exclusive=True)
        except FileExistsError:
            continue
        if number not in version_numbers(_numbered(model_dir.tree(), claims=False)):
            return number, claim
        # Another writer published it between the look and the claim.
        claim.unlink()


def _numbered(tree: dict[str, RemoteFile], *, claims: bool = True) -> set[str]:
    """Names of everything that stands for a number: folders of versions, whole or not, and claims."""
    names = {name.partition("/")[0] for name in tree if "/" in name}
    if claims:
        names |= {name.removeprefix(STAGING_PREFIX) for name in tree if name.startswith(STAGING_PREFIX)}
    return names


def remove_remote(version: RemoteVersion) -> None:
    """Removes a version: the manifest first, then it is out of sight.

    A claim says meanwhile that the rest is to go: other numbered folders without a manifest are another writer's.
    """
    claim = version.path.parent / f"{STAGING_PREFIX}{version.path.name}"
    claim.write_bytes(secrets.token_hex(8).encode())
    (version.path / MANIFEST_NAME).unlink()
    for name in version.path.tree():
        (version.path / name).unlink()
    claim.unlink()


def collect_remote(model_dir: RemotePath, *, stale_s: float) -> tuple[str, ...]:
    """Removes what crashed exports and removals left: claims that are old, and the halves of their versions.

    Returns the names of what was removed.
    """
    tree = model_dir.tree()
    removed = []
    # Others may have any name: they are nobody's claim.
    claimed = version_numbers(name.removeprefix(STAGING_PREFIX) for name in tree if name.startswith(STAGING_PREFIX))
    for number, folder in claimed.items():
        claim = model_dir / f"{STAGING_PREFIX}{folder}"
        if _age_s(claim) < stale_s:
            continue
        if f"{folder}/{MANIFEST_NAME}" not in tree:
            remove_remote(RemoteVersion(number=number, path=model_dir / folder))
        else:
            claim.unlink()
        removed.append(claim.name)
    return tuple(removed)


def _age_s(path: RemotePath) -> float:
    try:
        return time.time() - path.modified_s()
    except FileNotFoundError:
        # The writer has finished.
        return 0.0
