"""Integers, texts and tables of header blocks, as bytes."""

from __future__ import annotations

from functools import cache

from modelyard.wire import varint

#: RFC 7541, appendix A: entry 1 is the first.
STATIC_TABLE: tuple[tuple[bytes, bytes], ...] = tuple(
    (name, value.replace(b"_", b" "))
    for name, _, value in (
        row.partition(b"|")
        for row in (
            b":authority :method|GET :method|POST :path|/ :path|/index.html :scheme|http :scheme|https :status|200 "
            b":status|204 :status|206 :status|304 :status|400 :status|404 :status|500 accept-charset "
            b"accept-encoding|gzip,_deflate accept-language accept-ranges accept access-control-allow-origin age allow "
            b"authorization cache-control content-disposition content-encoding content-language content-length "
            b"content-location content-range content-type cookie date etag expect expires from host if-match "
            b"if-modified-since if-none-match if-range if-unmodified-since last-modified link location max-forwards "
            b"proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie "
            b"strict-transport-security transfer-encoding user-agent vary via www-authenticate"
        ).split(b" ")
    )
)
#: Symbols by the length of their codes. The code is canonical: the order within a length is all there is to know.
_CODES: tuple[tuple[int, bytes], ...] = (
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b'!"()?'),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\x00$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
    (19, b"\\\xc3\xd0"),
    (20, b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2"),
    (21, b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6"),
    (22, b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9"),
    (23, b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf\xc5"
         b"\xe7\xef"),
    (24, b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed"),
    (25, b"\xc7\xcf\xea\xeb"),
    (26, b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff"),
    (27, b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe"),
    (28, b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
         b"\x7f\xdc\xf9"),
    (30, b"\n\r\x16"),
)  # fmt: skip
_MAX_PADDING_BITS = 7


class HpackError(Exception):
    """A header block is malformed. The caller decides what that means for its connection.

    Args:
        reason: What is wrong.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def sized(value: int) -> bytes:
    """The length of a text, with the seven-bit prefix that says that the text is not packed.

    Args:
        value: 0 or more.
    """
    # Beyond seven bits it goes on as protobuf's numbers do (section 5.1).
    return bytes((value,)) if value < 0x7F else b"\x7f" + varint(value - 0x7F)


def read_integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Reads a number (section 5.1).

    Args:
        block: The header block.
        at: Where the number begins.
        bits: Of its first byte that belong to it.

    Returns:
        The number, and where the next thing begins.

    Raises:
        HpackError: It has more than 32 bits.
        IndexError: The block ends too early.
    """
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 28:
            raise HpackError("a number of more than 32 bits in a header block")


def read_text(block: bytes, at: int) -> tuple[bytes, int]:
    """Reads a text (section 5.2), packed or not.

    Args:
        block: The header block.
        at: Where its length begins.

    Returns:
        The text, and where the next thing begins.

    Raises:
        HpackError: It is no Huffman code, or its length has more than 32 bits.
        IndexError: The block ends too early.
    """
    packed = block[at] & 0x80
    size, at = read_integer(block, at, 7)
    if at + size > len(block):
        raise IndexError("text ends too early")
    raw = block[at : at + size]
    return (_unpack(raw) if packed else raw), at + size


@cache
def huffman_codes() -> dict[tuple[int, int], int]:
    """Symbols by length and value of their codes (appendix B), without the end of string."""
    symbols: dict[tuple[int, int], int] = {}
    code = last = 0
    for length, values in _CODES:
        code <<= length - last
        last = length
        for value in values:
            symbols[length, code] = value
            code += 1
    return symbols


def _unpack(raw: bytes) -> bytes:
    symbols = huffman_codes()
    result = bytearray()
    code = length = 0
    for byte in raw:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            value = symbols.get((length, code))
            if value is not None:
                result.append(value)
                code = length = 0
    if length > _MAX_PADDING_BITS or code != (1 << length) - 1:
        raise HpackError("header text that is no Huffman code")
    return bytes(result)
