"""Files that are complete at any time."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from modelyard.artifact import drafted


def test_the_file_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    with drafted(file) as draft:
        draft.write_text("new")
        assert draft.name.startswith(".")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As on a full disk, a write ends in OSError after a part of it.
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"), drafted(file) as draft:
            draft.write_bytes(b"x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_replaced_leaves_no_draft(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError), drafted(folder) as draft:
        draft.write_text("new")
    assert list(tmp_path.iterdir()) == [folder]
