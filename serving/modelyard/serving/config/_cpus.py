"""How many CPUs this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def available_cpus(*, root: Path = _ROOT, membership: Path = _MEMBERSHIP) -> int:
    """CPUs that this process may use: its affinity, cut by the CPU quota of its control group.

    A container with a limit of 1.5 CPUs on a machine of 64 may be scheduled on all of them, but is throttled as soon as
    it uses more than 1.5: threads beyond that only wait for each other. Kernel documentation: ``cgroup-v2.rst``
    (``cpu.max``) and ``sched-bwc.rst`` (``cpu.cfs_quota_us``).
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = _quotas(root, membership)
    return max(1, min([affinity, *(math.ceil(quota) for quota in quotas)]))


def _quotas(root: Path, membership: Path) -> list[float]:
    """The quotas, in CPUs, of every group that this process is in; a child cannot have more than its parents."""
    quotas = []
    for line in _read(membership).splitlines():
        # v2: "0::/path". v1: "4:cpu,cpuacct:/path".
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "":
            quotas += [_quota_v2(folder) for folder in _upwards(root, path)]
        elif "cpu" in controllers.split(","):
            for mount in (root / controllers, root / "cpu"):
                quotas += [_quota_v1(folder) for folder in _upwards(mount, path)]
    return [quota for quota in quotas if quota is not None]


def _upwards(mount: Path, path: str) -> list[Path]:
    # Inside a container the path may be the host's, which is not there; the group's files are then at the mount.
    folder = Path(os.path.normpath("/" + path.lstrip("/"))).relative_to("/")
    return [mount / folder, *(mount / parent for parent in folder.parents)]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
    return _ratio(quota, period)


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip())


def _ratio(quota: str, period: str) -> float | None:
    # "max" and "-1" stand for no limit.
    if not quota.isdecimal() or not period.isdecimal() or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        # No such controller, or no control groups at all: then there is no quota either.
        return ""
