"""One HTTP/1.1 connection of a server: requests in, one after the other, and each answer in one write."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, cast

from modelyard.errors import ModelyardError
from modelyard.serving._requests import PRIORITY_KEY, REQUEST_ID, Caller
from modelyard.serving.http import Answer, HttpRequest
from modelyard.serving.http1._chunks import Chunks
from modelyard.serving.http1._head import MAX_HEAD_BYTES, BadRequest, Key, key_of, read_head, request_id_in, too_long
from modelyard.serving.http1._types import Application, Begin, Head

_LOG = logging.getLogger("modelyard.serving.rest")

#: A connection on which nothing happens is closed after so long.
IDLE_S = 75.0
#: A head that has begun must be whole after so long.
HEAD_S = 20.0
#: After an answer that ends a connection early, its client gets so long to read it.
_LINGER_S = 5.0
#: So much of the requests that follow is read while one is answered.
_MAX_AHEAD_BYTES = 64 << 10
#: Larger bodies are not copied behind their head.
_JOINED_BYTES = 64 << 10
#: Larger heads are not kept beside each connection.
_MAX_LAST_BYTES = 4 << 10
_END = b"\r\n\r\n"
#: How HTTP/2 begins (RFC 9113, section 3.4).
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\n"
_JSON = (b"content-type", b"application/json")
_PRIORITY = PRIORITY_KEY.encode()


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    app: Application
    #: Heads, and who answers them without a task.
    heads: dict[Key, tuple[Head, Begin | None]]
    #: Answers tell clients that their connection ends.
    closing: bool
    #: What goes on with a connection whose client speaks HTTP/2.
    http2: Callable[[Callable[[], None]], asyncio.Protocol] | None

    def keep(self, key: Key, size: int, known: tuple[Head, Begin | None]) -> None:
        """Remembers a head of some bytes."""
        ...

    def start_of(self, answer: Answer) -> bytes:
        """The first lines of an answer, without its length."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what answers a request."""
        ...

    def opened(self, connection: Connection) -> None:
        """A connection is there."""
        ...

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        ...


class Exchange(Caller):
    """One request: who waits for its answer, and where that goes.

    Args:
        connection: The connection.
        head: The request's head.
        begin: Answers it without a task; None for a task.
        request_id: As of :class:`Caller`.
    """

    __slots__ = ("_connection", "begin", "head")

    def __init__(self, connection: Connection, head: Head, begin: Begin | None, request_id: str) -> None:
        super().__init__(low_priority=head.headers.get(_PRIORITY) == b"low", request_id=request_id)
        self._connection = connection
        self.head = head
        self.begin = begin

    def respond(self, answer: Answer) -> bool:
        """Sends the answer.

        Args:
            answer: The answer.

        Returns:
            Whether it is the first.
        """
        return self._connection.respond(self, answer)


