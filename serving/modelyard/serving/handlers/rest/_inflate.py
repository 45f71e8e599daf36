"""Compressed bodies."""

from __future__ import annotations

import io
import zlib

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
