"""JSON that every reader takes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def json_text(document: Mapping[str, object], *, indent: int | None = None, ensure_ascii: bool = True) -> str:
    """A document as JSON, which has no word for NaN and the infinities: they are null, as jq and JavaScript have it."""
    try:
        return json.dumps(document, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(document), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
