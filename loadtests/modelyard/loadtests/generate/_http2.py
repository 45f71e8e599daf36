"""Unary gRPC for a load generator: encoded requests out, status and bytes in.

grpcio's asyncio client spends about as much on a call as the server does; this one spends a tenth of that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from modelyard.clients.http import Http2Connection, Http2Stream, encode_fields
from modelyard.errors import ProtocolError
from modelyard.loadtests.generate._outcomes import GRPC_REFUSALS, Outcome
from modelyard.loadtests.generate._sender import Cancel, Done, Endpoint
from modelyard.loadtests.traffic import Request
from modelyard.wire import decimal

_CONNECTIONS = 4
#: Streams of a connection before the server has said how many it takes: what RFC 9113 asks servers to allow.
_FIRST_STREAMS = 100
#: REFUSED_STREAM and ENHANCE_YOUR_CALM are a server's "not now".
_REFUSED, _CALM = 7, 11
#: Before a message: whether it is compressed, and its length.
_MESSAGE_HEAD = 5


class Http2Sender:
    """Spreads calls over a few connections."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout = f"{max(int(timeout_s * 1000), 1)}m"
        self._slots: list[_Connection | None] = [None] * _CONNECTIONS
        self._next = 0
        self._blocks: dict[str, bytes] = {}

    def send(self, request: Request, done: Done) -> Cancel:
        """Sends a call: see :class:`Sender`."""
        self._next = (self._next + 1) % len(self._slots)
        connection = self._slots[self._next]
        if connection is None or connection.finished:
            connection = self._slots[self._next] = _Connection(self._endpoint)
        block = self._blocks.get(request.path)
        if block is None:
            block = self._blocks[request.path] = self._block(request.path)
        return connection.call(block, request.body or b"", done)

    async def close(self) -> None:
        for connection in self._slots:
            if connection is not None:
                await connection.close()

    def _block(self, path: str) -> bytes:
        return encode_fields(
            [
                (":method", "POST"),
                (":scheme", "https" if self._endpoint.tls else "http"),
                (":path", self._endpoint.prefix + path),
                (":authority", self._endpoint.authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("grpc-timeout", self._timeout),
                ("user-agent", "modelyard-loadtest"),
                *self._endpoint.headers,
            ]
        )


class _Call:
    __slots__ = ("block", "body", "done", "stream")

    def __init__(self, block: bytes, body: bytes, done: Done) -> None:
        self.block = block
        self.body = body
        self.done = done
        self.stream: Http2Stream | None = None


class _Connection(asyncio.Protocol):
    """One connection; calls made before it is up wait in it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._core = Http2Connection()
        self._lost = False
        self._settled = False
        self._flushing = False
        self._ok: object = None
        self._transport: asyncio.Transport | None = None
        self._calls: dict[Http2Stream, _Call] = {}
        self._waiting: deque[_Call] = deque()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._open())

    @property
    def finished(self) -> bool:
        """Whether it takes no more calls."""
        return self._lost or self._core.closing is not None

    async def _open(self) -> None:
        try:
            await self._loop.create_connection(
                lambda: self, self._endpoint.host, self._endpoint.port, ssl=self._endpoint.tls
            )
        except OSError as exc:
            self._fail(str(exc))

    def call(self, block: bytes, body: bytes, done: Done) -> Cancel:
        """Starts a call, or lets it wait for its turn."""
        call = _Call(block, body, done)
        self._waiting.append(call)
        if self._transport is not None:
            self._admit()
        return partial(self._cancel, call)

    def _admit(self) -> None:
        """Starts calls, as many as the server takes."""
        core, waiting, calls = self._core, self._waiting, self._calls
        most = core.most_streams if self._settled else _FIRST_STREAMS
        while waiting and len(calls) < most and core.closing is None:
            call = waiting.popleft()
            call.stream = stream = core.start(call.block, call.body)
            calls[stream] = call
        if not self._flushing:
            # One system call for everything that this turn of the loop has to say.
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _cancel(self, call: _Call) -> None:
        if call.stream is None:
            if call in self._waiting:
                self._waiting.remove(call)
        elif self._calls.pop(call.stream, None) is not None:
            self._core.cancel(call.stream)
            self._admit()

    async def close(self) -> None:
        """Closes it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._admit()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection broke: {exc or 'closed by the server'}")

    def _fail(self, reason: str) -> None:
        self._lost = True
        calls = [*self._calls.values(), *self._waiting]
        self._calls.clear()
        self._waiting.clear()
        for call in calls:
            call.done(Outcome.UNREACHABLE, reason.encode())

    def data_received(self, data: bytes) -> None:
        try:
            streams = self._core.feed(data)
        except ProtocolError as exc:
            self._fail(exc.message)
            self.abort()
            return
        self._settled = True
        done = [(self._calls.pop(stream).done, stream) for stream in streams]
        self._admit()
        for call, stream in done:
            if stream.trailers is self._ok:
                call(Outcome.OK, _message(stream))
            else:
                call(*self._outcome(stream))
        if self._core.closing is not None:
            while self._waiting:
                self._waiting.popleft().done(Outcome.UNREACHABLE, self._core.closing.encode())

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _outcome(self, stream: Http2Stream) -> tuple[Outcome, bytes]:
        trailers = dict(stream.trailers)
        status = trailers.get("grpc-status", "")
        if status == "0":
            # The engine remembers blocks of headers: the next one that says the same is this one.
            self._ok = stream.trailers
            return Outcome.OK, _message(stream)
        if stream.reset is not None:
            if self._core.closing is not None and stream.reset == _REFUSED:
                return Outcome.UNREACHABLE, self._core.closing.encode()
            outcome = Outcome.REFUSED if stream.reset in (_REFUSED, _CALM) else Outcome.FAILED
            return outcome, f"stream reset with code {stream.reset}".encode()
        if (code := decimal(status)) is not None:
            outcome = Outcome.REFUSED if code in GRPC_REFUSALS else Outcome.FAILED
            if status == "4":
                outcome = Outcome.TIMEOUT
            return outcome, f"gRPC status {status}: {trailers.get('grpc-message', '')[:300]}".encode()
        http = dict(stream.headers).get(":status") or trailers.get(":status", "200")
        outcome = Outcome.REFUSED if http in ("429", "503") else Outcome.FAILED
        return outcome, f"HTTP {http} without a gRPC status".encode()

    def _flush(self) -> None:
        self._flushing = False
        out = self._core.output()
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(out))


def _message(stream: Http2Stream) -> bytes:
    return bytes(stream.data[_MESSAGE_HEAD:])
