"""Files of a model that are read as a whole, where there is memory for them."""

from __future__ import annotations

import sys
from pathlib import Path

from modelyard.errors import ArtifactError, LoadError

_MEMINFO, _ROOT = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
#: As a container sees its control group, by version 2 and 1: folder, limit, what is used, and which line of
#: ``memory.stat`` counts the files that are mapped.
_GROUPS = (
    ("", "memory.max", "memory.current", "file_mapped"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "mapped_file"),
)


def free_bytes(*, root: Path = _ROOT, meminfo: Path = _MEMINFO) -> int:
    """What this machine, or this container, has left; without an end where the system does not say."""
    return max(0, min(_left_in_machine(meminfo), *(_left(root / folder, *names) for folder, *names in _GROUPS)))


def _left_in_machine(meminfo: Path) -> int:
    try:
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError):
        # Another system than Linux, or a sandbox that hides it.
        return sys.maxsize


def _left(group: Path, limit: str, usage: str, mapped: str) -> int:
    try:
        most, used = (int((group / name).read_text()) for name in (limit, usage))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        # Another version of control groups, or no limit.
        return sys.maxsize
    # The kernel takes pages of files back, also those that were read more than once: a model's are, to be checked and
    # to be loaded. What is mapped are mostly libraries, which are in use.
    files = int(stat["inactive_file"]) + int(stat["active_file"]) - int(stat[mapped])
    return most - used + max(0, files)


def check_room(path: Path, *, times: int) -> None:
    """Refuses a file, or a folder of files, that is held so many times while it is loaded, where there is no memory.

    In a container the kernel would end the process, and at each of its starts again.

    Raises:
        ArtifactError: It cannot be looked at.
        LoadError: There is no memory for it.
    """
    try:
        size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else (path,)))
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    free = free_bytes()
    if times * size > free:
        held = f", is held {times} times while it is loaded," if times > 1 else ""
        raise LoadError(
            f"{path} has {size:,} bytes{held} and {free:,} bytes of memory are left. Serve it where there is more."
        )


def read_model(path: Path, most: int = sys.maxsize) -> bytes:
    """Reads a file of so many bytes at most.

    Raises:
        ArtifactError: It cannot be read.
        LoadError: It is larger, or there is no memory for it: what it holds need not take room on a disk.
    """
    try:
        size = path.stat().st_size
        if size > most:
            raise LoadError(f"{path} has {size:,} bytes; expected up to {most:,}. Export the model again.")
        check_room(path, times=1)
        return path.read_bytes()
    except OSError as exc:
        raise _unreadable(path, exc) from exc


def _unreadable(path: Path, exc: OSError) -> ArtifactError:
    return ArtifactError(f"{path} cannot be read: {exc}")
