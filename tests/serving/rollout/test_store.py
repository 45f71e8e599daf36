"""Rollbacks over restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving.rollout._store import RolledBack, read_rolled_back, write_rolled_back

FOUND = (RolledBack(model="m", target="canary", version=2, rule="abc", reason="it was wrong"),)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert read_rolled_back(file) == read_rolled_back(None) == ()
    write_rolled_back(file, FOUND)
    assert read_rolled_back(file) == FOUND
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    write_rolled_back(None, FOUND)


@pytest.mark.parametrize("text", ["{", "[1]", '[{"model": "m"}]'])
def test_a_damaged_file_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="cannot be read: .*Delete it to begin without any rollback"):
        read_rolled_back(file)


def test_a_file_that_cannot_be_written_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_rolled_back(tmp_path / "nowhere" / "state.json", FOUND)
    assert "--version_traffic_state_file" in caplog.text
    assert "cannot be written" in caplog.text
