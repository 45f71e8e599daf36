"""Files of a model that are read as a whole, where there is memory for them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from modelyard.errors import ArtifactError, LoadError

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """What this machine, or this container, has left; without an end where the system does not say."""
    if not sys.platform.startswith("linux"):
        return sys.maxsize
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) << 10
    # Not there in the first version of control groups, or without a limit.
    with contextlib.suppress(OSError, ValueError):
        most, used = (int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        free = min(free, most - used + int(stat["inactive_file"]))
    return free


def read_model(path: Path, most: int = sys.maxsize) -> bytes:
    """Reads a file of so many bytes at most.

    Raises:
        ArtifactError: It cannot be read.
        LoadError: It is larger, or there is no memory for it: what it holds need not take room on a disk.
    """
    try:
        size, free = path.stat().st_size, free_bytes()
        if size > most:
            raise LoadError(f"{path} has {size:,} bytes; expected up to {most:,}. Export the model again.")
        if size > free:
            raise LoadError(
                f"{path} has {size:,} bytes, and {free:,} bytes of memory are left. Serve it where there is more."
            )
        return path.read_bytes()
    except OSError as exc:
        raise ArtifactError(f"{path} cannot be read: {exc}") from exc
