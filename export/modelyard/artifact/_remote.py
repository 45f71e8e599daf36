"""Model repositories in object stores: ``s3://``, ``gs://`` and others that fsspec speaks to.

An object store has no directories and no rename: what makes a version of ours exist is its manifest, which is written
last and removed first. A SavedModel without one, which others put there for TensorFlow Serving, is there for servers
alone.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelyard.errors import ArtifactError, ConfigurationError, ManifestError, MissingDependencyError, PublishError
from modelyard.lazy import needs_extra

_HINT = {
    "s3": "credentials are looked for as by every AWS tool (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...); AWS_ENDPOINT_URL "
    "names another store than Amazon's, as TensorFlow's S3_ENDPOINT does",
    "gs": "credentials are looked for as by every Google tool (GOOGLE_APPLICATION_CREDENTIALS, ...)",
}

#: fsspec knows more, such as http: a server would fetch any address that its configuration names.
_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "hdfs", "memory")


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One object below a remote path, with its size; the stamp changes when it is replaced."""

    bytes: int
    stamp: str


class RemotePath:
    """A place in an object store, with as much of :class:`pathlib.Path` as a repository needs.

    Every method raises ArtifactError where the store cannot be reached or refuses, and FileNotFoundError where it needs
    something that is not there.

    Args:
        url: Such as ``s3://bucket/models/fashion``.

    Raises:
        ConfigurationError: Not a URL of an object store that is known here.
        MissingDependencyError: What speaks to this store is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        if self.protocol not in _STORES or "::" in url:
            raise ConfigurationError(
                f"{url} is not on a file system that is known here; expected an object store: "
                f"{', '.join(f'{each}://' for each in _STORES)}."
            )
        with needs_extra("remote", "fsspec", purpose=f"{url}"):
            core = importlib.import_module("fsspec.core")
        try:
            # Another process may have changed what is there a moment ago: nothing is remembered.
            options = _s3_options(os.environ) if self.protocol in {"s3", "s3a"} else {}
            self._fs, self._path = core.url_to_fs(self._url, use_listings_cache=False, **options)
        except ImportError as exc:
            package = {"s3": "s3fs", "gs": "gcsfs"}.get(self.protocol, self.protocol)
            raise MissingDependencyError(package=package, extra="remote", purpose=f"{url}") from exc
        except (OSError, ValueError) as exc:
            raise ConfigurationError(f"{url} is not on a file system that is known here: {exc}") from exc

    @property
    def protocol(self) -> str:
        """What stands before ``://``."""
        return self._url.partition("://")[0]

    @property
    def name(self) -> str:
        """The last part."""
        return self._url.rpartition("/")[2]

    @property
    def parent(self) -> RemotePath:
        """The path without its last part."""
        return self._at(self._url.rpartition("/")[0], self._path.rpartition("/")[0])

    def __truediv__(self, name: str) -> RemotePath:
        return self._at(f"{self._url}/{name}", f"{self._path}/{name}")

    def _at(self, url: str, path: str) -> RemotePath:
        """Another place in this store: what others have put there may have names that no URL of ours has."""
        place = copy.copy(self)
        place._url, place._path = url.rstrip("/"), path.rstrip("/")
        return place

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"RemotePath({self._url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self._url == other._url

    def __hash__(self) -> int:
        return hash(self._url)

    def tree(self) -> dict[str, RemoteFile]:
        """Every object below, by its path relative to here; in stores, one request for each thousand."""
        with self._reaching("listed"):
            found: dict[str, dict[str, Any]] = self._fs.find(self._path, detail=True)
        root = f"{self._path.rstrip('/')}/"
        return {
            name.removeprefix(root): RemoteFile(bytes=info["size"] or 0, stamp=_stamp(info))
            for name, info in found.items()
            if name.startswith(root)
        }

    def folders(self) -> list[str]:
        """Names of the folders right below, sorted."""
        with self._reaching("listed"):
            found = self._fs.ls(self._path, detail=True)
        return sorted(info["name"].rstrip("/").rpartition("/")[2] for info in found if info["type"] == "directory")

    def read_bytes(self, most: int | None = None) -> bytes:
        """The content of an object, or as many of its first bytes."""
        with self._reaching("read"):
            content: bytes = self._fs.cat_file(self._path, **({} if most is None else {"start": 0, "end": most}))
        return content

    def sha256(self) -> str:
        """The checksum of an object, in hexadecimal, read piece by piece."""
        with self._reaching("read"), self._fs.open(self._path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def write_bytes(self, content: bytes, *, exclusive: bool = False) -> None:
        """Writes an object in one step: readers see the old content or the new one.

        Of several exclusive writers one succeeds; the others get a FileExistsError.
        """
        with self._reaching("written"):
            self._fs.pipe_file(self._path, content, mode="create" if exclusive else "overwrite")

    def upload(self, source: Path) -> None:
        """Writes a local file to here."""
        with self._reaching("written"):
            self._fs.put_file(str(source), self._path)

    def download(self, target: Path) -> None:
        """Writes what is here to a local file."""
        with self._reaching("read"):
            self._fs.get_file(self._path, str(target))

    def modified_s(self) -> float:
        """When an object was written, in seconds since 1970."""
        with self._reaching("read"):
            return float(self._fs.modified(self._path).timestamp())

    def unlink(self) -> None:
        """Removes an object; one that is not there is no error."""
        try:
            with self._reaching("removed"):
                self._fs.rm_file(self._path)
        except FileNotFoundError:
            return

    @contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError, KeyboardInterrupt):
            raise
        # Every store's library raises its own: this is the boundary that maps them.
        except Exception as exc:
            hint = _HINT.get(self.protocol, "check the address")
            raise ArtifactError(f"{self._url} cannot be {what}: {type(exc).__name__}: {exc} ({hint}).") from exc


