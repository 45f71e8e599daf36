"""Header fields of HTTP/2 (HPACK, RFC 7541), for a peer that keeps no table.

A client that announces a table of size 0 gets every field whole or by its
number in the static table, so that blocks can be read, and remembered, without state.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache

from modelyard.errors import ProtocolError

_STATIC = tuple(
    tuple(row.split("=", 1)) if "=" in row else (row, "")
    for row in (
        ":authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https :status=200 "
        ":status=204 :status=206 :status=304 :status=400 :status=404 :status=500 accept-charset "
        "accept-encoding=gzip,\N{NO-BREAK SPACE}deflate accept-language accept-ranges accept "
        "access-control-allow-origin age allow authorization cache-control content-disposition content-encoding "
        "content-language content-length content-location content-range content-type cookie date etag expect expires "
        "from host if-match if-modified-since if-none-match if-range if-unmodified-since last-modified link location "
        "max-forwards proxy-authenticate proxy-authorization range referer refresh retry-after server set-cookie "
        "strict-transport-security transfer-encoding user-agent vary via www-authenticate"
    )
    .replace("\N{NO-BREAK SPACE}", "\0")
    .split(" ")
)
#: Symbols by the length of their codes, in the order of the codes: the code is canonical, so that is all of it.
_LENGTHS = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4\xb6\xb7\xbc\xbf"
    b"\xc5\xe7\xef",
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f\x7f"
    b"\xdc\xf9",
    30: b"\n\r\x16",
}
_LONGEST_PADDING = 7
Fields = tuple[tuple[str, str], ...]


def encode(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encodes header fields that neither side is to remember.

    Args:
        fields: Names in lower case, and values, both of latin-1.
    """
    return b"".join([_literal(name, value) for name, value in fields])


@lru_cache(maxsize=512)
def decode(block: bytes) -> Fields:
    """Decodes a block of header fields.

    Args:
        block: All of it.

    Raises:
        ProtocolError: It is cut off, or refers to a table that was never allowed.
    """
    fields = []
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                fields.append(_known(index))
                continue
            if first & 0xE0 == 0x20:
                size, at = _integer(block, at, 5)
                if size:
                    raise ProtocolError(f"An HTTP/2 peer wants a table of {size} bytes for headers; 0 were offered.")
                continue
            index, at = _integer(block, at, 6 if first & 0x40 else 4)
            if index:
                name = _known(index)[0]
            else:
                name, at = _text(block, at)
            value, at = _text(block, at)
            fields.append((name, value))
    except IndexError as exc:
        raise ProtocolError(f"An HTTP/2 peer sent headers that end too early: {block[:80]!r}.") from exc
    return tuple(fields)


@lru_cache(maxsize=1024)
def _prefix(name: str) -> bytes:
    raw = name.encode("latin-1")
    # Compressing proxies, too, must not put a secret into their tables.
    return (b"\x10" if name == "authorization" else b"\0") + _sized(len(raw), 7) + raw


def _literal(name: str, value: str) -> bytes:
    raw = value.encode("latin-1")
    size = len(raw)
    return _prefix(name) + (bytes((size,)) if size < 0x7F else _sized(size, 7)) + raw


def _sized(value: int, bits: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes((value,))
    result = bytearray((most,))
    value -= most
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
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
            raise ProtocolError("An HTTP/2 peer sent a number of more than 32 bits in its headers.")


def _known(index: int) -> tuple[str, str]:
    if not 1 <= index <= len(_STATIC):
        raise ProtocolError(f"An HTTP/2 peer refers to header {index} of a table that it was not offered.")
    name, value = _STATIC[index - 1]
    return name, value.replace("\0", " ")


def _text(block: bytes, at: int) -> tuple[str, int]:
    packed = block[at] & 0x80
    size, at = _integer(block, at, 7)
    if at + size > len(block):
        raise IndexError("text ends too early")
    raw = block[at : at + size]
    return (_unpacked(raw) if packed else raw).decode("latin-1"), at + size


@cache
def _codes() -> dict[tuple[int, int], int]:
    codes: dict[tuple[int, int], int] = {}
    code, last = 0, 0
    for length, symbols in _LENGTHS.items():
        code <<= length - last
        last = length
        for symbol in symbols:
            codes[(length, code)] = symbol
            code += 1
    return codes


def _unpacked(raw: bytes) -> bytes:
    codes = _codes()
    result = bytearray()
    code, length = 0, 0
    for byte in raw:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            length += 1
            symbol = codes.get((length, code))
            if symbol is not None:
                result.append(symbol)
                code, length = 0, 0
    if length > _LONGEST_PADDING or code != (1 << length) - 1:
        raise ProtocolError("An HTTP/2 peer sent text in its headers that is no Huffman code.")
    return bytes(result)
