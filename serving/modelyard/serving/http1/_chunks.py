"""Bodies that come in chunks (RFC 9112, section 7.1)."""

from __future__ import annotations

import re

from modelyard.serving.http1._head import BadRequest

#: Size, and extensions that nobody needs.
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*")
#: Longer lines are an attack; so are this many bytes of trailers.
_MAX_LINE_BYTES = 256
_MAX_TRAILER_BYTES = 8 << 10


class Chunks:
    """Takes a body out of its chunks, as they come."""

    def __init__(self) -> None:
        self._rest = b""
        #: Bytes of the chunk that have not come, with the end of its line; 0 before a size.
        self._missing = 0
        self._trailers = False
        self._trailer_bytes = 0
        #: The body so far; pieces of it would take much memory where chunks are tiny.
        self.body = bytearray()

    def feed(self, data: bytes) -> bytes | None:
        """Takes what came.

        Args:
            data: Bytes of the connection.

        Returns:
            What follows the body; None where there is more of it to come.

        Raises:
            BadRequest: These are no chunks.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        at = 0
        while True:
            if self._missing > 2:
                part = data[at : at + self._missing - 2]
                self.body += part
                self._missing -= len(part)
                at += len(part)
                if self._missing > 2:
                    return None
            if self._missing:
                end = data[at : at + 2]
                if not b"\r\n".startswith(end):
                    raise BadRequest(400, "Invalid HTTP request: a chunk is longer than its size.")
                if len(end) < 2:
                    self._rest = end
                    return None
                self._missing = 0
                at += 2
            stop = data.find(b"\n", at)
            line = data[at:] if stop < 0 else data[at : stop + 1]
            if len(line) > _MAX_LINE_BYTES and not (self._trailers and len(line) <= _MAX_TRAILER_BYTES):
                raise BadRequest(400, "Invalid HTTP request: the line of a chunk's size is too long.")
            if stop < 0:
                self._rest = line
                return None
            at = stop + 1
            if line[-2:] != b"\r\n":
                raise BadRequest(400, "Invalid HTTP request: a line ends without a carriage return.")
            if self._trailers:
                if self._end(line[:-2]):
                    return data[at:]
            else:
                self._begin(line[:-2])

    def _begin(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise BadRequest(400, "Invalid HTTP request: the size of a chunk is no hexadecimal number.")
        size = int(match[1], 16)
        if size:
            self._missing = size + 2
        else:
            self._trailers = True

    def _end(self, line: bytes) -> bool:
        """Whether this is the last line; fields after the body say nothing here."""
        if not line:
            return True
        self._trailer_bytes += len(line) + 2
        if self._trailer_bytes > _MAX_TRAILER_BYTES or _TRAILER.fullmatch(line) is None:
            raise BadRequest(400, "Invalid HTTP request: what follows the last chunk is no header field.")
        return False
