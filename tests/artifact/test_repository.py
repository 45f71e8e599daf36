"""Publishing is atomic: with others at it, when the disk is full, and when the machine stops."""

from __future__ import annotations

import multiprocessing
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from modelyard.artifact import (
    MANIFEST_NAME,
    STAGING_PREFIX,
    Manifest,
    hash_files,
    list_versions,
    publish,
    read_manifest,
    staging,
    verify_files,
)
from modelyard.errors import ConfigurationError, PublishError


def put(model_dir: Path, manifest: Manifest, *, content: str = "graph") -> int:
    with staging(model_dir) as staged:
        (staged / "onnx").mkdir()
        (staged / "onnx" / "serving_default.onnx").write_text(content)
        return publish(staged, model_dir, lambda n: replace(manifest, version=n, files=hash_files(staged))).number


def publish_many(model_dir: Path, manifest: Manifest, count: int) -> None:
    for index in range(count):
        put(model_dir, manifest, content=f"{os.getpid()} {index}")


def test_the_first_version_is_1_and_others_follow(tmp_path: Path, manifest: Manifest) -> None:
    model_dir = tmp_path / "repository" / "fashion"
    assert [put(model_dir, manifest) for _ in range(3)] == [1, 2, 3]
    assert [version.number for version in list_versions(model_dir)] == [1, 2, 3]
    assert read_manifest(model_dir / "2").version == 2
    assert sorted(path.name for path in model_dir.iterdir()) == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["a b", "a:b", "ä", "a%2Fb", ".hidden", "a?b", "a#b", "a+b"])
def test_a_name_that_no_url_routes_is_refused(name: str, tmp_path: Path, manifest: Manifest) -> None:
    with pytest.raises(ConfigurationError, match="which /v1/models/NAME cannot route; .*--name NAME"):
        put(tmp_path / name, manifest)
    assert list(tmp_path.iterdir()) == []
    assert put(tmp_path / "A-b_1.2~c", manifest) == 1


@pytest.mark.parametrize("folder", ["2024", "new/2024"])
def test_a_name_of_digits_is_refused(folder: str, tmp_path: Path, manifest: Manifest) -> None:
    with pytest.raises(ConfigurationError, match="name is '2024', and a folder of digits alone is a version; .*--name"):
        put(tmp_path / folder, manifest)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["1", "1/x"])
def test_a_published_version_is_no_destination(folder: str, tmp_path: Path, manifest: Manifest) -> None:
    put(tmp_path / "m", manifest)
    with pytest.raises(ConfigurationError, match=r"/m/1 is a published version; expected the folder of .*/m \(in"):
        put(tmp_path / "m" / folder, manifest)
    assert sorted(path.name for path in (tmp_path / "m" / "1").iterdir()) == [MANIFEST_NAME, "onnx"]


def test_versions_as_tensorflow_serving_reads_them(tmp_path: Path) -> None:
    for name in ("2", "010", "0", "7", "07", "-1", "1.5", "v3", "٣", str(1 << 63), f"{STAGING_PREFIX}x"):
        (tmp_path / name).mkdir()
    (tmp_path / "99").write_text("a file")
    assert [(version.number, version.path.name) for version in list_versions(tmp_path)] == [
        (0, "0"),
        (2, "2"),
        (7, "07"),
        (10, "010"),
    ]
    with pytest.raises(FileNotFoundError):
        list_versions(tmp_path / "absent")


@pytest.mark.parametrize("kind", ["directory", "empty directory", "file", "dangling link", "leading zeros"])
def test_what_is_there_is_never_overwritten(tmp_path: Path, manifest: Manifest, kind: str) -> None:
    path = tmp_path / ("0008" if kind == "leading zeros" else "8")
    if kind in ("directory", "leading zeros"):
        path.mkdir()
        (path / "mine").write_text("mine")
    elif kind == "empty directory":
        path.mkdir()
    elif kind == "file":
        path.write_text("mine")
    else:
        path.symlink_to("nowhere")
    assert put(tmp_path, manifest) == 9


def test_no_number_left(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / str((1 << 63) - 1)).mkdir()
    with pytest.raises(PublishError, match="the largest that 64 bits hold"):
        put(tmp_path, manifest)
    assert [path.name for path in tmp_path.iterdir()] == [str((1 << 63) - 1)]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="converter"), staging(tmp_path / "m") as staged:
        (staged / "half").write_text("half")
        raise RuntimeError("converter")
    assert list((tmp_path / "m").iterdir()) == []


def test_a_manifest_that_cannot_be_made_leaves_nothing(tmp_path: Path, manifest: Manifest) -> None:
    def fail(number: int) -> Manifest:
        raise OSError(28, "No space left on device")

    with pytest.raises(PublishError, match="No space left"), staging(tmp_path) as staged:
        publish(staged, tmp_path, fail)
    assert list(tmp_path.iterdir()) == []


def test_staging_in_a_place_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("a file")
    with pytest.raises(PublishError, match="Cannot write below"), staging(tmp_path / "m"):
        pass


def test_a_published_version_can_be_read_by_others(tmp_path: Path, manifest: Manifest) -> None:
    put(tmp_path, manifest)
    assert (tmp_path / "1").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "1" / MANIFEST_NAME).stat().st_mode & 0o044 == 0o044


def test_processes_that_publish_at_once_each_get_their_versions(tmp_path: Path, manifest: Manifest) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=publish_many, args=(tmp_path, manifest, 15)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    versions = list_versions(tmp_path)
    assert [version.number for version in versions] == list(range(1, 61))
    contents = set()
    for version in versions:
        own = read_manifest(version.path)
        assert own.version == version.number
        verify_files(version.path, own)
        contents.add((version.path / "onnx" / "serving_default.onnx").read_text())
    assert len(contents) == 60
    assert len(list(tmp_path.iterdir())) == 60


def test_a_version_is_on_the_disk_before_it_is_to_be_seen(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that stops would else leave a version of empty files."""
    done: list[str] = []
    fsync, rename = os.fsync, os.rename

    def flush(descriptor: int) -> None:
        fsync(descriptor)
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)

    def move(source: Path, target: Path) -> None:
        staged = {path.name for path in source.rglob("*")} | {source.name}
        assert staged == set(done) >= {MANIFEST_NAME, "onnx", "serving_default.onnx"}
        rename(source, target)
        done.append("renamed")

    with monkeypatch.context() as watched:
        watched.setattr(os, "fsync", flush)
        watched.setattr(os, "rename", move)
        put(tmp_path, manifest)
    assert done[-2:] == ["renamed", tmp_path.name]


def test_a_full_disk_leaves_nothing(tmp_path: Path, manifest: Manifest) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with staging(tmp_path) as staged:
        (staged / "model.tflite").write_bytes(b"x" * 1000)
        # The manifest does not fit: as on a full disk, a write ends in OSError.
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
        try:
            with pytest.raises(PublishError, match="Cannot publish"):
                publish(staged, tmp_path, lambda n: replace(manifest, version=n))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
