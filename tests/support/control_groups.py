"""Control groups as a container sees them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.support.namespaces import ALONE

MB = 1 << 20
#: By the version of control groups: the folder of the root, names, and how lines that count children, too, begin.
V2 = ("", "memory.max", "memory.current", "")
V1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def write_memory_group(folder: Path, *, most: str, used: int, version: tuple[str, str, str, str] = V2) -> None:
    """Writes the files of a group; of its own, 25 MB are files that can be taken back."""
    _, limit, usage, prefix = version
    mapped = "file_mapped" if version == V2 else f"{prefix}mapped_file"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / limit).write_text(f"{most}\n")
    (folder / usage).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"anon {40 * MB}\n{prefix}inactive_file {5 * MB}\n{prefix}active_file {30 * MB}\n{mapped} {10 * MB}\n"
    )


def contained_server(group: Path, *, limit: int, used: int = 0) -> tuple[str, ...]:
    """The program of a server that sees this limit; the machine has more than enough."""
    write_memory_group(group, most=str(limit), used=used)
    start = f'mount --bind {shlex.quote(str(group))} /sys/fs/cgroup && exec "$@"'
    return (*ALONE[:3], "--mount", "sh", "-c", start, "sh", sys.executable, "-m", "modelyard.serving")
