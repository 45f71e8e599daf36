"""Unary gRPC over HTTP/2 (RFC 9113) for a load generator: encoded requests out, status and bytes in.

grpcio's asyncio client spends about as much on a call as the server does; this
one spends a tenth of that. It offers no header table and wide windows, so that
there is little to keep.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque

from modelyard.loadtests import _hpack
from modelyard.loadtests._outcomes import GRPC_REFUSALS, Outcome
from modelyard.loadtests._sender import Cancel, Done, Endpoint
from modelyard.loadtests.traffic import Request
from modelyard.wire.hpack import HpackError

_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_WIDE = (1 << 31) - 1
_FRAME = struct.Struct(">HBBBL")
_U32 = struct.Struct(">L")


class Http2Sender:
    """Spreads calls over a few connections.

    Args:
        endpoint: Where the server is.
        connections: How many.
        timeout_s: Deadline that the server is told.
    """

    def __init__(self, endpoint: Endpoint, *, connections: int = 4, timeout_s: float = 10.0) -> None:
        self._endpoint = endpoint
        self._timeout = f"{max(int(timeout_s * 1000), 1)}m".encode()
        self._slots: list[_Connection | None] = [None] * connections
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
        """Closes the connections."""
        for connection in self._slots:
            if connection is not None:
                await connection.close()

    def _block(self, path: str) -> bytes:
        scheme = b"\x87" if self._endpoint.tls else b"\x86"
        return b"".join(
            (
                b"\x83", scheme, _hpack.named(4, (self._endpoint.prefix + path).encode()),
                _hpack.named(1, self._endpoint.authority.encode()), _hpack.literal(b"te", b"trailers"),
                _hpack.named(31, b"application/grpc"), _hpack.literal(b"grpc-timeout", self._timeout),
                _hpack.named(58, b"modelyard-loadtest"),
            )
        )  # fmt: skip


class _Call:
    __slots__ = ("body", "done", "left", "stream", "window")

    def __init__(self, stream: int, done: Done, left: memoryview, window: int) -> None:
        self.stream = stream
        self.done = done
        self.left = left
        self.window = window
        self.body: bytes | bytearray = b""


class _Connection(asyncio.Protocol):
    """One connection; calls made before it is up wait in it."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.finished = False
        self._endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, _Call] = {}
        self._waiting: deque[tuple[bytes, bytes, Done, list[int]]] = deque()
        self._stream = 1
        self._out: list[bytes] = []
        self._buffer = b""
        self._block = b""
        self._window = self._initial = 65535
        self._frame = 16384
        self._streams = 100
        self._received = 0
        self._seen: dict[bytes, tuple[bytes, bytes, bytes]] = {}
        self._task = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self, self._endpoint.host, self._endpoint.port, ssl=self._endpoint.tls
            )
        except OSError as exc:
            self._fail(str(exc))

    def call(self, block: bytes, body: bytes, done: Done) -> Cancel:
        """Starts a call, or lets it wait for its turn."""
        number = [0]
        if self._transport is None or len(self._calls) >= self._streams:
            self._waiting.append((block, body, done, number))
        else:
            self._start(block, body, done, number)
        return lambda: self._cancel(number)

    def _start(self, block: bytes, body: bytes, done: Done, number: list[int]) -> None:
        stream = number[0] = self._stream
        self._stream += 2
        if self._stream > _WIDE - 2:
            self.finished = True
        data = b"\x00" + _U32.pack(len(body)) + body
        self._put(_HEADERS, _END_HEADERS, stream, block)
        if len(data) <= min(self._window, self._initial, self._frame):
            self._window -= len(data)
            self._calls[stream] = _Call(stream, done, memoryview(b""), 0)
            self._put(_DATA, _END_STREAM, stream, data)
            return
        call = self._calls[stream] = _Call(stream, done, memoryview(data), self._initial)
        self._push(call)

    def _push(self, call: _Call) -> None:
        """Sends as much of a large request as the windows allow."""
        while call.left:
            size = min(len(call.left), self._window, call.window, self._frame)
            if size <= 0:
                return
            part, call.left = call.left[:size], call.left[size:]
            self._window -= size
            call.window -= size
            self._put(_DATA, 0 if call.left else _END_STREAM, call.stream, bytes(part))

    def _put(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if not self._out:
            # One system call for everything that this turn of the loop has to say.
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(_FRAME.pack(len(payload) >> 8, len(payload) & 255, kind, flags, stream) + payload)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _cancel(self, number: list[int]) -> None:
        if not number[0]:
            self._waiting = deque(each for each in self._waiting if each[3] is not number)
        elif self._calls.pop(number[0], None) is not None:
            self._put(_RST, 0, number[0], _U32.pack(8))

    async def close(self) -> None:
        """Closes it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        # No header table, no pushes, the widest windows.
        settings = struct.pack(">HLHLHL", 1, 0, 2, 0, 4, _WIDE)
        self._out.insert(0, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self._out.append(_FRAME.pack(0, len(settings), _SETTINGS, 0, 0) + settings)
        self._put(_WINDOW, 0, 0, _U32.pack(_WIDE - 65535))
        self._flush()
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._calls) < self._streams:
            self._start(*self._waiting.popleft())

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection broke: {exc or 'closed by the server'}")

    def _fail(self, reason: str) -> None:
        self.finished = True
        calls, self._calls = list(self._calls.values()), {}
        waiting, self._waiting = list(self._waiting), deque()
        for done in [call.done for call in calls] + [each[2] for each in waiting]:
            done(Outcome.UNREACHABLE, reason.encode())

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at, size = 0, len(buffer)
        while size - at >= 9:
            high, low, kind, flags, stream = _FRAME.unpack_from(buffer, at)
            length = high << 8 | low
            if size - at - 9 < length:
                break
            self._handle(kind, flags, stream & _WIDE, buffer[at + 9 : at + 9 + length])
            at += 9 + length
        self._buffer = buffer[at:]

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            self._data(flags, stream, payload)
        elif kind in (_HEADERS, _CONTINUATION):
            if kind == _HEADERS:
                if flags & _PADDED:
                    payload = payload[1 : len(payload) - payload[0]]
                if flags & _PRIORITY:
                    payload = payload[5:]
            self._block += payload
            self._ended = flags & _END_STREAM if kind == _HEADERS else self._ended
            if flags & _END_HEADERS:
                block, self._block = self._block, b""
                self._headers(block, stream)
        elif kind == _SETTINGS and not flags & _ACK:
            self._settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._put(_PING, _ACK, 0, payload)
        elif kind == _WINDOW:
            self._widen(stream, _U32.unpack(payload)[0])
        elif kind == _RST:
            call = self._calls.pop(stream, None)
            if call is not None:
                # REFUSED_STREAM and ENHANCE_YOUR_CALM are the server's "not now".
                code = _U32.unpack(payload)[0]
                outcome = Outcome.REFUSED if code in (7, 11) else Outcome.FAILED
                self._finish(call, outcome, f"stream reset with code {code}".encode())
        elif kind == _GOAWAY:
            self.finished = True
            last = _U32.unpack_from(payload)[0]
            for number in [each for each in self._calls if each > last]:
                self._finish(self._calls.pop(number), Outcome.UNREACHABLE, b"the server is going away")

    _ended = 0

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received > 1 << 29:
            self._put(_WINDOW, 0, 0, _U32.pack(self._received))
            self._received = 0
        if flags & _PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        call = self._calls.get(stream)
        if call is None:
            return
        if not call.body:
            call.body = payload
        else:
            if isinstance(call.body, bytes):
                call.body = bytearray(call.body)
            call.body += payload
        if flags & _END_STREAM:
            del self._calls[stream]
            self._finish(call, Outcome.FAILED, b"the answer has no status")

    def _headers(self, block: bytes, stream: int) -> None:
        call = self._calls.get(stream)
        if call is None or not self._ended:
            return
        del self._calls[stream]
        known = self._seen.get(block)
        if known is None:
            try:
                named = dict(_hpack.fields(block))
            except (HpackError, IndexError) as exc:
                self._finish(call, Outcome.FAILED, f"headers that cannot be read: {exc}".encode())
                return
            known = named.get(b"grpc-status", b""), named.get(b"grpc-message", b""), named.get(b":status", b"200")
            if len(self._seen) < 1000:
                self._seen[block] = known
        status, message, http = known
        if status == b"0":
            self._finish(call, Outcome.OK, bytes(call.body[5:]))
        elif status.isdigit():
            outcome = Outcome.REFUSED if int(status) in GRPC_REFUSALS else Outcome.FAILED
            if status == b"4":
                outcome = Outcome.TIMEOUT
            self._finish(call, outcome, b"gRPC status " + status + b": " + message[:300])
        else:
            outcome = Outcome.REFUSED if http in (b"429", b"503") else Outcome.FAILED
            self._finish(call, outcome, b"HTTP " + http + b" without a gRPC status")

    def _finish(self, call: _Call, outcome: Outcome, body: bytes) -> None:
        if self._waiting:
            self._admit()
        call.done(outcome, body)

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            name, value = struct.unpack_from(">HL", payload, at)
            if name == 3:
                self._streams = value
            elif name == 4:
                for call in self._calls.values():
                    call.window += value - self._initial
                self._initial = value
            elif name == 5:
                self._frame = value
        self._put(_SETTINGS, _ACK, 0, b"")
        self._resume()
        self._admit()

    def _widen(self, stream: int, amount: int) -> None:
        if not stream:
            self._window += amount
            self._resume()
        elif stream in self._calls:
            self._calls[stream].window += amount
            self._push(self._calls[stream])

    def _resume(self) -> None:
        for call in [each for each in self._calls.values() if each.left]:
            self._push(call)
