"""Header fields of HTTP/2 (HPACK, RFC 7541), for a peer that keeps no table.

A client that announces a table of size 0 gets every field whole or by its
number in the static table, so that blocks can be read, and remembered, without state.
"""

from __future__ import annotations

from collections.abc import Iterable

from modelyard.clients.http._short import cache_short
from modelyard.errors import ProtocolError
from modelyard.wire.hpack import STATIC_TABLE, HpackError, read_integer, read_text, sized

Fields = tuple[tuple[str, str], ...]


def encode(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encodes header fields that neither side is to remember."""
    return b"".join([_literal(name, value) for name, value in fields])


@cache_short
def decode(block: bytes) -> Fields:
    fields = []
    at = 0
    try:
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = read_integer(block, at, 7)
                fields.append(_known(index))
                continue
            if first & 0xE0 == 0x20:
                size, at = read_integer(block, at, 5)
                if size:
                    raise ProtocolError(f"An HTTP/2 peer wants a table of {size} bytes for headers; 0 were offered.")
                continue
            index, at = read_integer(block, at, 6 if first & 0x40 else 4)
            if index:
                name = _known(index)[0]
            else:
                raw, at = read_text(block, at)
                name = raw.decode("latin-1")
            raw, at = read_text(block, at)
            fields.append((name, raw.decode("latin-1")))
    except IndexError as exc:
        raise ProtocolError(f"An HTTP/2 peer sent headers that end too early: {block[:80]!r}.") from exc
    except HpackError as exc:
        raise ProtocolError(f"An HTTP/2 peer sent headers that cannot be read: {exc.reason}.") from exc
    return tuple(fields)


#: Fields that the static table has as a whole, and the number of each name in it.
_WHOLE = {(name.decode(), value.decode()): bytes((0x80 | at,)) for at, (name, value) in enumerate(STATIC_TABLE, 1)}
_NUMBERS = {name.decode(): at for at, (name, _) in reversed(list(enumerate(STATIC_TABLE, 1)))}
#: What the bits beside a name's mark can hold of its number.
_SHORT = 0x0F


def _prefix(name: str) -> bytes:
    # Compressing proxies, too, must not put a secret into their tables.
    mark = 0x10 if name in ("authorization", "x-api-key") else 0
    # Names by their numbers are shorter, and a server reads them in a third of the time.
    number = _NUMBERS.get(name)
    if number is None:
        raw = name.encode("latin-1")
        return bytes((mark,)) + sized(len(raw)) + raw
    return bytes((mark | number,)) if number < _SHORT else bytes((mark | _SHORT, number - _SHORT))


def _literal(name: str, value: str) -> bytes:
    whole = _WHOLE.get((name, value))
    if whole is not None:
        return whole
    raw = value.encode("latin-1")
    size = len(raw)
    return _prefix(name) + (bytes((size,)) if size < 0x7F else sized(size)) + raw


def _known(index: int) -> tuple[str, str]:
    if not 1 <= index <= len(STATIC_TABLE):
        raise ProtocolError(f"An HTTP/2 peer refers to header {index} of a table that it was not offered.")
    name, value = STATIC_TABLE[index - 1]
    return name.decode("latin-1"), value.decode("latin-1")
