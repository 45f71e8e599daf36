"""The commit that code belongs to."""

from __future__ import annotations

import subprocess
from pathlib import Path

from modelyard.artifact import git_commit


def test_git_commit(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("x = 1\n")
    assert git_commit(path) == ""

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    assert git_commit(path) == ""
    git("add", "code.py")
    git("commit", "-qm", "one")
    assert git_commit(path) == git("rev-parse", "HEAD")
    path.write_text("x = 2\n")
    assert git_commit(path) == git("rev-parse", "HEAD") + "-dirty"
