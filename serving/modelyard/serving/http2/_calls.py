"""gRPC on HTTP/2 streams: heads, messages, deadlines, status."""

from __future__ import annotations

import asyncio
import base64
import binascii
import inspect
import json
import logging
import struct
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NoReturn
from urllib.parse import quote

import grpc
import numpy as np

from modelyard.serving._requests import PRIORITY_KEY, REQUEST_ID, Caller, request_id_of
from modelyard.serving.grpc import Metadata, unknown_method
from modelyard.serving.http2._frames import CANCEL
from modelyard.serving.http2._hpack import Fields, encode
from modelyard.serving.http2._outgoing import Stream

_LOG = logging.getLogger("modelyard.serving.grpc")

#: Called with the answer, or with a status, a message and trailing metadata.
Respond = Callable[[bytes | None, grpc.StatusCode, str, Metadata], None]
#: A unary method that needs no task of its own: called with the request and who waits for the answer.
Begin = Callable[[memoryview, Caller, Respond], None]
Handlers = Mapping[str, Any]

_PREFIX = struct.Struct(">BI")
#: Messages of a stream that its handler has not taken: a client that sends faster must wait for its window.
_MAX_WAITING_MESSAGES = 16
#: Larger messages are kept in the pieces that they come in.
_MAX_ROOM_BYTES = 64 << 20
_ENCODINGS = b"identity,deflate,gzip"
#: ``:status 200`` is in the static table.
_GRPC = b"application/grpc"
_START = b"\x88" + encode(((b"content-type", _GRPC),))
_OK = encode(((b"grpc-status", b"0"),))
_UNSUPPORTED_MEDIA_TYPE = encode(((b":status", b"415"), (b"content-type", b"application/json")))
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT_DIGITS = 8
_REQUEST_ID = REQUEST_ID.encode()
#: Characters of a status message that need no escape.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


@dataclass(frozen=True, kw_only=True)
class Head:
    """What the headers of a call say.

    Attributes:
        path: The method's path.
        handler: A ``grpc.RpcMethodHandler``; None for a method that there is not.
        begin: The method's short way; None where it has none.
        timeout_s: Time that the client gives; None for any.
        encoding: How messages are compressed.
        low_priority: The call may wait for others.
        refusal: Status and message of a head that makes no sense; None for one that does.
        foreign: The request is none of gRPC's: its content type is another.
    """

    path: str
    handler: Any = None
    begin: Begin | None = None
    timeout_s: float | None = None
    encoding: bytes = b"identity"
    low_priority: bool = False
    refusal: tuple[grpc.StatusCode, str] | None = None
    foreign: bool = False


def read_head(fields: Fields, handlers: Handlers, short: Mapping[str, Begin]) -> Head:
    """Reads the headers of a call.

    Args:
        fields: Names and values.
        handlers: The methods, by path.
        short: Their short ways, by path.
    """
    values = dict(fields)
    path = values.get(b":path", b"").decode("latin-1")
    handler = handlers.get(path)
    refusal = None
    if values.get(b":method") != b"POST":
        refusal = (grpc.StatusCode.INTERNAL, "A gRPC call is a POST of content-type application/grpc.")
    elif handler is None:
        refusal = (grpc.StatusCode.UNIMPLEMENTED, unknown_method(path, handlers))
    encoding = values.get(b"grpc-encoding", b"identity")
    if encoding not in _ENCODINGS.split(b","):
        refusal = (
            grpc.StatusCode.UNIMPLEMENTED,
            f"Messages compressed by {encoding.decode('latin-1')!r} cannot be read; expected {_ENCODINGS.decode()}.",
        )
    timeout_s = None
    text = values.get(b"grpc-timeout")
    if text is not None:
        timeout_s = _timeout(text)
        if timeout_s is None:
            refusal = (grpc.StatusCode.INTERNAL, f"grpc-timeout is {text!r}; expected digits and a unit.")
    try:
        _metadata(fields)
    except (binascii.Error, ValueError) as exc:
        refusal = (grpc.StatusCode.INTERNAL, f"Binary metadata is no base64: {exc}")
    return Head(
        path=path,
        handler=handler,
        begin=short.get(path),
        timeout_s=timeout_s,
        encoding=encoding,
        low_priority=values.get(PRIORITY_KEY.encode()) == b"low",
        refusal=refusal,
        foreign=not values.get(b"content-type", b"").startswith(_GRPC),
    )


