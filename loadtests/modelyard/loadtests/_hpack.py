"""Header compression of HTTP/2 (RFC 7541), as far as a gRPC client without a dynamic table needs it."""

from __future__ import annotations

from collections.abc import Iterator

#: Static table entries that say a status, from index 8 on.
_STATUSES = (b"200", b"204", b"206", b"304", b"400", b"404", b"500")
#: Huffman codes are canonical: for each length the first code, and the symbols in order. Rarer ones are longer.
_HUFFMAN = (
    (5, 0b00000, b"012aceiost"),
    (6, 0b010100, b" %-./3456789=A_bdfghlmnpru"),
    (7, 0b1011100, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, 0b11111000, b"&*,;XZ"),
    (10, 0b1111111000, b'!"()?'),
)
_CODES = {
    (length, first + offset): symbol for length, first, symbols in _HUFFMAN for offset, symbol in enumerate(symbols)
}


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
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, found = len(text) - 127, bytearray([127])
    while rest >= 128:
        found.append(rest % 128 + 128)
        rest //= 128
    found.append(rest)
    return bytes(found) + text


def fields(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Reads a header block of a peer that was told to keep no table.

    Args:
        block: The whole block.

    Yields:
        Names and values; of the static table only the statuses.
    """
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            index, at = _integer(block, at, 7)
            if 8 <= index <= 14:
                yield b":status", _STATUSES[index - 8]
            continue
        if first & 0xE0 == 0x20:
            _, at = _integer(block, at, 5)
            continue
        index, at = _integer(block, at, 6 if first & 0x40 else 4)
        name = b":status" if 8 <= index <= 14 else b""
        if not index:
            name, at = _text(block, at)
        value, at = _text(block, at)
        yield name, value


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    mask = (1 << bits) - 1
    value, at, shift = block[at] & mask, at + 1, 0
    if value < mask:
        return value, at
    while True:
        byte = block[at]
        value += (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if not byte & 128:
            return value, at


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    coded = block[at] & 0x80
    length, at = _integer(block, at, 7)
    raw = block[at : at + length]
    return (_unpacked(raw) if coded else raw), at + length


def _unpacked(raw: bytes) -> bytes:
    found, code, length = bytearray(), 0, 0
    for byte in raw:
        for shift in range(7, -1, -1):
            code, length = code << 1 | (byte >> shift & 1), length + 1
            symbol = _CODES.get((length, code))
            if symbol is not None:
                found.append(symbol)
                code = length = 0
            elif length > 10:
                return bytes(found) + b"..."
    return bytes(found)