#: A folder of a repository, here or in an object store.
Location = Path | RemotePath


def read_file(path: Location, most: int) -> bytes:
    """Reads a file of a repository that has so many bytes at most.

    Raises:
        ArtifactError: The store that holds it cannot be reached.
        ManifestError: It is larger, or something else than a file, such as a pipe, which nobody may ever write to.
        OSError: It is not there, or cannot be read.
    """
    if isinstance(path, RemotePath):
        content = path.read_bytes(most + 1)
    else:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ManifestError(
                f"{path} cannot be read: it is not a regular file. Remove it, or publish the model again."
            )
        with path.open("rb") as file:
            content = file.read(most + 1)
    if len(content) > most:
        raise ManifestError(
            f"{path} has more than {most:,} bytes, which is the most that is read of such a file. Publish the model "
            "again, or remove it."
        )
    return content


@dataclass(frozen=True, kw_only=True)
class RemoteVersion:
    """One version in an object store, and where its files are."""

    number: int
    path: RemotePath
    #: Without one it is a SavedModel that others put there.
    has_manifest: bool = True


def replace_file(path: Location, content: bytes, *, staged: Path | None = None) -> None:
    """Replaces a file as a whole, so that a reader sees what was there or what is there now, and nothing between.

    It is first written to a hidden file in the folder ``staged``, which is its own by default.
    """
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name.lstrip('.')}-", dir=staged or path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if sys.platform != "win32":
                    # mkstemp makes it private; servers often run as another user. By its name it may be a link by now.
                    os.fchmod(file.fileno(), 0o644)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise PublishError(f"Cannot write {path}: {exc}") from exc


def locate(text: str | Path | RemotePath) -> Location:
    """The place that a path or URL names.

    Args:
        text: A path of this machine, also as ``file://``, or a URL such as ``s3://bucket/models``.

    Raises:
        ConfigurationError: Not a URL of a file system that is known here.
        MissingDependencyError: What speaks to this store is not installed.
    """
    if not isinstance(text, str):
        return text
    rest = text.removeprefix("file://")
    return RemotePath(rest) if "://" in rest else Path(rest)


def _s3_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Options of fsspec by the variables of TensorFlow's S3 file system; where AWS has one, its own wins.

    Deployments of TensorFlow Serving name their store by them: S3_ENDPOINT is a host and a port, with a scheme or not.
    """
    client: dict[str, Any] = {}
    endpoint = environ.get("S3_ENDPOINT", "")
    if endpoint and not (environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT_URL_S3")):
        scheme = "http" if environ.get("S3_USE_HTTPS", "").startswith("0") else "https"
        client["endpoint_url"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        if environ.get("S3_VERIFY_SSL", "").startswith("0"):
            client["verify"] = False
        elif environ.get("S3_CA_FILE"):
            client["verify"] = environ["S3_CA_FILE"]
    region = environ.get("AWS_REGION") or environ.get("S3_REGION")
    if region and not environ.get("AWS_DEFAULT_REGION"):
        client["region_name"] = region
    return {"client_kwargs": client} if client else {}


def _stamp(info: dict[str, Any]) -> str:
    # An ETag is of the content; where a store has none, size and time have to do.
    for key in ("ETag", "etag", "generation", "LastModified", "mtime", "created"):
        if info.get(key):
            return f"{info[key]} {info['size']}"
    return str(info["size"])
