"""Where copies of remote versions go, whatever a model is called, and what becomes of those that are not whole."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modelyard.artifact import (
    MANIFEST_NAME,
    RemoteFile,
    RemotePath,
    RemoteVersion,
    list_served,
    list_versions,
)
from modelyard.errors import ArtifactError, IntegrityError, LoadError
from modelyard.serving.repository._cache import VersionCache
from tests.support.models import publish_affine
from tests.support.object_store import s3

NAMES = ["plain", "../../up", "/absolute", "a/b", "a_b", "..", ".", "nul\0", "x" * 300, "x" * 301, "\udc80", "~plain"]


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "temporary"])
def test_each_model_has_a_folder_of_its_own_in_the_cache(
    tmp_path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    caches = [VersionCache(name, tmp_path if kept else None) for name in NAMES]
    roots = [cache._root() for cache in caches]
    assert len(set(roots)) == len(NAMES)
    for root in roots:
        root.mkdir(exist_ok=True)
        assert root.resolve().parent == tmp_path.resolve()
    assert len(list(tmp_path.iterdir())) == len(NAMES)
    assert (tmp_path / "plain" in roots) is kept
    for cache in caches:
        if cache._temporary is not None:
            cache._temporary.cleanup()


#: Downloads the first version of a model, and never comes to the end of it.
STALLING = """
import sys, time
from pathlib import Path
from modelyard.artifact import RemotePath, list_versions
from modelyard.serving.repository._cache import VersionCache

def stall(self, target):
    target.write_bytes(b"half")
    print("stalls", flush=True)
    time.sleep(600)

RemotePath.download = stall
VersionCache("m", Path(sys.argv[1])).fetch(list_versions(RemotePath(sys.argv[2]))[0])
"""


@contextmanager
def downloading(folder: Path) -> Iterator[Path]:
    """A process in the middle of its download, which is killed in the end; what it has half."""
    command = [sys.executable, "-c", STALLING, str(folder), "s3://cached/m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"stalls\n"
            (half,) = folder.glob("m/*/.download-*")
            yield half
        finally:
            process.kill()


def test_what_killed_processes_have_half_downloaded_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3("cached") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        version = publish_affine(RemotePath("s3://cached/m"), slope=1.0, intercept=0.0)
        with downloading(tmp_path / "killed") as half:
            pass
        assert half.exists()
        copy = VersionCache("m", tmp_path / "killed").fetch(version)
        assert (copy / MANIFEST_NAME).is_file() and list(copy.parent.iterdir()) == [copy]
        with downloading(tmp_path / "alive") as half:
            copy = VersionCache("m", tmp_path / "alive").fetch(version)
            assert set(copy.parent.iterdir()) == {copy, half}


def test_a_saved_model_without_a_manifest_is_copied_as_the_store_lists_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = RemotePath("memory://foreign/m")
    for name in ("saved_model.pb", "variables/variables.index"):
        (model / "1" / name).write_bytes(name.encode())
    (version,) = list_served(model)
    assert isinstance(version, RemoteVersion) and not version.has_manifest
    # Whoever manages a repository leaves alone what others put there.
    assert list_versions(model) == ()
    cache = VersionCache("m", tmp_path)
    copy = cache.fetch(version)
    assert (copy / "variables" / "variables.index").read_bytes() == b"variables/variables.index"
    (copy / "saved_model.pb").write_bytes(b"half")
    assert (cache.fetch(version) / "saved_model.pb").read_bytes() == b"saved_model.pb"

    # Files that come meanwhile make another version of it.
    def download(self: RemotePath, target: Path) -> None:
        target.write_bytes(self.read_bytes())
        (version.path / "variables" / "variables.data").write_bytes(b"late")

    (version.path / "fingerprint.pb").write_bytes(b"new")
    with monkeypatch.context() as patched, pytest.raises(ArtifactError, match="changed while it was copied"):
        patched.setattr(RemotePath, "download", download)
        cache.fetch(version)
    assert (cache.fetch(version) / "variables" / "variables.data").read_bytes() == b"late"

    # Names that lead elsewhere are nowhere written to.
    for name in ("../../escaped", "/escaped", "a//b", "a\\b", "a\0b", "."):
        tree = {"saved_model.pb": RemoteFile(bytes=0, stamp=""), name: RemoteFile(bytes=0, stamp="")}
        monkeypatch.setattr(RemotePath, "tree", lambda self, tree=tree: tree)
        with pytest.raises(LoadError, match="is no path below it"):
            cache.fetch(version)


def test_what_is_larger_than_its_manifest_says_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3("larger") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        version = publish_affine(RemotePath("s3://larger/m"), slope=1.0, intercept=0.0)
        (version.path / "onnx" / "serving_default.onnx").write_bytes(b"x" * 100_000)
        monkeypatch.setattr(RemotePath, "download", lambda self, target: pytest.fail("it was downloaded"))
        with pytest.raises(IntegrityError, match="serving_default.onnx has 100000 bytes; its manifest says"):
            VersionCache("m", tmp_path / "other").fetch(version)
