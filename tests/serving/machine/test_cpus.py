from __future__ import annotations

import os
from pathlib import Path

import pytest

from modelyard.serving.machine import available_cpus


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def cpus(tmp_path: Path):
    def count(membership: str) -> int:
        _write(tmp_path / "membership", membership)
        return available_cpus(root=tmp_path / "cgroup", membership=tmp_path / "membership")

    return count


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max 100000", 8),
        ("150000 100000", 2),
        ("200000 100000", 2),
        ("1000 100000", 1),
        ("6400000 100000", 8),
        ("garbage", 8),
        ("", 8),
        ("100000 0", 8),
    ],
)
def test_a_v2_quota_is_rounded_up(cpus, tmp_path: Path, limit: str, expected: int) -> None:
    _write(tmp_path / "cgroup/cpu.max", limit + "\n")
    assert cpus("0::/\n") == expected


def test_the_tightest_parent_counts(cpus, tmp_path: Path) -> None:
    _write(tmp_path / "cgroup/kubepods/cpu.max", "300000 100000\n")
    _write(tmp_path / "cgroup/kubepods/pod/cpu.max", "max 100000\n")
    assert cpus("0::/kubepods/pod\n") == 3


def test_the_hosts_path_inside_a_container_falls_back_to_the_mount(cpus, tmp_path: Path) -> None:
    _write(tmp_path / "cgroup/cpu.max", "250000 100000\n")
    assert cpus("0::/../../docker/abc\n") == 3


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("50000", 1), ("420000", 5)])
def test_a_v1_quota_is_rounded_up(cpus, tmp_path: Path, mount: str, quota: str, expected: int) -> None:
    _write(tmp_path / f"cgroup/{mount}/docker/abc/cpu.cfs_quota_us", quota + "\n")
    _write(tmp_path / f"cgroup/{mount}/docker/abc/cpu.cfs_period_us", "100000\n")
    assert cpus("5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n") == expected


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert available_cpus(root=tmp_path / "none", membership=tmp_path / "none") == 8


def test_the_real_files_give_a_count_within_the_affinity() -> None:
    assert 1 <= available_cpus() <= 8
