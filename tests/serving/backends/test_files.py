"""What a container has left for a model, and what becomes of one that has no room there."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from modelyard.errors import ArtifactError, LoadError
from modelyard.serving.backends import _files, check_room, free_bytes
from tests.support.admin import available
from tests.support.models import publish_affine
from tests.support.namespaces import ALONE, needs_namespaces
from tests.support.saved_models import save_tf1_half_plus_two
from tests.support.server import serve

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="control groups are Linux'")

_MB = 1 << 20


def _group(folder: Path, limit: str, usage: str, mapped: str, *, most: str, used: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit).write_text(f"{most}\n")
    (folder / usage).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"anon {40 * _MB}\ninactive_file {5 * _MB}\nactive_file {30 * _MB}\n{mapped} {10 * _MB}\n"
    )


_V2 = ("", "memory.max", "memory.current", "file_mapped")
_V1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "mapped_file")


@pytest.mark.parametrize(("folder", "limit", "usage", "mapped"), [_V2, _V1])
def test_what_a_container_has_left(tmp_path: Path, folder: str, limit: str, usage: str, mapped: str) -> None:
    _group(tmp_path / folder, limit, usage, mapped, most=str(100 * _MB), used=75 * _MB)
    # Files that were read twice, as a model's are, can be taken back; those that are mapped are in use.
    assert free_bytes(root=tmp_path) == (100 - 75 + 5 + 30 - 10) * _MB
    _group(tmp_path / folder, limit, usage, mapped, most=str(100 * _MB), used=200 * _MB)
    assert free_bytes(root=tmp_path) == 0


@pytest.mark.parametrize("most", ["max", "9223372036854771712", ""])
def test_without_a_limit_the_machine_counts(tmp_path: Path, most: str) -> None:
    _group(tmp_path, *_V2[1:], most=most, used=75 * _MB)
    assert free_bytes(root=tmp_path) > 100 * _MB
    assert free_bytes(root=tmp_path / "none") > 100 * _MB


def test_a_machine_that_does_not_say_what_is_left(tmp_path: Path) -> None:
    hidden = tmp_path / "meminfo"
    assert free_bytes(root=tmp_path, meminfo=hidden) == sys.maxsize
    hidden.touch()
    assert free_bytes(root=tmp_path, meminfo=hidden) == sys.maxsize


def test_a_file_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "free_bytes", lambda: 1_500)
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(1_000))
    check_room(path, times=1)
    with pytest.raises(LoadError, match="has 1,000 bytes, is held 2 times while it is loaded, and 1,500 bytes of mem"):
        check_room(path, times=2)
    (tmp_path / "more").write_bytes(bytes(501))
    with pytest.raises(LoadError, match=f"{tmp_path} has 1,501 bytes and 1,500 bytes of mem"):
        check_room(tmp_path, times=1)
    with pytest.raises(ArtifactError, match="cannot be read"):
        check_room(tmp_path / "none", times=1)


def _program(group: Path, *, left_mb: int = 30) -> tuple[str, ...]:
    """A server as in a container: the machine has more than enough, and its own group has so much."""
    # Of the files, 25 MB can be taken back.
    _group(group, *_V2[1:], most=str((200 + left_mb - 25) * _MB), used=200 * _MB)
    start = f'mount --bind {shlex.quote(str(group))} /sys/fs/cgroup && exec "$@"'
    return (*ALONE[:3], "--mount", "sh", "-c", start, "sh", sys.executable, "-m", "modelyard.serving")


@needs_namespaces
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_version_without_room_leaves_the_last_good_one(tmp_path: Path, runtime: str) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    large = tmp_path / "affine" / "2" / "model.onnx"
    large.parent.mkdir()
    large.touch()
    os.truncate(large, 20 * _MB)
    program, flags = _program(tmp_path / "group"), [f"--runtime={runtime}"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, program=program, flags=flags) as server:
        assert available(server, "affine") == {1}
        text = server.get("/v1/models/affine")[1]
        assert "has 20,971,520 bytes, is held 2 times while it is loaded, and 31,457,280 bytes of memory are" in text


@needs_namespaces
def test_so_does_a_saved_model(tmp_path: Path) -> None:
    for version in ("1", "2"):
        save_tf1_half_plus_two(tmp_path / "half" / version)
    # A part that no variable is in: the version would be loaded.
    large = tmp_path / "half" / "2" / "variables" / "variables.data-00001-of-00002"
    large.touch()
    os.truncate(large, 40 * _MB)
    program = _program(tmp_path / "group")
    with serve(tmp_path / "half", model="half", log_dir=tmp_path, program=program) as server:
        assert available(server, "half") == {1}
        assert "variables has 41,9" in server.get("/v1/models/half")[1]


@needs_namespaces
def test_a_probe_may_take_what_is_left(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    # Python, its libraries and a runtime have 120 MB of writable memory, and half of it before the model is loaded.
    program, flags = _program(tmp_path / "group", left_mb=95), ["--probe_loads"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, program=program, flags=flags) as server:
        assert "its probe took" in server.log_text()