class Connection(asyncio.Protocol):
    """A connection.

    Args:
        owner: Its server.
    """

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._app = owner.app
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        #: Bytes that were read and not looked at.
        self._rest = b""
        #: The last head, and what it said: most clients say the same again.
        self._last = b""
        self._known: tuple[Head, Begin | None, int | None, str] = cast("Any", None)
        #: The request that is read or answered.
        self._exchange: Exchange | None = None
        #: Bytes of its body that have not come; 0 where it is whole, or comes in chunks.
        self._missing = 0
        self._parts: list[bytes] = []
        self._chunks: Chunks | None = None
        #: ``time.monotonic()`` at which what is waited for is late.
        self.deadline = time.monotonic() + HEAD_S
        self._unsent = 0
        self._reading = True
        self._writable = True
        #: What comes now belongs to nobody: the connection ends with this answer.
        self._deaf = False
        self._lost = False

    @property
    def busy(self) -> bool:
        """Whether there is a request that is not answered."""
        return self._exchange is not None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the transport."""
        # uvloop's transports have its methods, but are none.
        self._transport = cast("asyncio.Transport", transport)
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for the answer any more."""
        self._deaf = self._lost = True
        if self._exchange is not None:
            self._exchange.leave()
        self._owner.closed(self)

    def pause_writing(self) -> None:
        """The client does not read its answers: nothing more is done for it."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client reads again."""
        self._writable = True
        self._go_on()

    def data_received(self, data: bytes) -> None:
        """Takes what the client sends."""
        if self._deaf:
            return
        try:
            if self._missing:
                self._take(data)
            elif self._chunks is not None:
                self._take_chunks(self._chunks, data)
            elif self._exchange is None and self._writable:
                self._read(self._rest + data if self._rest else data)
            else:
                # The next request, before this one is answered.
                self._rest += data
                if len(self._rest) > _MAX_AHEAD_BYTES and self._reading:
                    self._reading = False
                    self._transport.pause_reading()
        except BadRequest as exc:
            self._refuse(exc)

    def _go_on(self) -> None:
        """Looks at what came while a request was answered."""
        if self._exchange is not None or self._deaf or not self._writable:
            return
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        data, self._rest = self._rest, b""
        if data:
            self.data_received(data)

    # What comes in.

    def _read(self, data: bytes) -> None:
        """Looks for a head, and for what follows it."""
        if not (self._last and data.startswith(self._last)):
            end = data.find(_END) + len(_END)
            if end < len(_END):
                self._wait(data)
                return
            if self._owner.http2 is not None and data.startswith(_HTTP2):
                self._hand_over(self._owner.http2(partial(self.connection_lost, None)), data)
                return
            self._known = self._look(data[:end])
            self._last = data[:end] if end <= _MAX_LAST_BYTES else b""
        else:
            end = len(self._last)
        head, begin, size, request_id = self._known
        exchange = self._exchange = Exchange(self, head, begin, request_id)
        self.deadline = time.monotonic() + self._app.timeout_s
        if size is not None and end + size <= len(data) and size <= self._app.max_body_bytes:
            stop = end + size
            self._rest = data[stop:]
            self._run(exchange, data[end:stop])
            return
        self._rest = b""
        self._begin_body(head, size, data[end:])

    def _hand_over(self, protocol: asyncio.Protocol, data: bytes) -> None:
        """Has another protocol go on with the connection."""
        self._rest = b""
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)

    def _wait(self, data: bytes) -> None:
        """For the rest of a head."""
        # Some clients end a body with an empty line (RFC 9112, section 2.2).
        data = data.lstrip(b"\r\n")
        if len(data) > MAX_HEAD_BYTES:
            raise too_long()
        if data and not self._rest:
            self.deadline = time.monotonic() + HEAD_S
        self._rest = data

    def _look(self, text: bytes) -> tuple[Head, Begin | None, int | None, str]:
        """What a head says, who answers it, how long the body is, and the request's id."""
        key, size = key_of(text)
        known = self._owner.heads.get(key)
        if known is None:
            head = read_head(text.lstrip(b"\r\n"))
            known = head, self._app.find(head)
            self._owner.keep(key, len(text), known)
        return (*known, known[0].length if size is None else size, request_id_in(text))

    def _begin_body(self, head: Head, size: int | None, data: bytes) -> None:
        if size is not None and size > self._app.max_body_bytes:
            self._give_up(self._app.too_large())
            return
        if head.expects and not data:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if size is None:
            self._chunks = Chunks()
            self._take_chunks(self._chunks, data)
        else:
            self._missing = size - len(data)
            self._parts.append(data)

    def _take(self, data: bytes) -> None:
        self._missing -= len(data)
        if self._missing > 0:
            self._parts.append(data)
            return
        if self._missing:
            data, self._rest = data[: self._missing], data[self._missing :]
            self._missing = 0
        self._parts.append(data)
        body = b"".join(self._parts)
        self._parts.clear()
        self._run_read(body)

    def _take_chunks(self, chunks: Chunks, data: bytes) -> None:
        rest = chunks.feed(data)
        if len(chunks.body) > self._app.max_body_bytes:
            self._give_up(self._app.too_large())
        elif rest is not None:
            self._chunks = None
            self._rest = rest
            self._run_read(bytes(chunks.body))

    # What comes of it.

    def _run_read(self, body: bytes) -> None:
        if self._exchange is not None:
            self._run(self._exchange, body)

    def _run(self, exchange: Exchange, body: bytes) -> None:
        """Has a whole request answered."""
        if exchange.begin is not None and len(body) <= self._app.max_short_bytes:
            exchange.begin(exchange.head.headers, body, exchange, exchange.respond)
        else:
            exchange.begin = None
            self._spawn(exchange, body)

    def _spawn(self, exchange: Exchange, body: bytes, problem: ModelyardError | None = None) -> None:
        # The application minds its time itself: loading a model may take longer than others may.
        self.deadline = math.inf
        head = exchange.head
        address = self._transport.get_extra_info("peername")
        request = HttpRequest(
            method=head.method,
            path=head.path,
            query=head.query,
            headers=head.texts,
            body=body,
            client=address[0] if isinstance(address, tuple) else None,
            caller=exchange,
            problem=problem,
        )
        self._owner.spawn(self._answer(exchange, request))

    async def _answer(self, exchange: Exchange, request: HttpRequest) -> None:
        exchange.respond(await self._app.answer(request))

    def _give_up(self, problem: ModelyardError) -> None:
        """Answers a request whose body is not read to its end."""
        self._deaf = True
        self._missing, self._chunks, self._rest = 0, None, b""
        self._parts.clear()
        if self._exchange is not None:
            self._spawn(self._exchange, b"", problem)

    def respond(self, exchange: Exchange, answer: Answer) -> bool:
        """Sends an answer; see :meth:`Exchange.respond`.

        Args:
            exchange: What it answers.
            answer: The answer.
        """
        if self._exchange is not exchange:
            return False
        self._exchange = None
        if self._lost or self._transport.is_closing():
            return True
        body = answer.body
        start = self._owner.start_of(answer)
        if exchange.request_id:
            start += f"{REQUEST_ID}: {exchange.request_id}\r\n".encode()
        if self._deaf or self._owner.closing or not exchange.head.keep_alive:
            lines = b"%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (start, len(body))
            self._write(lines, b"" if exchange.head.method == "HEAD" else body)
            self._finish()
            return True
        lines = b"%bcontent-length: %d\r\n\r\n" % (start, len(body))
        self._write(lines, b"" if exchange.head.method == "HEAD" else body)
        self.deadline = time.monotonic() + IDLE_S
        if self._rest or not self._reading:
            # Not at once: a thousand small requests in a row must not call each other.
            asyncio.get_running_loop().call_soon(self._go_on)
        return True

    def _write(self, lines: bytes, body: bytes) -> None:
        if len(body) <= _JOINED_BYTES:
            self._transport.write(lines + body)
        else:
            self._transport.write(lines)
            self._transport.write(body)

    def _refuse(self, problem: BadRequest) -> None:
        """Answers what is no request, and ends the connection."""
        _LOG.info("an HTTP connection ends: %s", problem.reason)
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.leave()
        self._deaf = True
        body = json.dumps({"error": problem.reason}).encode()
        start = self._owner.start_of(Answer(status=problem.status, body=body, headers=[_JSON]))
        self._write(b"%bcontent-length: %d\r\nconnection: close\r\n\r\n" % (start, len(body)), body)
        self._finish()

    def _finish(self) -> None:
        """Ends the connection after what was written."""
        self._rest = b""
        if self._deaf and self._transport.can_write_eof():
            # A connection that is closed while more comes is reset, and its answer may be lost.
            self._transport.write_eof()
            if not self._reading:
                self._transport.resume_reading()
            self.deadline = time.monotonic() + _LINGER_S
        else:
            self._deaf = True
            self._transport.close()

    def expire(self) -> None:
        """Its deadline has passed."""
        exchange = self._exchange
        if exchange is not None:
            self.deadline = math.inf
            exchange.leave()
            if self._missing or self._chunks is not None:
                self._give_up(self._app.late())
            elif exchange.begin is not None:
                exchange.begin(exchange.head.headers, None, exchange, exchange.respond)
            return
        unsent = self._transport.get_write_buffer_size()
        if unsent and unsent != self._unsent:
            # It is slow, but it reads.
            self._unsent = unsent
            self.deadline = time.monotonic() + IDLE_S
        elif unsent or self._deaf:
            self._transport.abort()
        elif self._rest:
            self._refuse(BadRequest(408, f"The request's header fields did not come within {HEAD_S:g} s."))
        else:
            self.close()

    def close(self) -> None:
        """Ends the connection, on which no request is answered."""
        self._deaf = True
        self._transport.close()

    def abort(self) -> None:
        """Ends the connection at once."""
        self._deaf = True
        self._transport.abort()
