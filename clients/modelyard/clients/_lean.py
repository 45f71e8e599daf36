"""Bytes over HTTP/1.1 on plain sockets: what a call to a model needs, and no more.

A general HTTP library spends several times as long on a small call as the call
itself takes (``make bench-clients`` has the figures). Connections are pooled
and reused; a request goes out in one ``send``. Framing is RFC 9112: status
line, header fields, then ``Content-Length``, chunks, or everything until the end.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import ssl
import threading
import time
import zlib
from typing import Any

from modelyard.clients._address import Address
from modelyard.clients._engine import Send
from modelyard.clients._flows import Answer
from modelyard.clients._http import answer_of, compressed, too_large
from modelyard.clients._options import ClientOptions
from modelyard.clients._tls import ssl_context
from modelyard.errors import DeadlineExceededError, InvalidRequestError, ProtocolError, UnavailableError

_CHUNK = 1 << 18
_MAX_HEAD = 1 << 16


class RestTransport:
    """A blocking pool of HTTP connections.

    Args:
        address: Where the server is.
        options: TLS, sizes, compression and keep-alive.

    Raises:
        ConfigurationError: A TLS file cannot be read.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._address = address
        self._url = address.http_url
        self._options = options
        # Reading the system's roots takes longer than everything else here: only where they are needed.
        self._tls = ssl_context(options.tls) if address.secure else None
        self._idle: collections.deque[tuple[_Connection, float]] = collections.deque()
        self._slots = threading.BoundedSemaphore(options.max_connections)
        self._closed = False
        name = address.server_name or address.host
        default = address.port == (443 if address.secure else 80)
        encoding = "gzip" if options.compression else "identity"
        self._common = f"host: {name if default else f'{name}:{address.port}'}\r\naccept-encoding: {encoding}\r\n"

    def send(self, send: Send[Any]) -> Answer:
        """Sends one request and waits for its answer.

        Args:
            send: The request, and the seconds until it is given up.

        Raises:
            ModelyardError: The class that the failure or the HTTP status stands for.
        """
        url = self._url + send.call.path
        deadline = time.monotonic() + send.timeout_s
        request = self._request(send, url)
        try:
            if not self._slots.acquire(timeout=send.timeout_s):
                raise TimeoutError("all connections are in use")
            try:
                status, headers, data = self._exchange(request, url, deadline)
            finally:
                self._slots.release()
        except TimeoutError as exc:
            raise DeadlineExceededError(f"{url}: no complete answer within {send.timeout_s:g} s ({exc}).") from exc
        except (OSError, EOFError) as exc:
            reason = str(exc).rstrip(".") or type(exc).__name__
            raise UnavailableError(f"{url} cannot be reached: {reason}. Is the server running?") from exc
        return answer_of(status, headers, data, url)

    def close(self) -> None:
        """Closes the connections."""
        self._closed = True
        while self._idle:
            self._idle.popleft()[0].close()

    def _request(self, send: Send[Any], url: str) -> bytes:
        call = send.call
        body, fields = call.body, [*send.headers, *call.headers]
        if body is not None:
            body, more = compressed(body, call, self._options.compression is not None)
            fields += [*more, ("content-length", str(len(body)))]
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
        target = f"{self._address.prefix}{call.path}"
        if not target.isascii() or not target.isprintable() or " " in target:
            raise InvalidRequestError(f"{url} cannot be asked: it holds characters that a URL cannot have.")
        head = f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\n{self._common}{lines}\r\n"
        return head.encode("latin-1") + (body or b"")

    def _exchange(self, request: bytes, url: str, deadline: float) -> tuple[int, dict[str, str], bytes]:
        connection = self._take(deadline)
        try:
            connection.write(request, deadline)
            status, headers, data, reusable = connection.read(url, deadline, self._options.max_message_bytes)
        except BaseException:
            connection.close()
            raise
        if reusable and not self._closed:
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()
        return status, headers, data

    def _take(self, deadline: float) -> _Connection:
        now = time.monotonic()
        keep_s = self._options.keepalive_s
        while True:
            try:
                # The one used last is the one least likely to have been closed.
                connection, since = self._idle.pop()
            except IndexError:
                break
            if (keep_s is None or now - since < keep_s) and not connection.stale():
                return connection
            connection.close()
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no time is left to connect")
        raw = socket.create_connection((self._address.host.strip("[]"), self._address.port), timeout=left)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return _Connection(raw)
        name = self._options.tls.server_name or self._address.server_name or self._address.host.strip("[]")
        try:
            raw.settimeout(max(deadline - time.monotonic(), 0.001))
            return _Connection(self._tls.wrap_socket(raw, server_hostname=name))
        except BaseException:
            raw.close()
            raise


