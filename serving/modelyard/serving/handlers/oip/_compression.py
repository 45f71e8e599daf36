"""gzip and deflate of HTTP bodies."""

from __future__ import annotations

import zlib
from typing import Literal

from modelyard.errors import InvalidRequestError, RequestTooLargeError
from modelyard.serving.handlers.rest import inflate

Encoding = Literal["gzip", "deflate"]

#: HTTP's deflate is zlib's format.
_WBITS: dict[str, int] = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
#: Tensors compress little, and the caller waits.
_LEVEL = 1
#: Shorter answers fit into one packet as they are. The native core has the same number.
LEAST_BYTES = 1400


def decompress(body: bytes, encoding: str, *, limit: int) -> bytes:
    name = encoding.strip().lower()
    if name == "identity":
        return body
    if name not in _WBITS:
        raise InvalidRequestError(f"Content-Encoding {encoding!r} is not supported; expected gzip or deflate.")
    try:
        data, whole = inflate(body, wbits=_WBITS[name], limit=limit)
    except zlib.error as exc:
        raise InvalidRequestError(f"The body is not in the {name} format that its header names: {exc}") from exc
    if len(data) > limit:
        raise RequestTooLargeError(f"The decompressed body has more than {limit} bytes; send fewer rows per request.")
    if not whole:
        raise InvalidRequestError(f"The {name} body ends too early.")
    return data


def compress(body: bytes, encoding: Encoding) -> bytes:
    deflater = zlib.compressobj(level=_LEVEL, wbits=_WBITS[encoding])
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
