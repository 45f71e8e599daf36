"""gRPC over HTTP/2 on plain sockets: calls of one message each way, and no more.

grpcio spends several times as long on a small call (``make bench NAME=clients`` has the figures): it hands every call
to another thread and back. Here the caller's own thread writes the request and reads the answer.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import struct
import time
import zlib
from urllib.parse import unquote

from modelyard.clients.http import Http2Connection, Http2Stream, encode_fields, inflated, too_large
from modelyard.clients.protocols import Answer
from modelyard.clients.transport import Address, ClientOptions, Send
from modelyard.clients.transport.lean._grpc_status import error_of_status
from modelyard.clients.transport.lean._sockets import Connection, SocketPool, arm
from modelyard.errors import ModelyardError, ProtocolError, UnavailableError
from modelyard.wire import decimal

_CHUNK = 1 << 18
_MOST_BETWEEN = 4
_HEAD = 5
#: The head of a message: whether it is compressed, and its size.
_READ_HEAD = struct.Struct(">BI")
_LONGEST_TIMEOUT = 10**8
_GZIP = zlib.MAX_WBITS | 16
_CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
#: gRPC's own tables, for answers that are not a gRPC server's, and for streams that were broken off.
_CODE_OF_HTTP = {
    "400": "INTERNAL", "401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED", "404": "UNIMPLEMENTED",
    "429": "UNAVAILABLE", "502": "UNAVAILABLE", "503": "UNAVAILABLE", "504": "UNAVAILABLE",
}  # fmt: skip
_CODE_OF_RESET = {7: "UNAVAILABLE", 8: "CANCELLED", 11: "RESOURCE_EXHAUSTED", 12: "PERMISSION_DENIED"}


class Codec:
    """What goes into a stream and what comes out of it."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        name = options.tls.server_name if address.secure else None
        if name is None:
            name = address.authority if address.server_name is None else f"{address.server_name}:{address.port}"
        self.url = address.url
        self._limit = options.max_message_bytes
        self._compress = options.compression is not None
        self._first = encode_fields([(":method", "POST"), (":scheme", "https" if address.secure else "http")])
        self._last = encode_fields(
            [
                (":authority", name),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "modelyard"),
                ("grpc-accept-encoding", "identity,gzip" if self._compress else "identity"),
                *([("grpc-encoding", "gzip")] if self._compress else []),
            ]
        )
        self._of_path: dict[str, bytes] = {}

    def start(self, connection: Http2Connection, send: Send[object]) -> Http2Stream:
        path = send.call.path
        common = self._of_path.get(path)
        if common is None:
            common = self._of_path[path] = self._first + encode_fields([(":path", path)]) + self._last
        headers = common + _timeout(math.ceil(send.timeout_s * 1000)) + encode_fields(send.headers)
        message = send.call.body or b""
        if self._compress:
            message = zlib.compress(message, level=1, wbits=_GZIP)
        return connection.start(headers, message, compressed=self._compress)

    @property
    def limited(self) -> bool:
        """Whether :meth:`check` has anything to check."""
        return self._limit is not None

    def check(self, stream: Http2Stream) -> None:
        """Stops an answer that is too long while it comes."""
        if self._limit is not None and stream.size > self._limit + _HEAD:
            raise too_large(self.url, self._limit)

    def answer(self, stream: Http2Stream, *, late: bool) -> Answer:
        """What came of a call."""
        self.check(stream)
        trailers = dict(stream.trailers)
        status = trailers.get("grpc-status")
        if status == "0":
            return Answer(self._message(stream))
        raise self._error(stream, status, trailers, late=late)

    def _message(self, stream: Http2Stream) -> bytes:
        data = stream.data
        packed, size = _READ_HEAD.unpack_from(data) if len(data) >= _HEAD else (0, -1)
        if size != len(data) - _HEAD:
            raise ProtocolError(f"{self.url} answered with {len(data)} bytes, which are not one gRPC message.")
        if not packed:
            return bytes(data[_HEAD:])
        return inflated(data[_HEAD:], dict(stream.headers).get("grpc-encoding"), self.url, self._limit)

    def _error(
        self, stream: Http2Stream, status: str | None, trailers: dict[str, str], *, late: bool
    ) -> ModelyardError:
        details: str | None
        if stream.reset is not None:
            code = "DEADLINE_EXCEEDED" if late else _CODE_OF_RESET.get(stream.reset, "INTERNAL")
            details = f"the server broke the call off with HTTP/2's code {stream.reset}"
        elif (number := decimal(status or "")) is not None and number < len(_CODES):
            code, details = _CODES[number], unquote(trailers.get("grpc-message", ""))
        else:
            http = (dict(stream.headers) or trailers).get(":status", "none")
            code = _CODE_OF_HTTP.get(http, "UNKNOWN")
            details = f"the server answered with HTTP status {http} and no status of gRPC's"
        return error_of_status(code, details, stream.trailers, self.url)


def _timeout(millis: int) -> bytes:
    text = f"{millis}m" if millis < _LONGEST_TIMEOUT else f"{min(millis // 1000, _LONGEST_TIMEOUT - 1)}S"
    return encode_fields([("grpc-timeout", text)])


def no_http2(url: str) -> UnavailableError:
    """The error for a server behind TLS that speaks something else."""
    return UnavailableError(f"{url}: the server offers no HTTP/2 (by ALPN), which gRPC needs.")


class LeanGrpcTransport:
    """A blocking pool of connections."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._codec = Codec(address, options)
        self._pool: SocketPool[_Connection] = SocketPool(
            address, options, lambda sock: _Connection(sock, address.url), ("h2",)
        )

    def send(self, send: Send[object]) -> Answer:
        deadline = time.monotonic() + send.timeout_s
        with self._pool.slot(self._codec.url, send.timeout_s):
            stream = self._pool.exchange(
                lambda connection: connection.exchange(self._codec, send, deadline), deadline, fresh=send.call.fresh
            )
        return self._codec.answer(stream, late=time.monotonic() >= deadline)

    def close(self) -> None:
        self._pool.close()


class _Connection(Connection):
    """One connection, one call at a time."""

    def __init__(self, sock: socket.socket, url: str) -> None:
        super().__init__(sock)
        self._core = Http2Connection()
        if isinstance(sock, ssl.SSLSocket) and sock.selected_alpn_protocol() != "h2":
            sock.close()
            raise no_http2(url)

    def usable(self) -> bool:
        """Whether it can carry another call; reads what has come in the meantime."""
        self._socket.settimeout(0)
        try:
            # A server that has said more than this between calls may never stop.
            for _ in range(_MOST_BETWEEN):
                if not (data := self._socket.recv(_CHUNK)):
                    break
                self._core.feed(data)
        except (BlockingIOError, ssl.SSLWantReadError):
            return self._core.closing is None
        except (OSError, ProtocolError):
            return False
        return False

    def exchange(self, codec: Codec, send: Send[object], deadline: float) -> Http2Stream:
        core = self._core
        stream = codec.start(core, send)
        try:
            while True:
                if out := core.output():
                    arm(self._socket, deadline)
                    # A server that ends the connection while this sends has said why; reading fails, too, where not.
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        self._socket.sendall(b"".join(out))
                if stream.done:
                    self.reusable = core.closing is None
                    return stream
                arm(self._socket, deadline)
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise EOFError("the server closed the connection without a complete answer")
                core.feed(data)
                codec.check(stream)
        except ProtocolError as exc:
            raise ProtocolError(f"{codec.url} did not answer in HTTP as expected: {exc.message}.") from exc
