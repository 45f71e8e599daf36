"""The control groups of this process. Kernel documentation: ``cgroup-v2.rst`` and ``cgroup-v1/``."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def control_groups(controller: str, root: Path, membership: Path) -> list[Path]:
    """Folders of every group whose limits hold for this process; a child cannot have more than its parents.

    The files of versions 1 and 2 have different names, so what is read tells which version a folder is of.
    """
    found: list[Path] = []
    for line in read(membership).splitlines():
        # Version 2: "0::/path". Version 1: "4:cpu,cpuacct:/path", with a mount by both names, or by one.
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if not controllers:
            found += _upwards(root, path)
        elif controller in controllers.split(","):
            for mount in dict.fromkeys((root / controllers, root / controller)):
                found += _upwards(mount, path)
    return found


def _upwards(mount: Path, path: str) -> list[Path]:
    # Inside a container the path may be the host's, which is not there; the group's files are then at the mount.
    folder = Path(os.path.normpath("/" + path.lstrip("/"))).relative_to("/")
    return [mount / folder, *(mount / parent for parent in folder.parents)]


def read(path: Path) -> str:
    """The text of a file, or nothing: where there is no such controller, there is no limit either."""
    try:
        return path.read_text()
    except OSError:
        return ""
