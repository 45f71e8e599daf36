"""The commit that code belongs to, for the manifest."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git_commit(path: Path) -> str:
    """The commit of the repository that tracks a source file, for the manifest.

    The full hash, with ``-dirty`` where tracked files differ from it; empty where git is not installed or does not
    track the file.
    """
    try:
        _git(path.parent, "ls-files", "--error-unmatch", path.name)
        return _git(path.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        # Installed packages are not tracked: the manifest then says nothing, which is true.
        return ""


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
