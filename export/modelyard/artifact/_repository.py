"""The model repository: TensorFlow Serving's own layout, with atomic publishing.

::

    <repository>/<model>/<version>/     version is a positive integer
    <repository>/<model>/.staging-*/    work in progress, invisible to every server

In an object store, which knows no rename, ``.staging-<version>`` is an object
that reserves the number while the files of the version are written.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from modelyard.artifact._manifest import MANIFEST_NAME, Manifest
from modelyard.artifact._publish_remote import MAX_VERSION, STAGING_PREFIX, publish_remote, version_numbers
from modelyard.artifact._remote import Location, RemotePath, RemoteVersion, locate
from modelyard.artifact._signing import SIGNATURE_NAME, Signer
from modelyard.errors import ConfigurationError, PublishError

#: Requests that a server replays before a version takes traffic; TensorFlow Serving's own place.
WARMUP_FILE = Path("assets.extra") / "tf_serving_warmup_requests"
_TEMPORARY = "modelyard-staging-"
#: TensorFlow's file of a SavedModel, and the same as text.
SAVED_MODEL_NAMES = ("saved_model.pb", "saved_model.pbtxt")
#: What stands in a URL as it is (RFC 3986, "unreserved"); a dot in front hides a folder.
_NAME = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")


@dataclass(frozen=True, kw_only=True)
class ModelVersion:
    """One version directory, whatever the number of leading zeros in its name."""

    number: int
    path: Path


#: A version, wherever it is.
AnyVersion = ModelVersion | RemoteVersion


def is_routable(name: str) -> bool:
    """Whether ``/v1/models/NAME`` can ask for a model by its name."""
    return _NAME.fullmatch(name) is not None


def check_model_name(name: str) -> None:
    """Checks that a model can be published under a name: a URL routes it, and it is no version's.

    Raises:
        ConfigurationError: It holds something that a URL cannot route, or digits alone.
    """
    cure = "Give another one: --name NAME (in Python the destination's last part)."
    if not is_routable(name):
        raise ConfigurationError(
            f"The model's name is {name!r}, which /v1/models/NAME cannot route; expected letters of ASCII, digits and "
            f"._~- alone, and no dot in front. {cure}"
        )
    if name.isdecimal():
        raise ConfigurationError(
            f"The model's name is {name!r}, and a folder of digits alone is a version; expected something else in it, "
            f"too. {cure}"
        )


def check_destination(model_dir: Location) -> None:
    """Checks that a model can be published to a folder, see :func:`check_model_name`.

    Raises:
        ConfigurationError: It cannot, or the folder is a published version or in one, which would be damaged.
    """
    inner = str(model_dir)
    for folder in (inner, inner.rpartition("/")[0]):
        if folder.rpartition("/")[2].isdecimal() and _is_published(locate(folder)):
            raise ConfigurationError(
                f"{folder} is a published version; expected the folder of a model, such as "
                f"{folder.rpartition('/')[0] or '.'} (in Python the destination, else --repository and --name)."
            )
    check_model_name(model_dir.name)


def _is_published(folder: Location) -> bool:
    return MANIFEST_NAME in folder.tree() if isinstance(folder, RemotePath) else (folder / MANIFEST_NAME).exists()


@overload
def list_versions(model_dir: Path) -> tuple[ModelVersion, ...]: ...


@overload
def list_versions(model_dir: RemotePath) -> tuple[RemoteVersion, ...]: ...


def list_versions(model_dir: Location) -> tuple[AnyVersion, ...]:
    """Lists the versions of a model, oldest first.

    A version is a directory whose name is a non-negative integer that fits 64 bits; leading zeros are accepted as
    TensorFlow Serving does. Where two names mean the same number, the first in sort order counts. In an object store a
    version also has a manifest: it is what makes one exist there.

    Args:
        model_dir: The directory ``<repository>/<model>``.

    Raises:
        ArtifactError: The store cannot be reached.
        FileNotFoundError: The directory does not exist.
    """
    if isinstance(model_dir, RemotePath):
        return tuple(version for version in _list_remote(model_dir) if version.has_manifest)
    # Servers do this every second, and not everything there is a version.
    names = [name for name in os.listdir(model_dir) if name.isdecimal()]
    found = version_numbers(name for name in names if is_folder(model_dir / name))
    return tuple(ModelVersion(number=number, path=model_dir / found[number]) for number in sorted(found))


def list_served(model_dir: Location) -> tuple[AnyVersion, ...]:
    """The versions that a server takes: those of :func:`list_versions`, and SavedModels that others put into a store.

    These have no manifest, and nobody is publishing or removing a version of their number.
    """
    return _list_remote(model_dir) if isinstance(model_dir, RemotePath) else list_versions(model_dir)


def is_folder(path: Path) -> bool:
    """Whether a path is a folder, or a link to one; a link that leads nowhere, or to what is closed, is none."""
    try:
        return path.is_dir()
    except OSError as exc:
        # Whoever may make a link chooses what it says: it keeps nobody from what is beside it.
        if exc.errno in (errno.ENAMETOOLONG, errno.EACCES) and path.is_symlink():
            return False
        raise


def _list_remote(model_dir: RemotePath) -> tuple[RemoteVersion, ...]:
    tree = model_dir.tree()
    if not tree:
        raise FileNotFoundError(errno.ENOENT, "nothing is there", str(model_dir))
    whole = version_numbers(name.removesuffix(f"/{MANIFEST_NAME}") for name in tree if name.endswith(MANIFEST_NAME))
    foreign = version_numbers(
        folder
        for folder, _, name in (path.rpartition("/") for path in tree)
        if name in SAVED_MODEL_NAMES and f"{STAGING_PREFIX}{folder}" not in tree
    )
    return tuple(
        RemoteVersion(number=number, path=model_dir / folder, has_manifest=number in whole)
        for number, folder in sorted({**foreign, **whole}.items())
    )


@contextmanager
def staging(model_dir: Location) -> Iterator[Path]:
    """A fresh staging directory, removed again unless it was published.

    Args:
        model_dir: The directory ``<repository>/<model>``; made when absent.
            For an object store the staging directory is a temporary one here.

    Yields:
        The directory to fill before :func:`publish`.

    Raises:
        ConfigurationError: No model can be published there, see :func:`check_destination`.
        PublishError: The directory cannot be made.
    """
    check_destination(model_dir)
    try:
        if isinstance(model_dir, RemotePath):
            path = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
        else:
            model_dir.mkdir(parents=True, exist_ok=True)
            path = Path(tempfile.mkdtemp(prefix=f"{STAGING_PREFIX}{os.getpid()}-", dir=model_dir))
    except OSError as exc:
        raise PublishError(f"Cannot write below {model_dir}: {exc}") from exc
    # mkdtemp makes it private; servers often run as another user.
    path.chmod(0o755)
    try:
        yield path
    finally:
        if path.exists():
            shutil.rmtree(path)


@overload
def publish(
    staged: Path, model_dir: Path, make_manifest: Callable[[int], Manifest], *, sign: Signer | None = None
) -> ModelVersion: ...


@overload
def publish(
    staged: Path, model_dir: RemotePath, make_manifest: Callable[[int], Manifest], *, sign: Signer | None = None
) -> RemoteVersion: ...


def publish(
    staged: Path, model_dir: Location, make_manifest: Callable[[int], Manifest], *, sign: Signer | None = None
) -> AnyVersion:
    """Puts a staged directory in place as the next free version.

    The manifest is written last, everything is flushed to disk, and the rename is the only step that a reader can see:
    a crash leaves no half version. Of two processes that publish at once each gets a number of its own. An empty
    directory in the way is replaced where the system allows it, which loses nothing: what one of us has published is
    never empty.

    Args:
        staged: A directory from :func:`staging`, complete but for its manifest.
        model_dir: The directory ``<repository>/<model>``.
        make_manifest: Called with the version that the directory will get.
        sign: Signs the manifest; None for no signature.

    Returns:
        The version as published.

    Raises:
        ArtifactError: The store that it goes to cannot be reached, or refuses.
        PublishError: Writing or renaming failed, or no number is left.
    """
    if isinstance(model_dir, RemotePath):
        return publish_remote(staged, model_dir, lambda number: _write_manifest(staged, make_manifest(number), sign))
    try:
        while True:
            # Names that are no directories count too: the rename onto one could never succeed.
            number = max(version_numbers(path.name for path in model_dir.iterdir()), default=0) + 1
            if number > MAX_VERSION:
                raise PublishError(
                    f"{model_dir} holds version {MAX_VERSION}, the largest that 64 bits hold; remove or rename it."
                )
            _write_manifest(staged, make_manifest(number), sign)
            flush(*staged.rglob("*"), staged)
            target = model_dir / str(number)
            try:
                # On POSIX this fails where the target is a directory that is not empty: nothing is overwritten.
                os.rename(staged, target)
            except OSError as exc:
                if exc.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    continue
                raise
            flush(model_dir)
            return ModelVersion(number=number, path=target)
    except OSError as exc:
        raise PublishError(f"Cannot publish {staged} below {model_dir}: {exc}") from exc


def _write_manifest(staged: Path, manifest: Manifest, sign: Signer | None) -> None:
    content = manifest.to_json().encode("utf-8")
    (staged / MANIFEST_NAME).write_bytes(content)
    if sign is not None:
        (staged / SIGNATURE_NAME).write_bytes(sign(content))


def flush(*paths: Path) -> None:
    """Waits until files and folders are on the disk, in their order."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
