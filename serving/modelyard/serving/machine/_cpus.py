"""How many CPUs this process may really use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from modelyard.serving.machine._groups import MEMBERSHIP, ROOT, control_groups, read


def available_cpus(*, root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """CPUs that this process may use: its affinity, cut by the CPU quota of its control group.

    A container with a limit of 1.5 CPUs on a machine of 64 may be scheduled on all of them, but is throttled as soon as
    it uses more than 1.5: threads beyond that only wait for each other. Kernel documentation: ``cgroup-v2.rst``
    (``cpu.max``) and ``sched-bwc.rst`` (``cpu.cfs_quota_us``).
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_quota(folder) for folder in control_groups("cpu", root, membership)]
    return max(1, min([affinity, *(math.ceil(quota) for quota in quotas if quota is not None)]))


def _quota(folder: Path) -> float | None:
    """In CPUs."""
    quota, _, period = read(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = (read(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    # "max" and "-1" stand for no limit.
    if not quota.isdecimal() or not period.isdecimal() or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)
