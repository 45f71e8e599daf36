"""Compressed bodies."""

from __future__ import annotations

import io
import zlib

from modelyard.errors import InvalidRequestError, RequestTooLargeError

#: The encodings of HTTP that bodies may have, in zlib's numbers: HTTP's deflate is zlib's format.
WBITS: dict[str, int] = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
#: What one turn inflates: it may become a thousand times as much, which is copied while no other thread has its turn.
_PIECE = 1 << 11


def inflate(body: bytes, *, wbits: int, limit: int) -> tuple[bytes, bool]:
    """Inflates a body in turns.

    Args:
        body: In gzip's or zlib's format.
        wbits: Which of them, as ``zlib.decompressobj`` has it.
        limit: Bytes after which it stops.

    Returns:
        The first ``limit + 1`` bytes at most, and whether the body came to its end.

    Raises:
        zlib.error: It is not in that format.
    """
    inflater, plain = zlib.decompressobj(wbits=wbits), io.BytesIO()
    for at in range(0, len(body), _PIECE):
        left = limit + 1 - plain.tell()
        if inflater.eof or left == 0:
            break
        plain.write(inflater.decompress(body[at : at + _PIECE], left))
    return plain.getvalue(), inflater.eof


def decompress(body: bytes, encoding: str, *, limit: int) -> bytes:
    """The body that ``Content-Encoding`` says is packed.

    Raises:
        InvalidRequestError: The encoding is not known, or the body is not whole in it.
        RequestTooLargeError: It becomes more bytes than the limit.
    """
    name = encoding.strip().lower()
    if name == "identity":
        return body
    if name not in WBITS:
        raise InvalidRequestError(f"Content-Encoding {encoding!r} is not supported; expected gzip or deflate.")
    try:
        data, whole = inflate(body, wbits=WBITS[name], limit=limit)
    except zlib.error as exc:
        raise InvalidRequestError(f"The body is not in the {name} format that its header names: {exc}") from exc
    if len(data) > limit:
        raise RequestTooLargeError(f"The decompressed body has more than {limit} bytes; send fewer rows per request.")
    if not whole:
        raise InvalidRequestError(f"The {name} body ends too early.")
    return data
