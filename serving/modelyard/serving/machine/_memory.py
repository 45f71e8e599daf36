"""How much memory this process has, may have, and could still have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from modelyard.serving.machine._groups import MEMBERSHIP, ROOT, control_groups, read

_STATM, _MEMINFO = Path("/proc/self/statm"), Path("/proc/meminfo")
#: By the version of control groups, 2 and 1: the limit, what is used, and lines of ``memory.stat``: files that can be
#: taken back, and files that are mapped.
_GROUPS = (
    ("memory.max", "memory.current", ("inactive_file", "active_file"), "file_mapped"),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
        "total_mapped_file",
    ),
)


def resident_bytes() -> int | None:
    """Resident memory of this process; None where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def memory_limit(*, root: Path = ROOT, membership: Path = MEMBERSHIP, meminfo: Path = _MEMINFO) -> int | None:
    """Bytes that this process may have: its control group's limit, or all that the machine has; None: not said."""
    names = [name for name, *_ in _GROUPS]
    texts = [read(folder / name).strip() for folder in control_groups("memory", root, membership) for name in names]
    # Without a limit version 2 says "max", and version 1 a number larger than any machine's memory.
    limits = [int(text) for text in texts if text.isdecimal()]
    total = _machine(meminfo, "MemTotal")
    return min(limits if total is None else [*limits, total], default=None)


def free_bytes(*, root: Path = ROOT, membership: Path = MEMBERSHIP, meminfo: Path = _MEMINFO) -> int:
    """What the machine, or this process' control group, has left; without an end where the system does not say."""
    left = [_left(folder, *names) for folder in control_groups("memory", root, membership) for names in _GROUPS]
    available = _machine(meminfo, "MemAvailable")
    return max(0, min(*left, sys.maxsize if available is None else available, sys.maxsize))


def _machine(meminfo: Path, field: str) -> int | None:
    # Nothing is said by other systems than Linux, and in sandboxes that hide it.
    fields = dict(line.split(":") for line in read(meminfo).splitlines())
    return int(fields[field].split()[0]) << 10 if field in fields else None


def _left(group: Path, limit: str, usage: str, files: tuple[str, str], mapped: str) -> int:
    try:
        most, used = (int((group / name).read_text()) for name in (limit, usage))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        # Another version of control groups, or no limit.
        return sys.maxsize
    # The kernel takes pages of files back, also those that were read more than once: a model's are, to be checked and
    # to be loaded. What is mapped are mostly libraries, which are in use.
    kept = sum(int(stat.get(name, 0)) for name in files) - int(stat.get(mapped, 0))
    return most - used + max(0, kept)
