"""Header compression of HTTP/2 (RFC 7541), as far as a gRPC client without a dynamic table needs it."""

from __future__ import annotations

from collections.abc import Iterator

from modelyard.wire.hpack import read_integer, read_text, sized

#: Static table entries that say a status, from index 8 on.
_STATUSES = (b"200", b"204", b"206", b"304", b"400", b"404", b"500")


def literal(name: bytes, value: bytes) -> bytes:
    """A field that nobody has to remember.

    Args:
        name: In lower case.
        value: As it is.
    """
    return b"\x00" + _string(name) + _string(value)


def named(index: int, value: bytes) -> bytes:
    """A field whose name is in the static table.

    Args:
        index: Of the name.
        value: As it is.
    """
    return (bytes([index]) if index < 15 else bytes([15, index - 15])) + _string(value)


def _string(text: bytes) -> bytes:
    return sized(len(text)) + text


def fields(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Reads a header block of a peer that was told to keep no table.

    Args:
        block: The whole block.

    Yields:
        Names and values; of the static table only the statuses.

    Raises:
        HpackError: The block is malformed.
        IndexError: The block ends too early.
    """
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            index, at = read_integer(block, at, 7)
            if 8 <= index <= 14:
                yield b":status", _STATUSES[index - 8]
            continue
        if first & 0xE0 == 0x20:
            _, at = read_integer(block, at, 5)
            continue
        index, at = read_integer(block, at, 6 if first & 0x40 else 4)
        name = b":status" if 8 <= index <= 14 else b""
        if not index:
            name, at = read_text(block, at)
        value, at = read_text(block, at)
        yield name, value
