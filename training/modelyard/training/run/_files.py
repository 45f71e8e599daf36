"""Files that are complete at any time."""

from __future__ import annotations

from pathlib import Path

from modelyard.artifact import drafted
from modelyard.errors import ModelyardError


def replace_file(path: Path, content: str | bytes, *, error: type[ModelyardError]) -> None:
    """Writes a file in one move, and its folder where it is absent: no reader sees half of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with drafted(path) as draft:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as exc:
        raise error(f"{path} cannot be written: {exc}") from exc
