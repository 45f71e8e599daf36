"""Files that are complete at any time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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


def json_text(document: Mapping[str, object], *, indent: int | None = None) -> str:
    """A document as JSON, which has no word for NaN and the infinities: they are null, as jq and JavaScript have it."""
    return json.dumps(_finite(document), indent=indent, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
