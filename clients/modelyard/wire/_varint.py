"""Numbers as protobuf writes them ("Encoding", base 128 varints)."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """The bytes of a number: seven bits each, the lowest first.

    Args:
        value: At least 0.
    """
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
