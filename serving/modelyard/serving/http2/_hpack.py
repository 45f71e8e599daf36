"""Header compression of HTTP/2 (RFC 7541): what a server decodes, and the little that it encodes."""

from __future__ import annotations

from collections import deque

from modelyard.serving.http2._frames import COMPRESSION_ERROR, ConnectionFailed
from modelyard.wire.hpack import STATIC_TABLE, HpackError, read_integer, read_text, sized

Fields = tuple[tuple[bytes, bytes], ...]

#: What a client may make the server remember, in RFC 7541's counting.
TABLE_BYTES = 4096
_ENTRY_BYTES = 32
_MAX_CACHE = 256


class Decoder:
    """Decodes the header blocks of one connection, in the order received.

    Args:
        max_bytes: Size of a decoded list, names and values and 32 bytes for each, that is accepted.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._limit = TABLE_BYTES
        self._size = 0
        self._table: deque[tuple[bytes, bytes]] = deque()
        #: Blocks that were decoded with the table as it is: clients repeat themselves.
        self._known: dict[bytes, Fields] = {}
        #: The block before, and its fields with the place where each ends and the size of the list so far: a call's
        #: own id stands behind what all calls have in common, which need not be decoded again.
        self._last = b""
        self._marks: list[tuple[int, int]] = []
        self._fields: Fields = ()

    def decode(self, block: bytes) -> Fields:
        """Decodes one block.

        Args:
            block: All of it.

        Raises:
            ConnectionFailed: It is malformed, or too large.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            fields, stateless, shared = self._decode(block)
        except IndexError:
            raise ConnectionFailed(COMPRESSION_ERROR, "a header block ends too early") from None
        except HpackError as exc:
            raise ConnectionFailed(COMPRESSION_ERROR, exc.reason) from None
        # One that begins like the one before has something of its own, and will not come again.
        if stateless and not shared:
            if len(self._known) >= _MAX_CACHE:
                self._known.clear()
            self._known[block] = fields
        return fields

    def _decode(self, block: bytes) -> tuple[Fields, bool, bool]:
        """The fields; whether they depend on no table; and whether most of them are those of the block before."""
        at, size, count = self._begun(block)
        fields = list(self._fields[:count])
        marks = self._marks[:count]
        stateless = True
        while at < len(block):
            first = block[at]
            if first & 0x80:
                index, at = read_integer(block, at, 7)
                field = self._entry(index)
            elif first & 0xE0 == 0x20:
                limit, at = read_integer(block, at, 5)
                if fields or limit > TABLE_BYTES:
                    raise ConnectionFailed(COMPRESSION_ERROR, "a header table was resized where it must not be")
                self._resize(limit)
                stateless = False
                continue
            else:
                keep = first & 0x40
                index, at = read_integer(block, at, 6 if keep else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = read_text(block, at)
                value, at = read_text(block, at)
                field = (name, value)
                if keep:
                    self._insert(field)
                    stateless = False
            fields.append(field)
            size += len(field[0]) + len(field[1]) + _ENTRY_BYTES
            if size > self._max_bytes:
                raise ConnectionFailed(COMPRESSION_ERROR, f"headers of more than {self._max_bytes} bytes")
            marks.append((at, size))
        found = tuple(fields)
        if stateless:
            self._last, self._marks, self._fields = block, marks, found
        return found, stateless, 2 * count > len(fields)

    def _begun(self, block: bytes) -> tuple[int, int, int]:
        """How far a block is the one before: bytes, size of the list, and fields."""
        last = self._last
        for index in range(len(self._marks) - 1, -1, -1):
            at, size = self._marks[index]
            if block.startswith(last[:at]):
                return at, size, index + 1
        return 0, 0, 0

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if 1 <= index <= len(STATIC_TABLE):
            return STATIC_TABLE[index - 1]
        index -= len(STATIC_TABLE) + 1
        if not 0 <= index < len(self._table):
            raise ConnectionFailed(COMPRESSION_ERROR, "a header refers to an entry that is not in the table")
        return self._table[index]

    def _insert(self, field: tuple[bytes, bytes]) -> None:
        self._forget()
        self._table.appendleft(field)
        self._size += len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._evict()

    def _forget(self) -> None:
        self._known = {}
        self._last, self._marks, self._fields = b"", [], ()

    def _resize(self, limit: int) -> None:
        self._forget()
        self._limit = limit
        self._evict()

    def _evict(self) -> None:
        while self._size > self._limit:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + _ENTRY_BYTES


def encode(fields: Fields) -> bytes:
    """Encodes fields as literals that the other side need not remember.

    Args:
        fields: Lower-case names, and values.
    """
    parts = []
    for name, value in fields:
        parts += [b"\0", sized(len(name)), name, sized(len(value)), value]
    return b"".join(parts)
