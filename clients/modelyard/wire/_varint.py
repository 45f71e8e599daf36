"""Numbers as protobuf writes them ("Encoding", base 128 varints), and as text."""

from __future__ import annotations

#: Most numbers are sizes of small things, and written for every answer.
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def decimal(text: str) -> int | None:
    """A number that is written in digits alone, such as a version; None for other text, and beyond 64 bits."""
    # Python refuses thousands of digits with an error of its own.
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None


def varint(value: int) -> bytes:
    """The bytes of a number: seven bits each, the lowest first.

    Args:
        value: At least 0.
    """
    if 0 <= value < len(_ONE_BYTE):
        return _ONE_BYTE[value]
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)