def refuse_foreign(stream: Stream, fields: Fields, text: str) -> None:
    """Answers a client of HTTP/2 that does not speak gRPC, as gRPC asks for: it would take a 200 for success.

    Args:
        stream: Its stream.
        fields: Its headers.
        text: What it is told.
    """
    body = b"" if (b":method", b"HEAD") in fields else json.dumps({"error": text}).encode()
    stream.send(body, start=_UNSUPPORTED_MEDIA_TYPE, end=_status(grpc.StatusCode.INTERNAL, text, ()))


def request_id_in(fields: Fields) -> str:
    """The caller's id for a call; empty where there is none.

    Args:
        fields: All of the call's headers.
    """
    return next((request_id_of(value) for name, value in fields if name == _REQUEST_ID), "")


def _timeout(text: bytes) -> float | None:
    digits, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not digits.isdigit() or len(digits) > _TIMEOUT_DIGITS:
        return None
    return int(digits) * unit


def _metadata(fields: Fields) -> list[tuple[str, str | bytes]]:
    result: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name.startswith((b":", b"grpc-")) or name in (b"content-type", b"te", b"user-agent"):
            continue
        key = name.decode("latin-1")
        if name.endswith(b"-bin"):
            result.append((key, base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)))
        else:
            result.append((key, value.decode("latin-1")))
    return result


def _plain_value(value: str | bytes) -> bytes:
    return value.encode("ascii") if isinstance(value, str) else base64.b64encode(value).rstrip(b"=")


class _Aborted(Exception):
    """A handler has ended its call."""


class _TooLarge(Exception):
    """A message is larger than allowed."""


class Context:
    """What a handler may ask of its call: the part of ``grpc.aio.ServicerContext`` that handlers here use.

    Args:
        call: The call.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self.code = grpc.StatusCode.OK
        self.details = ""
        self.trailers: Metadata = ()

    def peer(self) -> str:
        """The client's address."""
        return self._call.stream.connection.peer

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The client's metadata."""
        return tuple(_metadata(self._call.fields))

    def time_remaining(self) -> float | None:
        """Seconds until the deadline; None where there is none."""
        deadline = self._call.caller.deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def trailing_metadata(self) -> Metadata:
        """What goes back beside the status that a handler gives: nothing, since the call itself adds what it must."""
        return ()

    def set_code(self, code: grpc.StatusCode) -> None:
        """Sets the status that the call ends with."""
        self.code = code

    def set_details(self, details: str) -> None:
        """Sets the message that the call ends with."""
        self.details = details

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """Ends the call."""
        self.code, self.details, self.trailers = code, details, tuple(trailing_metadata)
        raise _Aborted

    async def write(self, message: Any) -> None:
        """Sends one message of a stream."""
        await self._call.write(message)


