"""gzip and deflate of answers."""

from __future__ import annotations

import zlib
from typing import Literal

from modelyard.serving.handlers.rest import WBITS

Encoding = Literal["gzip", "deflate"]

#: Tensors compress little, and the caller waits.
_LEVEL = 1
#: Shorter answers fit into one packet as they are. The native core has the same number.
LEAST_BYTES = 1400


def compress(body: bytes, encoding: Encoding) -> bytes:
    deflater = zlib.compressobj(level=_LEVEL, wbits=WBITS[encoding])
    return deflater.compress(body) + deflater.flush()


def preferred_encoding(accepted: str) -> Encoding | None:
    """The encoding that a caller likes best, gzip where it has no preference; None for none of ours."""
    weights: dict[str, float] = {}
    for item in accepted.lower().split(","):
        name, _, rest = item.strip().partition(";")
        weights[name.strip()] = _weight(rest)
    best: Encoding = "deflate" if weights.get("deflate", 0.0) > weights.get("gzip", 0.0) else "gzip"
    return best if weights.get(best, 0.0) > 0 else None


def _weight(text: str) -> float:
    key, _, value = text.strip().partition("=")
    if key.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        # An encoding with a malformed weight is not wanted.
        return 0.0
