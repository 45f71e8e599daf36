"""Answers of HTTP/1.1 (RFC 9112), with no I/O in it: status line, header fields, and every framing of a body.

A transport runs :meth:`Reader.answer`, a generator that takes bytes as
they come; blocking and asynchronous transports differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from modelyard.clients.http._bodies import TLS_ALERT, compressed, inflated, too_large
from modelyard.clients.http._short import cache_short
from modelyard.clients.protocols import Call
from modelyard.clients.transport import Address, ClientOptions
from modelyard.errors import InvalidRequestError, ProtocolError
from modelyard.wire import decimal

_T = TypeVar("_T")
_MAX_HEAD = 1 << 16
#: Takes bytes, the empty ones at the end of the connection.
Bytes = Generator[None, bytes, _T]


#: Who reads these otherwise than a proxy takes a part of one answer for the next (RFC 9112, section 6.3).
_FRAMING = ("content-length", "transfer-encoding")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What comes before a body; ``length`` as it was sent."""

    status: int
    headers: Mapping[str, str]
    keep: bool
    chunked: bool
    length: str | None
    encoding: str


# Made for every answer: a frozen one would set each of its attributes by a call.
@dataclass(slots=True)
class Reply:
    """An answer: headers by lower-case name, the body decompressed; ``reusable``: the connection takes another call."""

    status: int
    headers: Mapping[str, str]
    data: bytes
    reusable: bool


class Requests:
    """Writes requests."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._prefix = address.prefix
        self._compress = options.compression is not None
        name = address.server_name or address.host
        default = address.port == (443 if address.secure else 80)
        encoding = "gzip" if self._compress else "identity"
        self._common = f"host: {name if default else f'{name}:{address.port}'}\r\naccept-encoding: {encoding}\r\n"

    def write(self, call: Call, headers: tuple[tuple[str, str], ...], url: str) -> bytes:
        body, fields = call.body, [*headers, *call.headers]
        if body is not None:
            body, more = compressed(body, call, self._compress)
            fields += [*more, ("content-length", str(len(body)))]
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
        target = f"{self._prefix}{call.path}"
        if not target.isascii() or not target.isprintable() or " " in target:
            raise InvalidRequestError(f"{url} cannot be asked: it holds characters that a URL cannot have.")
        head = f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\n{self._common}{lines}\r\n"
        return head.encode("latin-1") + (body or b"")


class Reader:
    """What has arrived on one connection and is not read yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def empty(self) -> bool:
        """Whether that is nothing, as it has to be between calls."""
        return not self._buffer

    def answer(self, url: str, limit: int | None) -> Bytes[Reply]:
        while True:
            head = yield from self._head(url)
            status, headers, keep = head.status, head.headers, head.keep
            # Interim answers come before the real one.
            if status >= 200:
                break
        if head.chunked:
            data = yield from self._chunks(url, limit)
        elif status in (204, 304):
            data = b""
        elif head.length is not None:
            length = _number(head.length, 10, url)
            if limit is not None and length > limit:
                raise too_large(url, limit)
            data = yield from self._exactly(length)
        else:
            keep = False
            data = yield from self._rest(url, limit)
        if head.encoding != "identity":
            data = inflated(data, head.encoding, url, limit)
        return Reply(status, headers, data, keep)

    def _head(self, url: str) -> Bytes[_Head]:
        if not self._buffer:
            yield from self._more()
        end = self._buffer.find(b"\r\n\r\n")
        while end < 0:
            start = bytes(self._buffer[:5])
            if start.startswith(TLS_ALERT):
                raise ProtocolError(f"{url} answered in TLS: begin the URL with https://.")
            if not b"HTTP/".startswith(start) or len(self._buffer) > _MAX_HEAD:
                raise ProtocolError(f"{url} did not answer in HTTP as expected: it sent {bytes(self._buffer[:80])!r}.")
            yield from self._more()
            end = self._buffer.find(b"\r\n\r\n")
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        try:
            return _parsed(head)
        except ValueError as exc:
            raise ProtocolError(f"{url} did not answer in HTTP as expected: {exc}.") from exc

    def _exactly(self, length: int) -> Bytes[bytes]:
        parts = [bytes(self._buffer[:length])]
        del self._buffer[:length]
        missing = length - len(parts[0])
        while missing > 0:
            data = yield
            if not data:
                raise EOFError("the server closed the connection within its answer")
            parts.append(data[:missing])
            self._buffer += data[missing:]
            missing -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _chunks(self, url: str, limit: int | None) -> Bytes[bytes]:
        # One object: chunks of two bytes would take 60 times their size.
        body = bytearray()
        while True:
            line = yield from self._line(url)
            length = _number(line.partition(";")[0].strip(), 16, url)
            if limit is not None and len(body) + length > limit:
                raise too_large(url, limit)
            if not length:
                while (yield from self._line(url)):
                    pass
                return bytes(body)
            body += yield from self._exactly(length)
            if (yield from self._line(url)):
                raise ProtocolError(
                    f"{url} did not answer in HTTP as expected: a chunk has another length than it says."
                )

    def _line(self, url: str) -> Bytes[str]:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise ProtocolError(f"{url} did not answer in HTTP as expected: a line has no end.")
            yield from self._more()
        line = bytes(self._buffer[:end]).decode("latin-1")
        del self._buffer[: end + 2]
        return line

    def _rest(self, url: str, limit: int | None) -> Bytes[bytes]:
        while limit is None or len(self._buffer) <= limit:
            data = yield
            if not data:
                break
            self._buffer += data
        if limit is not None and len(self._buffer) > limit:
            raise too_large(url, limit)
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def _more(self) -> Bytes[None]:
        data = yield
        if not data:
            raise EOFError("the server closed the connection without a complete answer")
        self._buffer += data


@cache_short
def _parsed(head: bytes) -> _Head:
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    if len(parts) < 2 or parts[0] not in ("HTTP/1.1", "HTTP/1.0") or len(parts[1]) != 3 or decimal(parts[1]) is None:
        raise ValueError(f"its status line is {lines[0]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"it sent the header {line!r}")
        name, value = name.lower(), value.strip(" \t")
        if name in _FRAMING and headers.get(name, value) != value:
            raise ValueError(f"it sent the header {name} as {headers[name]!r} and as {value!r}")
        headers[name] = value
    coding = headers.get("transfer-encoding")
    if coding is not None and (coding.lower() != "chunked" or "content-length" in headers):
        raise ValueError(f"it sent the header transfer-encoding: {coding!r}; expected chunked, and no content-length")
    connection = headers.get("connection", "keep-alive" if parts[0] == "HTTP/1.1" else "close")
    return _Head(
        status=int(parts[1]),
        headers=MappingProxyType(headers),
        keep=connection.lower() != "close",
        chunked=coding is not None,
        length=headers.get("content-length"),
        encoding=headers.get("content-encoding", "identity").lower(),
    )


def _number(text: str, base: int, url: str) -> int:
    if not (text.isascii() and text.isalnum()):
        raise ProtocolError(f"{url} did not answer in HTTP as expected: the length of its body is {text!r}.")
    try:
        return int(text, base)
    except ValueError as exc:
        raise ProtocolError(f"{url} did not answer in HTTP as expected: the length of its body is {text!r}.") from exc
