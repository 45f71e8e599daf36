"""Files that need no folder to write to: the root file system of a container may be read-only."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import IO


def scratch_file() -> IO[bytes]:
    """An empty file that is gone when it is closed: in memory, where the system has such files."""
    if sys.platform != "linux":
        return tempfile.NamedTemporaryFile()
    return open(os.memfd_create("modelyard"), "w+b")


def scratch_path(file: IO[bytes]) -> str:
    """A path by which others read such a file while it is open here."""
    return file.name if isinstance(file.name, str) else f"/proc/self/fd/{file.name}"