class _Connection:
    """One connection: writes requests and reads answers."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()

    def stale(self) -> bool:
        """Whether the server has closed it, or says something that nobody asked for."""
        if self._buffer or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Closes it."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def write(self, data: bytes, deadline: float) -> None:
        """Sends bytes."""
        self._arm(deadline)
        self._socket.sendall(data)

    def read(self, url: str, deadline: float, limit: int | None) -> tuple[int, dict[str, str], bytes, bool]:
        """Reads an answer: status, header fields, body, and whether the connection can be used again."""
        while True:
            status, headers, modern = self._head(url, deadline)
            # Interim answers, which nobody asked for, come before the real one.
            if status >= 200:
                break
        keep = headers.get("connection", "keep-alive" if modern else "close").lower() != "close"
        if "chunked" in headers.get("transfer-encoding", "").lower():
            data = self._chunks(url, deadline, limit)
        elif status in (204, 304):
            data = b""
        elif "content-length" in headers:
            length = _number(headers["content-length"], 10, url)
            if limit is not None and length > limit:
                raise too_large(url, limit)
            data = self._exactly(length, deadline)
        else:
            keep = False
            data = self._rest(url, deadline, limit)
        encoding = headers.get("content-encoding", "identity").lower()
        return status, headers, _decoded(data, encoding, url, limit), keep

    def _head(self, url: str, deadline: float) -> tuple[int, dict[str, str], bool]:
        end = self._buffer.find(b"\r\n\r\n")
        while end < 0:
            start = bytes(self._buffer[:5])
            if not b"HTTP/".startswith(start) or len(self._buffer) > _MAX_HEAD:
                raise ProtocolError(f"{url} did not answer in HTTP as expected: it sent {bytes(self._buffer[:80])!r}.")
            self._more(deadline)
            end = self._buffer.find(b"\r\n\r\n")
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or parts[0] not in ("HTTP/1.1", "HTTP/1.0") or not parts[1].isdecimal():
            raise ProtocolError(f"{url} did not answer in HTTP as expected: its status line is {lines[0]!r}.")
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise ProtocolError(f"{url} did not answer in HTTP as expected: it sent the header {line!r}.")
            headers[name.lower()] = value.strip(" \t")
        return int(parts[1]), headers, parts[0] == "HTTP/1.1"

    def _exactly(self, length: int, deadline: float) -> bytes:
        if len(self._buffer) < length:
            have = len(self._buffer)
            # One buffer of the right size, filled in place: large answers are copied once.
            data = bytearray(length)
            data[:have] = self._buffer
            self._buffer.clear()
            view = memoryview(data)
            while have < length:
                self._arm(deadline)
                count = self._socket.recv_into(view[have:])
                if not count:
                    raise EOFError("the server closed the connection within its answer")
                have += count
            return bytes(data)
        data = self._buffer[:length]
        del self._buffer[:length]
        return bytes(data)

    def _chunks(self, url: str, deadline: float, limit: int | None) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            length = _number(self._line(url, deadline).partition(";")[0].strip(), 16, url)
            size += length
            if limit is not None and size > limit:
                raise too_large(url, limit)
            if not length:
                while self._line(url, deadline):
                    pass
                return b"".join(parts)
            parts.append(self._exactly(length, deadline))
            if self._line(url, deadline):
                raise ProtocolError(
                    f"{url} did not answer in HTTP as expected: a chunk has another length than it says."
                )

    def _line(self, url: str, deadline: float) -> str:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD:
                raise ProtocolError(f"{url} did not answer in HTTP as expected: a line has no end.")
            self._more(deadline)
        line = bytes(self._buffer[:end]).decode("latin-1")
        del self._buffer[: end + 2]
        return line

    def _rest(self, url: str, deadline: float, limit: int | None) -> bytes:
        with contextlib.suppress(EOFError):
            while limit is None or len(self._buffer) <= limit:
                self._more(deadline)
        if limit is not None and len(self._buffer) > limit:
            raise too_large(url, limit)
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def _more(self, deadline: float) -> None:
        self._arm(deadline)
        data = self._socket.recv(_CHUNK)
        if not data:
            raise EOFError("the server closed the connection without a complete answer")
        self._buffer += data

    def _arm(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        self._socket.settimeout(left)


def _number(text: str, base: int, url: str) -> int:
    if not (text.isascii() and text.isalnum()):
        raise ProtocolError(f"{url} did not answer in HTTP as expected: the length of its body is {text!r}.")
    try:
        return int(text, base)
    except ValueError as exc:
        raise ProtocolError(f"{url} did not answer in HTTP as expected: the length of its body is {text!r}.") from exc


def _decoded(data: bytes, encoding: str, url: str, limit: int | None) -> bytes:
    if encoding == "identity":
        return data
    if encoding != "gzip":
        raise ProtocolError(f"{url} answered with the encoding {encoding!r}; expected gzip or none.")
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = inflater.decompress(data, 0 if limit is None else limit + 1)
    except zlib.error as exc:
        raise ProtocolError(f"{url} answered with damaged gzip: {exc}.") from exc
    if limit is not None and len(text) > limit:
        raise too_large(url, limit)
    return text
