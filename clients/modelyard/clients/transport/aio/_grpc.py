"""gRPC over HTTP/2 on an event loop: many calls on one connection, with the framing of the blocking transport."""

from __future__ import annotations

import asyncio
import time

from modelyard.clients.http import Http2Connection, Http2Stream
from modelyard.clients.protocols import Answer
from modelyard.clients.transport import Address, ClientOptions, Send
from modelyard.clients.transport.aio._sockets import AsyncPool, Channel
from modelyard.clients.transport.lean import Codec, failed, no_http2
from modelyard.errors import ModelyardError, ProtocolError

#: Calls in a write at most.
_BURST = 4


class AsyncLeanGrpcTransport:
    """Connections of an event loop: one, and more where a server limits the calls on each."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._codec = Codec(address, options)
        self._secure = address.secure
        self._pool: AsyncPool[_Channel] = AsyncPool(
            address, options, lambda: _Channel(self._codec, options.keepalive_s), alpn=("h2",), shared=True
        )

    async def send(self, send: Send[object]) -> Answer:
        """Sends one request and waits for its answer; cancelling the task cancels the call on the server."""
        codec = self._codec
        deadline = time.monotonic() + send.timeout_s
        try:
            channel = await self._pool.take(fresh=send.call.fresh, deadline=deadline)
            try:
                if self._secure and channel.alpn != "h2":
                    await channel.close()
                    raise no_http2(codec.url)
                stream = await channel.call(send, deadline)
            finally:
                self._pool.give(channel)
        except (OSError, EOFError) as exc:
            raise failed(exc, codec.url) from exc
        return codec.answer(stream, late=time.monotonic() >= deadline)

    async def close(self) -> None:
        await self._pool.close()


class _Channel(Channel):
    """One connection, many calls at a time."""

    def __init__(self, codec: Codec, keepalive_s: float | None) -> None:
        super().__init__(keepalive_s)
        self._codec = codec
        self._core = Http2Connection()
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._flushing = False
        self._begun = 0
        self._heard_at = time.monotonic()
        self._silent = False

    @property
    def takes_calls(self) -> bool:
        core = self._core
        return not (self.lost or self._silent) and core.closing is None and len(core.streams) < core.most_streams

    @property
    def idle(self) -> bool:
        return not self._core.streams

    @property
    def unread(self) -> int:
        """Bytes that wait to be sent."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    async def call(self, send: Send[object], deadline: float) -> Http2Stream:
        if self._core.closing is not None:
            # A goodbye may come with the end of TLS's handshake; what is asked after it has no answer.
            raise EOFError(self._core.closing)
        stream = self._codec.start(self._core, send)
        waiter = self._waiters[stream.number] = self._begin(deadline)
        # Calls that begin in one turn of the loop share writes, but the server shall not wait for the last of them.
        self._begun += 1
        if self._begun >= _BURST:
            self._flush()
        else:
            self._flush_soon()
        begun_at = time.monotonic()
        try:
            await waiter
        except TimeoutError:
            # Nothing has come since: the server may be gone, and each further call would leave its body here.
            self._silent = self._silent or self._heard_at < begun_at
            raise
        finally:
            del self._waiters[stream.number]
            self._end(waiter)
            if not stream.done:
                self._core.cancel(stream)
                # What the server has not read stays here, and each further call would add to it.
                self._silent = self._silent or self.unread > 0
                self._flush_soon()
        return stream

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        try:
            done = self._core.feed(data)
        except ProtocolError as exc:
            self.fail(ProtocolError(f"{self._codec.url} did not answer in HTTP as expected: {exc.message}."))
            return
        for stream in done:
            waiter = self._waiters.get(stream.number)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        if self._codec.limited:
            self._check()
        if done:
            # After the tasks that wait for these answers: their next calls go out without another turn of the loop.
            self._flush_soon()
        else:
            self._flush()

    def lose(self, exc: Exception) -> None:
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(exc)

    def _check(self) -> None:
        for stream in self._core.streams.values():
            try:
                self._codec.check(stream)
            except ModelyardError as exc:
                waiter = self._waiters[stream.number]
                if not waiter.done():
                    waiter.set_exception(exc)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        self._begun = 0
        out = self._core.output()
        if out and self.transport is not None and not self.transport.is_closing():
            self.transport.write(b"".join(out))