class Call:
    """One call.

    Args:
        stream: Its stream.
        head: Its head.
        fields: All of its headers.
        max_bytes: Size of a message that is accepted.
        running: Where tasks are kept while they run.
        request_id: The caller's id for it; empty for none.
    """

    __slots__ = ("_chunks", "_max_bytes", "_messages", "_needed", "_running", "_size", "_started", "_task",
                 "_waker", "_whole", "caller", "fields", "head", "stream")  # fmt: skip

    def __init__(
        self,
        stream: Stream,
        head: Head,
        fields: Fields,
        *,
        max_bytes: int,
        running: set[asyncio.Task[None]],
        request_id: str,
    ) -> None:
        self.stream = stream
        self.head = head
        self.fields = fields
        deadline = None if head.timeout_s is None else time.monotonic() + head.timeout_s
        self.caller = Caller(deadline=deadline, low_priority=head.low_priority, request_id=request_id)
        self._max_bytes = max_bytes
        self._running = running
        self._chunks: list[memoryview] = []
        #: Where the message of a unary call is put together, once its size is known.
        self._whole: memoryview | None = None
        self._size = 0
        #: Of a stream, the bytes that make the next message whole, or say how long it is.
        self._needed = _PREFIX.size
        self._started = False
        self._task: asyncio.Task[None] | None = None
        self._messages: deque[bytes] | None = None
        self._waker: asyncio.Event | None = None
        stream.handler = self
        if head.refusal is not None:
            self.finish(*head.refusal)
        elif head.handler.request_streaming:
            self._messages = deque()
            self._waker = asyncio.Event()
            self._spawn(self._run_stream)

    # What the stream brings.

    def on_data(self, data: memoryview) -> None:
        """Takes data of the request."""
        if self.stream.closed:
            return
        before = self._size
        self._size += len(data)
        if self._messages is not None:
            self._chunks.append(data)
            if self._size >= self._needed:
                self._split()
        elif self._size > self._max_bytes + _PREFIX.size:
            self._refuse_size(self._size - _PREFIX.size)
        else:
            if not before:
                self._whole = self._room_for(data)
            if self._whole is None:
                self._chunks.append(data)
            elif self._size <= len(self._whole):
                # While it is in the cache: at the end it would have to come back.
                self._whole[before : self._size] = data
            # Else it is longer than it says, which its end finds out.

    def _room_for(self, data: memoryview) -> memoryview | None:
        """Room for a message that begins so; None where it is whole, or is better kept in pieces."""
        if len(data) < _PREFIX.size:
            return None
        size = _PREFIX.size + _PREFIX.unpack_from(data)[1]
        # What a client says is not believed without limit.
        if not len(data) < size <= min(self._max_bytes + _PREFIX.size, _MAX_ROOM_BYTES):
            return None
        room: Any = np.empty(size, np.uint8)
        return memoryview(room)

    def on_end(self) -> None:
        """Begins a unary call, whose request is whole now."""
        if self._waker is not None:
            self._waker.set()
        if self.stream.closed or self._messages is not None:
            return
        body = self._whole
        if body is None:
            body = self._chunks[0] if len(self._chunks) == 1 else memoryview(b"".join(self._chunks))
        self._whole = None
        self._chunks.clear()
        size = len(body) - _PREFIX.size
        if self._size != len(body) or size < 0 or _PREFIX.unpack_from(body)[1] != size:
            self.finish(grpc.StatusCode.INTERNAL, "A unary call must have exactly one whole message.")
            return
        try:
            message = self._plain(body[0], body[_PREFIX.size :])
        except _TooLarge as exc:
            self.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, str(exc))
            return
        except ValueError as exc:
            self.finish(grpc.StatusCode.INTERNAL, str(exc))
            return
        if self.head.begin is not None:
            self.head.begin(message, self.caller, self._respond)
        else:
            self._spawn(partial(self._run_unary, bytes(message)))

    def on_reset(self) -> None:
        """Ends the work for a caller that has gone."""
        self.caller.leave()
        if self._task is not None:
            self._task.cancel()

    def _split(self) -> None:
        """Takes the messages out of a stream's bytes."""
        data = b"".join(self._chunks)
        at = 0
        while len(data) - at >= _PREFIX.size and self._messages is not None:
            flag, size = _PREFIX.unpack_from(data, at)
            if size > self._max_bytes:
                self._refuse_size(size)
                return
            self._needed = _PREFIX.size + size
            if len(data) - at < self._needed:
                break
            self._needed = _PREFIX.size
            at += _PREFIX.size
            try:
                self._messages.append(bytes(self._plain(flag, memoryview(data)[at : at + size])))
            except (_TooLarge, ValueError) as exc:
                self._give_up(grpc.StatusCode.INTERNAL, str(exc))
                return
            at += size
        self._chunks = [memoryview(data[at:])] if at < len(data) else []
        self._size = len(data) - at
        # A client that is faster than its handler waits.
        self.stream.full = self._messages is not None and len(self._messages) >= _MAX_WAITING_MESSAGES
        if self._waker is not None:
            self._waker.set()

    def _plain(self, flag: int, data: memoryview) -> memoryview:
        if flag == 0:
            return data
        if flag != 1 or self.head.encoding == b"identity":
            raise ValueError("A message says that it is compressed, but the call's headers do not say how.")
        gzip = self.head.encoding == b"gzip"
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | (16 if gzip else 0))
        try:
            plain = inflater.decompress(data, self._max_bytes + 1)
        except zlib.error as exc:
            raise ValueError(f"A message is no {self.head.encoding.decode()}: {exc}") from exc
        if len(plain) > self._max_bytes:
            raise _TooLarge(f"Received message larger than max (more than {self._max_bytes} after decompression)")
        if not inflater.eof:
            raise ValueError("A compressed message ends too early.")
        return memoryview(plain)

    def _refuse_size(self, size: int) -> None:
        self._give_up(
            grpc.StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._max_bytes})"
        )

    def _give_up(self, code: grpc.StatusCode, text: str) -> None:
        """Ends a call because of what its client sent."""
        self._whole = None
        self._chunks.clear()
        self.caller.leave()
        self.finish(code, text)
        if self._task is not None:
            # It would wait for messages that nobody takes in any more.
            self._task.cancel()

    # What goes back.

    def _respond(self, data: bytes | None, code: grpc.StatusCode, text: str, trailers: Metadata = ()) -> None:
        if data is None:
            self.finish(code, text, trailers)
            return
        self.stream.send(_PREFIX.pack(0, len(data)) + data, start=_START, end=_OK + self._echo())

    def _echo(self) -> bytes:
        """The request's id, for the end of the answer."""
        request_id = self.caller.request_id
        return encode(((_REQUEST_ID, request_id.encode()),)) if request_id else b""

    async def write(self, message: Any) -> None:
        """Sends one message of a stream, when there is room for it.

        Args:
            message: For the handler's serializer.
        """
        data = _serialized(self.head.handler, message)
        start = b"" if self._started else _START
        self._started = True
        self.stream.send(_PREFIX.pack(0, len(data)) + data, start=start)
        while self.stream.unsent and not self.stream.closed:
            # Streams here are few and small: looking again now and then is enough.
            await asyncio.sleep(0.01)

    def finish(self, code: grpc.StatusCode, text: str = "", trailers: Metadata = ()) -> None:
        """Ends the call with a status and no message.

        Args:
            code: The status.
            text: Its message.
            trailers: Metadata that goes with them.
        """
        if code is grpc.StatusCode.OK and not text:
            block = _OK
        else:
            block = _status(code, text, trailers)
        block += self._echo()
        # A call that ends before it began has its status among the headers.
        self.stream.send(b"", start=b"", end=block if self._started else _START + block)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and trailers:
            # The server has too much to do, and says when to come again: no message that is too long, or the like.
            self.stream.connection.rest()

    # Handlers that need a task.

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        task = self._task = loop.create_task(self._guard(work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if self.head.timeout_s is not None:
            timer = loop.call_later(self.head.timeout_s, self._expire)
            # However it ends: the timer would keep the call until its deadline.
            task.add_done_callback(lambda _: timer.cancel())

    def _expire(self) -> None:
        if self._task is None or self._task.done():
            # It ended in this very turn of the loop.
            return
        self.caller.leave()
        self.finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._task.cancel()

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            self.stream.reset(CANCEL)
        # Handlers map their own errors; whatever else escapes is a bug, and its text is not for strangers.
        except Exception:
            _LOG.exception("request %s: %s failed unexpectedly", self.caller.request_id or "-", self.head.path)
            self.finish(grpc.StatusCode.UNKNOWN, "Unexpected error. The server's log has the details.")

    async def _run_unary(self, data: bytes) -> None:
        handler, context = self.head.handler, Context(self)
        request = handler.request_deserializer(data) if handler.request_deserializer is not None else data
        try:
            if handler.response_streaming:
                await self._respond_stream(handler.unary_stream(request, context))
            else:
                response = await handler.unary_unary(request, context)
                if context.code is grpc.StatusCode.OK:
                    self._respond(_serialized(handler, response), context.code, "")
                    return
        except _Aborted:
            _LOG.debug("%s was aborted by its handler", self.head.path)
        self.finish(context.code, context.details, context.trailers)

    async def _run_stream(self) -> None:
        handler, context = self.head.handler, Context(self)
        try:
            await self._respond_stream(handler.stream_stream(self._requests(), context))
        except _Aborted:
            _LOG.debug("%s was aborted by its handler", self.head.path)
        self.finish(context.code, context.details, context.trailers)

    async def _respond_stream(self, answers: Any) -> None:
        if inspect.isasyncgen(answers):
            async for answer in answers:
                await self.write(answer)
        else:
            # It writes by itself.
            await answers

    async def _requests(self) -> AsyncIterator[Any]:
        deserializer = self.head.handler.request_deserializer
        messages, waker = self._messages, self._waker
        if messages is None or waker is None:
            return
        while True:
            while messages:
                data = messages.popleft()
                if self.stream.full and len(messages) < _MAX_WAITING_MESSAGES:
                    self.stream.full = False
                    self.stream.connection.refill(self.stream)
                yield deserializer(data) if deserializer is not None else data
            if self.stream.ended:
                return
            waker.clear()
            await waker.wait()


# Whoever refuses many calls does it in few words.
@lru_cache(maxsize=256)
def _status(code: grpc.StatusCode, text: str, trailers: Metadata) -> bytes:
    number = str(code.value[0]).encode()
    fields: Fields = ((b"grpc-status", number),)
    if text:
        fields += ((b"grpc-message", quote(text, safe=_PLAIN).encode()),)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        fields += ((b"grpc-accept-encoding", _ENCODINGS),)
    fields += tuple((name.encode(), _plain_value(value)) for name, value in trailers)
    return encode(fields)


def _serialized(handler: Any, message: Any) -> bytes:
    serializer = handler.response_serializer
    data: bytes = serializer(message) if serializer is not None else message
    return data
