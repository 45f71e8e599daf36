"""HTTP/1.1 on an event loop, with the framing of the blocking transport."""

from __future__ import annotations

import asyncio
import time

from modelyard.clients.http import Bytes, Http1Reader, Http1Requests, Reply, answer_of
from modelyard.clients.protocols import Answer
from modelyard.clients.transport import Address, ClientOptions, Send
from modelyard.clients.transport.aio._sockets import AsyncPool, Channel
from modelyard.clients.transport.lean import failed
from modelyard.errors import ModelyardError


class AsyncLeanRestTransport:
    """Connections of an event loop; a call has one for itself."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._url = address.http_url
        self._limit = options.max_message_bytes
        self._requests = Http1Requests(address, options)
        self._pool: AsyncPool[_Channel] = AsyncPool(address, options, lambda: _Channel(options.keepalive_s))

    async def send(self, send: Send[object]) -> Answer:
        """Sends one request and waits for its answer; cancelling the task closes the connection."""
        url = self._url + send.call.path
        request = self._requests.write(send.call, send.headers, url)
        deadline = time.monotonic() + send.timeout_s
        try:
            channel = await self._pool.take(fresh=send.call.fresh, deadline=deadline)
            try:
                reply = await channel.call(request, url, self._limit, deadline)
            finally:
                self._pool.give(channel)
        except (OSError, EOFError) as exc:
            raise failed(exc, url) from exc
        return answer_of(reply.status, reply.headers, reply.data, url)

    async def close(self) -> None:
        await self._pool.close()


class _Channel(Channel):
    """One connection, one call at a time."""

    def __init__(self, keepalive_s: float | None) -> None:
        super().__init__(keepalive_s)
        self._reader = Http1Reader()
        self._answer: Bytes[Reply] | None = None
        self._waiter: asyncio.Future[Reply] | None = None

    @property
    def takes_calls(self) -> bool:
        return self._waiter is None and not self.lost

    @property
    def idle(self) -> bool:
        return self._waiter is None

    async def call(self, request: bytes, url: str, limit: int | None, deadline: float) -> Reply:
        if self.transport is None:
            raise EOFError("the server closed the connection")
        waiter = self._waiter = self._begin(deadline)
        self._answer = self._reader.answer(url, limit)
        next(self._answer)
        self.transport.write(request)
        try:
            reply: Reply = await waiter
        except BaseException:
            # Whatever came now would be taken for the next call's answer.
            self.lost = True
            self.transport.abort()
            raise
        finally:
            self._waiter = self._answer = None
            self._end(waiter)
        if not reply.reusable:
            self.lost = True
            self.transport.close()
        return reply

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter
        if self._answer is None or waiter is None or waiter.done():
            self.fail(EOFError("the server sent bytes without a request"))
            return
        try:
            self._answer.send(data)
        except StopIteration as stop:
            reply: Reply = stop.value
            # What comes after an answer would be taken for the next call's.
            reply.reusable = reply.reusable and self._reader.empty
            waiter.set_result(reply)
        except ModelyardError as exc:
            self.fail(exc)

    def lose(self, exc: Exception) -> None:
        waiter, answer = self._waiter, self._answer
        if waiter is None or answer is None or waiter.done():
            return
        if isinstance(exc, EOFError):
            # The end of the connection is the end of some answers.
            try:
                answer.send(b"")
            except StopIteration as stop:
                waiter.set_result(stop.value)
                return
            except (EOFError, ModelyardError) as ended:
                exc = ended
        waiter.set_exception(exc)
