"""One HTTP/2 connection of a server: frames in, windows, limits; what a stream means is its owner's."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from typing import Any, Protocol, cast

from modelyard.serving.http2 import _frames as h2
from modelyard.serving.http2._frames import ConnectionFailed
from modelyard.serving.http2._hpack import Decoder, Fields
from modelyard.serving.http2._outgoing import STREAM_WINDOW, Outgoing, Stream

_LOG = logging.getLogger("modelyard.serving.grpc")

#: What all streams of a connection may send before it is read.
CONNECTION_WINDOW = 16 << 20
#: DATA frames are passed on as they come. Smaller ones, and all others, are kept until they are whole.
_MIN_FLOWING_BYTES = 4 << 10
_MAX_HEADER_BYTES = 16 << 10
#: A block may come in pieces; nobody has reason to send more than this.
_MAX_BLOCK_BYTES = 64 << 10
#: After a refusal nothing is read for so long.
_REST_S = 0.01
#: Frames that cost work and carry none, beyond one for each request: a peer that sends more attacks.
_MAX_IDLE_FRAMES = 10_000
_MAX_STREAM_ID = (1 << 31) - 1
_LAST_PING = b"goodbye!"
#: How requests of HTTP/1.1 begin.
_HTTP1 = re.compile(rb"[A-Z]+ \S")
#: So long the answer to one may take to be read.
_LINGER_S = 5.0


class StreamOwner(Protocol):
    """What a connection needs of whoever answers its streams."""

    max_streams: int
    #: What clients are told that speak another protocol.
    wrong_port: str

    def opened(self, stream: Stream, fields: Fields) -> None:
        """A stream was opened with these header fields."""
        ...


class Connection(Outgoing, asyncio.Protocol):
    """A connection.

    Args:
        owner: Who answers its streams.
        closed: Called when it is gone.
    """

    def __init__(self, owner: StreamOwner, closed: Callable[[Connection], None]) -> None:
        super().__init__()
        self._owner = owner
        self._closed = closed
        self._rest = b""
        self._greeted = False
        #: The peer was told that it is in the wrong place: what it sends is not looked at.
        self._refused = False
        self._decoder = Decoder(max_bytes=_MAX_HEADER_BYTES)
        self._last = 0
        #: Streams above are not answered any more: the peer was told so.
        self._limit = _MAX_STREAM_ID
        self._room = CONNECTION_WINDOW
        #: Stream, flags, bytes that have not come, and how many of these are padding, of a DATA frame that is passed on
        #: as it comes.
        self._partial: tuple[Stream | None, int, int, int] | None = None
        #: Stream, flags and pieces of a header block that is not whole yet.
        self._block: tuple[int, int, bytearray] | None = None
        self._idle_frames = 0
        #: Why nothing is read for the moment: the peer does not read, or was refused something.
        self._deaf = False
        self._resting = False
        self._heard = asyncio.Event()
        self.peer = ""

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the transport."""
        # uvloop's transports have its methods, but are none.
        stream_transport = cast("asyncio.Transport", transport)
        self._transport = stream_transport
        self.peer = _peer_name(stream_transport)

    def _greet(self) -> None:
        """Says what this side allows, to a peer that speaks HTTP/2: others could make nothing of it."""
        self._greeted = True
        self._write(
            h2.settings(
                {
                    h2.SETTINGS_MAX_CONCURRENT_STREAMS: self._owner.max_streams,
                    h2.SETTINGS_INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                    h2.SETTINGS_MAX_FRAME_SIZE: h2.MAX_DATA_BYTES,
                    h2.SETTINGS_MAX_HEADER_LIST_SIZE: _MAX_HEADER_BYTES,
                }
            )
            + h2.window_update(0, CONNECTION_WINDOW - h2.DEFAULT_WINDOW)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Gives up everything that is not answered."""
        for stream in list(self._streams.values()):
            self._lose(stream)
        self._heard.set()
        self._closed(self)

    def pause_writing(self) -> None:
        """The peer does not read: then nothing more is read from it either."""
        self._deaf = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._deaf = False
        self._listen()

    def rest(self) -> None:
        """Reads nothing for a moment, after a refusal.

        Where a server has more to do than it can, the next refusals can wait a
        little: read together they cost less than one by one, each of which would
        interrupt the work on those that were let in.
        """
        if not self._resting and self._transport is not None and not self._transport.is_closing():
            self._resting = True
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(_REST_S, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._listen()

    def _listen(self) -> None:
        ready = not (self._deaf or self._resting)
        if ready and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Reads the frames that are whole, and keeps the rest."""
        if self._refused:
            return
        try:
            self._receive(self._rest + data if self._rest else data)
        except ConnectionFailed as exc:
            _LOG.info("an HTTP/2 connection from %s ends: %s", self.peer, exc.reason)
            self._end(exc.code, exc.reason)

    def _receive(self, data: bytes) -> None:
        at, end = 0, len(data)
        if not self._greeted:
            if data[: len(h2.PREFACE)] != h2.PREFACE:
                if h2.PREFACE.startswith(data):
                    self._rest = data
                    return
                if _HTTP1.match(data):
                    self._refuse_http1()
                    return
                raise ConnectionFailed(h2.PROTOCOL_ERROR, "this port speaks gRPC, which is HTTP/2, and nothing else")
            self._greet()
            at = len(h2.PREFACE)
        view = memoryview(data)
        if self._partial is not None:
            at = self._go_on(*self._partial, view)
        unpack = h2.HEADER.unpack_from
        while end - at >= h2.HEADER_BYTES:
            high, low, kind, flags, number = unpack(data, at)
            size = high << 8 | low
            stop = at + h2.HEADER_BYTES + size
            if size > (h2.MAX_DATA_BYTES if kind == h2.DATA else _MAX_BLOCK_BYTES):
                raise ConnectionFailed(h2.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            if stop > end and (kind != h2.DATA or size < _MIN_FLOWING_BYTES or at + h2.HEADER_BYTES == end):
                break
            if self._block is not None and (kind != h2.CONTINUATION or number != self._block[0]):
                raise ConnectionFailed(h2.PROTOCOL_ERROR, "a header block was interrupted")
            if stop > end:
                at += h2.HEADER_BYTES
                padding = 0
                stream = self._charge(number, size)
                if flags & h2.PADDED:
                    padding = _padding(view[at], size)
                    at, size = at + 1, size - 1
                at += self._go_on(stream, flags, size, padding, view[at:])
                break
            if kind == h2.DATA:
                self._data(number, flags, view[at + h2.HEADER_BYTES : stop], size)
            elif kind == h2.HEADERS:
                self._headers(number, flags, data[at + h2.HEADER_BYTES : stop])
            else:
                self._control(kind, flags, number, data[at + h2.HEADER_BYTES : stop])
            if self._transport is None or self._transport.is_closing():
                return
            at = stop
        self._rest = data[at:]

    def _refuse_http1(self) -> None:
        """Tells a client of HTTP/1.1 in its own words that it is in the wrong place."""
        self._refused = True
        body = json.dumps({"error": self._owner.wrong_port}).encode()
        self._write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        transport = self._transport
        if transport is None or not transport.can_write_eof():
            self.abort()
            return
        # Closed while more of the request comes, it would be reset, and the answer lost.
        transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    # What comes in.

    def _data(self, number: int, flags: int, payload: memoryview, size: int) -> None:
        stream = self._charge(number, size)
        if flags & h2.PADDED:
            payload = _unpadded(payload)
        if stream is None:
            return
        if payload:
            stream.handler.on_data(payload)
        elif not flags & h2.END_STREAM:
            self._idle()
        self._read(stream, flags)

    def _go_on(self, stream: Stream | None, flags: int, missing: int, padding: int, data: memoryview) -> int:
        """Passes on what came of a large DATA frame, and says how much that was."""
        size = min(missing, len(data))
        piece = data[: max(0, missing - padding)]
        missing -= size
        self._partial = (stream, flags, missing, min(padding, missing)) if missing else None
        if stream is not None and self._streams.get(stream.number) is stream:
            if piece:
                stream.handler.on_data(piece)
            if not missing and self._streams.get(stream.number) is stream:
                self._read(stream, flags)
        return size

    def _read(self, stream: Stream, flags: int) -> None:
        """A whole DATA frame was passed on."""
        if flags & h2.END_STREAM:
            stream.ended = True
            stream.handler.on_end()
        else:
            self.refill(stream)

    def refill(self, stream: Stream) -> None:
        """Opens a stream's window again, where half of it is used and whoever takes the data wants more.

        Args:
            stream: The stream.
        """
        if stream.room < STREAM_WINDOW // 2 and not (stream.full or stream.ended or stream.closed):
            self._write(h2.window_update(stream.number, STREAM_WINDOW - stream.room))
            stream.room = STREAM_WINDOW

    def _charge(self, number: int, size: int) -> Stream | None:
        """Counts a DATA frame against the windows; None where nobody wants it."""
        self._room -= size
        if self._room < CONNECTION_WINDOW // 2:
            if self._room < 0:
                raise ConnectionFailed(h2.FLOW_CONTROL_ERROR, "more data than the connection's window")
            self._write(h2.window_update(0, CONNECTION_WINDOW - self._room))
            self._room = CONNECTION_WINDOW
        stream = self._streams.get(number)
        if stream is None or stream.ended:
            if number == 0 or number > self._last or number % 2 == 0:
                raise ConnectionFailed(h2.PROTOCOL_ERROR, f"data on stream {number}, which is not open")
            if stream is not None:
                self.reset(stream, h2.STREAM_CLOSED)
            # Else: it was on its way when the stream was reset.
            return None
        stream.room -= size
        if stream.room < 0:
            raise ConnectionFailed(h2.FLOW_CONTROL_ERROR, f"more data than the window of stream {number}")
        return stream

    def _headers(self, number: int, flags: int, payload: bytes) -> None:
        if flags & h2.PADDED:
            payload = bytes(_unpadded(memoryview(payload)))
        if flags & h2.WITH_PRIORITY:
            payload = payload[5:]
        if flags & h2.END_HEADERS:
            self._open(number, flags, payload)
        else:
            self._block = (number, flags, bytearray(payload))

    def _open(self, number: int, flags: int, block: bytes) -> None:
        # Also of streams that are refused: both sides' tables must stay alike.
        fields = self._decoder.decode(block)
        stream = self._streams.get(number)
        if stream is not None:
            # Trailers: gRPC's clients have nothing to say there.
            if stream.ended or not flags & h2.END_STREAM:
                raise ConnectionFailed(h2.PROTOCOL_ERROR, f"headers in the middle of stream {number}")
            stream.ended = True
            stream.handler.on_end()
            return
        if number <= self._last or number % 2 == 0:
            raise ConnectionFailed(h2.PROTOCOL_ERROR, f"stream {number} was opened out of order")
        if number > self._limit:
            # The peer was told: it knows that nothing was done, and asks somebody else.
            self._write(h2.reset(number, h2.REFUSED_STREAM))
            return
        self._last = number
        if len(self._streams) >= self._owner.max_streams:
            self._idle()
            self._write(h2.reset(number, h2.REFUSED_STREAM))
            return
        self._idle_frames = max(0, self._idle_frames - 1)
        stream = self._streams[number] = Stream(self, number, self._stream_window)
        self._owner.opened(stream, fields)
        if flags & h2.END_STREAM:
            stream.ended = True
            stream.handler.on_end()

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == h2.WINDOW_UPDATE:
            self._window_update(number, h2.number(payload))
        elif kind == h2.RST_STREAM:
            h2.number(payload)
            self._idle()
            stream = self._streams.get(number)
            if stream is not None:
                # Opening it was paid back; opening and resetting again and again is not to be free.
                self._idle()
                self._lose(stream)
        elif kind == h2.CONTINUATION:
            self._continuation(number, flags, payload)
        elif kind == h2.SETTINGS:
            self._settings(flags, payload)
        elif kind == h2.PING:
            if len(payload) != len(_LAST_PING):
                raise ConnectionFailed(h2.FRAME_SIZE_ERROR, "a PING of another size than 8 bytes")
            if not flags & h2.ACK:
                self._idle()
                self._write(h2.frame(h2.PING, h2.ACK, 0, payload))
            elif payload == _LAST_PING:
                self._heard.set()
        elif kind == h2.PUSH_PROMISE:
            raise ConnectionFailed(h2.PROTOCOL_ERROR, "a client cannot push")
        elif kind != h2.GOAWAY:
            # PRIORITY, and whatever else may be invented: to be ignored.
            self._idle()

    def _continuation(self, number: int, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionFailed(h2.PROTOCOL_ERROR, "the continuation of no header block")
        _, opening, block = self._block
        block += payload
        self._idle()
        if len(block) > _MAX_BLOCK_BYTES:
            raise ConnectionFailed(h2.ENHANCE_YOUR_CALM, f"a header block of more than {_MAX_BLOCK_BYTES} bytes")
        if flags & h2.END_HEADERS:
            self._block = None
            self._open(number, opening, bytes(block))

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & h2.ACK:
            return
        self._idle()
        for key, value in h2.read_settings(payload):
            if key == h2.SETTINGS_INITIAL_WINDOW_SIZE:
                if value > h2.MAX_WINDOW:
                    raise ConnectionFailed(h2.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                change, self._stream_window = value - self._stream_window, value
                for stream in list(self._streams.values()):
                    stream.window += change
                    self._pump(stream)
            elif key == h2.SETTINGS_MAX_FRAME_SIZE:
                # Frames of the smallest size that is allowed are always right.
                if not h2.MAX_FRAME_BYTES <= value < 1 << 24:
                    raise ConnectionFailed(h2.PROTOCOL_ERROR, f"frames of {value} bytes")
        self._write(h2.frame(h2.SETTINGS, h2.ACK, 0))

    def _window_update(self, number: int, size: int) -> None:
        if size == 0:
            raise ConnectionFailed(h2.PROTOCOL_ERROR, "a window was to grow by nothing")
        if number == 0:
            self._window += size
            if self._window > h2.MAX_WINDOW:
                raise ConnectionFailed(h2.FLOW_CONTROL_ERROR, "the connection's window is too large")
            for stream in list(self._streams.values()):
                if self._window <= 0:
                    break
                self._pump(stream)
            return
        stream_ = self._streams.get(number)
        if stream_ is None:
            self._idle()
            return
        stream_.window += size
        if stream_.window > h2.MAX_WINDOW:
            self.reset(stream_, h2.FLOW_CONTROL_ERROR)
            return
        self._pump(stream_)

    def _idle(self) -> None:
        self._idle_frames += 1
        if self._idle_frames > _MAX_IDLE_FRAMES:
            raise ConnectionFailed(h2.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    # The end.

    def _end(self, code: int, reason: str) -> None:
        self._write(h2.goaway(self._last, code, reason))
        if self._transport is not None:
            self._transport.close()

    async def leave(self, notice_s: float) -> None:
        """Tells the peer that this side ends, answers what it has sent until it knows, and then what is open.

        Args:
            notice_s: Seconds that the peer may take to confirm that it knows.
        """
        if not self._greeted:
            self.abort()
            return
        self._write(h2.goaway(_MAX_STREAM_ID, h2.NO_ERROR) + h2.frame(h2.PING, 0, 0, _LAST_PING))
        try:
            await asyncio.wait_for(self._heard.wait(), notice_s)
        except TimeoutError:
            # A peer that does not answer a PING is not there, or will find out.
            _LOG.debug("%s did not confirm the goodbye", self.peer)
        self._limit = self._last
        self._write(h2.goaway(self._last, h2.NO_ERROR))
        self._leaving = True
        self._leave_if_done()

    def abort(self) -> None:
        """Ends the connection at once."""
        for stream in list(self._streams.values()):
            self.reset(stream, h2.CANCEL)
        if self._transport is not None:
            self._transport.close()


def _unpadded(payload: memoryview) -> memoryview:
    size = len(payload)
    return payload[1 : size - _padding(payload[0] if size else 0, size)]


def _padding(padding: int, size: int) -> int:
    """The padding that a frame of some size says it has."""
    if padding >= size:
        raise ConnectionFailed(h2.PROTOCOL_ERROR, "a frame of more padding than it holds")
    return padding


def _peer_name(transport: asyncio.Transport) -> str:
    """The peer's address as gRPC writes it."""
    address: Any = transport.get_extra_info("peername")
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    if host.startswith("::ffff:"):
        host = host.removeprefix("::ffff:")
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
