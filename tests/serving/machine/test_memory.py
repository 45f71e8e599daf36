"""Memory that a process may have, in a container and on a whole machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from modelyard.serving.config import parse_flags
from modelyard.serving.machine import free_bytes, memory_limit, resident_bytes
from tests.support.control_groups import MB, V1, V2, contained_server, write_memory_group
from tests.support.models import publish_affine
from tests.support.namespaces import needs_namespaces
from tests.support.server import serve

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="control groups are Linux'")

Version = tuple[str, str, str, str]


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    path = tmp_path / "membership"
    path.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/\n0::/docker/abc\n")
    return path


@pytest.mark.parametrize("folder", ["", "docker", "docker/abc"])
@pytest.mark.parametrize("version", [V2, V1])
def test_what_a_container_has(tmp_path: Path, membership: Path, version: Version, folder: str) -> None:
    group = tmp_path / version[0] / folder
    write_memory_group(group, most=str(100 * MB), used=75 * MB, version=version)
    assert memory_limit(root=tmp_path, membership=membership) == 100 * MB
    # Files that were read twice, as a model's are, can be taken back; those that are mapped are in use.
    assert free_bytes(root=tmp_path, membership=membership) == (100 - 75 + 5 + 30 - 10) * MB
    write_memory_group(group, most=str(100 * MB), used=200 * MB, version=version)
    assert free_bytes(root=tmp_path, membership=membership) == 0


def test_the_tightest_parent_counts(tmp_path: Path, membership: Path) -> None:
    write_memory_group(tmp_path / "docker", most=str(90 * MB), used=10 * MB)
    write_memory_group(tmp_path / "docker/abc", most=str(80 * MB), used=10 * MB)
    assert memory_limit(root=tmp_path, membership=membership) == 80 * MB
    # What its siblings have taken is not left, either.
    write_memory_group(tmp_path / "docker", most=str(90 * MB), used=60 * MB)
    assert free_bytes(root=tmp_path, membership=membership) == (90 - 60 + 25) * MB


@pytest.mark.parametrize("most", ["max", "9223372036854771712", ""])
def test_without_a_limit_the_machine_counts(tmp_path: Path, membership: Path, most: str) -> None:
    write_memory_group(tmp_path, most=most, used=75 * MB)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  2048 kB\nMemFree:  12 kB\nMemAvailable:  1024 kB\n")
    for root in (tmp_path, tmp_path / "none"):
        assert memory_limit(root=root, membership=membership, meminfo=meminfo) == 2 * MB
        assert free_bytes(root=root, membership=membership, meminfo=meminfo) == MB


def test_a_machine_that_does_not_say_what_it_has(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    for _ in range(2):
        assert memory_limit(root=tmp_path, membership=hidden, meminfo=hidden) is None
        assert free_bytes(root=tmp_path, membership=hidden, meminfo=hidden) == sys.maxsize
        hidden.touch()


def test_a_group_may_say_less_of_its_files(tmp_path: Path, membership: Path) -> None:
    write_memory_group(tmp_path, most=str(100 * MB), used=75 * MB)
    (tmp_path / "memory.stat").write_text("anon 1\n")
    assert free_bytes(root=tmp_path, membership=membership) == 25 * MB


def test_the_real_files_agree() -> None:
    resident, limit = resident_bytes(), memory_limit()
    assert resident is not None and limit is not None
    assert 20 * MB < resident < limit
    assert 0 < free_bytes() < limit


def test_requests_may_take_a_sixteenth() -> None:
    limit = memory_limit()
    assert limit is not None
    found = parse_flags(["--model_base_path=/models/m", "--rest_api_port=8501"]).limits.max_inflight_bytes
    assert found == min(1 << 30, limit // 16)


@needs_namespaces
@pytest.mark.parametrize("transport", ["native", "python"])
def test_requests_of_a_container_may_take_a_sixteenth_of_its_limit(tmp_path: Path, transport: str) -> None:
    if transport == "native":
        pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")
    publish_affine(tmp_path / "affine", slope=2.0, intercept=0.0)
    program, flags = contained_server(tmp_path / "group", limit=160 * MB), [f"--transport={transport}"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, program=program, flags=flags) as server:
        padding = b" " * (10 * MB)
        status, text = server.post("/v1/models/affine:predict", b'{"instances":[1.0]}' + padding)
        assert status == 413 and str(10 * MB) in text, text
        assert server.post("/v1/models/affine:predict", b'{"instances":[1.0]}' + padding[1000:])[0] == 200
