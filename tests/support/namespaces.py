"""Processes with namespaces of their own, as a container has them: the first one is process 1."""

from __future__ import annotations

import shutil
import subprocess

import pytest

#: Before a command, which may mount and unmount what it likes.
ALONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")

needs_namespaces = pytest.mark.skipif(
    shutil.which(ALONE[0]) is None
    or subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode != 0,
    reason="this machine allows no namespaces",
)
