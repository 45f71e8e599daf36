"""Numbers as protobuf writes them ("Encoding", base 128 varints)."""

from __future__ import annotations

#: Most numbers are sizes of small things, and written for every answer.
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


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


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Reads a number.

    Args:
        data: What it stands in.
        at: Where it begins.

    Returns:
        The number, and where it ends.

    Raises:
        IndexError: It is cut off.
        ValueError: It has more than 64 bits.
    """
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
