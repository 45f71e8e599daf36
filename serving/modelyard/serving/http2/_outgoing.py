"""What goes out of an HTTP/2 connection: streams, and their data as far as the peer's windows allow."""

from __future__ import annotations

import asyncio
from typing import Protocol

from modelyard.serving.http2 import _frames as h2

#: What one stream may send before it is read.
STREAM_WINDOW = 1 << 20


class StreamConnection(Protocol):
    """What a stream needs of its connection."""

    #: The peer's address, as gRPC writes it.
    peer: str

    def send(self, stream: Stream, start: bytes, data: bytes, end: bytes | None) -> None:
        """Sends for a stream."""
        ...

    def reset(self, stream: Stream, code: int) -> None:
        """Gives a stream up."""
        ...

    def rest(self) -> None:
        """Reads nothing for a moment."""
        ...

    def refill(self, stream: Stream) -> None:
        """Opens a stream's window again, where it is no longer full."""
        ...


class StreamHandler(Protocol):
    """Who takes what a stream brings."""

    def on_data(self, data: memoryview) -> None:
        """Takes data."""
        ...

    def on_end(self) -> None:
        """The peer has said everything."""
        ...

    def on_reset(self) -> None:
        """The peer has left, or is told to."""
        ...


class _Nobody:
    def on_data(self, data: memoryview) -> None:
        pass

    def on_end(self) -> None:
        pass

    def on_reset(self) -> None:
        pass


_NOBODY = _Nobody()


class Stream:
    """One request and its answer.

    Args:
        connection: Where it came from.
        number: Its identifier.
        window: Bytes that may be sent to the peer.
    """

    __slots__ = ("closed", "connection", "ended", "full", "handler", "number", "room", "unsent", "unsent_end", "window")

    def __init__(self, connection: StreamConnection, number: int, window: int) -> None:
        self.connection = connection
        self.number = number
        self.window = window
        #: Bytes that the peer may send.
        self.room = STREAM_WINDOW
        #: Whoever takes its data has enough of them for the moment.
        self.full = False
        #: The peer has said everything.
        self.ended = False
        #: Nothing may be sent any more.
        self.closed = False
        self.unsent = b""
        self.unsent_end: bytes | None = None
        self.handler: StreamHandler = _NOBODY

    def send(self, data: bytes, *, end: bytes | None = None, start: bytes = b"") -> None:
        """Sends data as far as the windows allow, and the rest when they do.

        Args:
            data: The data.
            end: Trailing header block that ends the stream; None where more follows.
            start: Header block before the data; empty where it was sent.
        """
        if not self.closed:
            self.connection.send(self, start, data, end)

    def reset(self, code: int) -> None:
        """Gives the stream up.

        Args:
            code: Why.
        """
        if not self.closed:
            self.connection.reset(self, code)


class Outgoing:
    """The side of a connection that sends."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Stream] = {}
        #: Bytes that the peer takes, on all streams and on a new one, and in a frame.
        self._window = h2.DEFAULT_WINDOW
        self._stream_window = h2.DEFAULT_WINDOW
        self._frame_bytes = h2.MAX_FRAME_BYTES
        #: The connection ends when the last stream has.
        self._leaving = False

    @property
    def streams(self) -> int:
        """Streams that are not answered yet."""
        return len(self._streams)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def send(self, stream: Stream, start: bytes, data: bytes, end: bytes | None) -> None:
        """Sends for a stream; see :meth:`Stream.send`.

        Args:
            stream: The stream.
            start: Header block before the data; empty for none.
            data: The data.
            end: Trailing header block; None where more follows.
        """
        number, size = stream.number, len(data)
        parts = [h2.frame(h2.HEADERS, h2.END_HEADERS, number, start)] if start else []
        if not stream.unsent and size <= stream.window and size <= self._window and size <= self._frame_bytes:
            # Nearly every answer: one write, and done.
            if size:
                stream.window -= size
                self._window -= size
                parts += [h2.HEADER.pack(size >> 8, size & 0xFF, h2.DATA, 0, number), data]
            if end is not None:
                parts.append(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, number, end))
            self._write(b"".join(parts))
            if end is not None:
                # Not before: it may close the connection.
                self._finish(stream)
            return
        if parts:
            self._write(parts[0])
        stream.unsent = stream.unsent + data if stream.unsent else data
        stream.unsent_end = end
        self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        """Sends what waits for a window, as far as there is one now."""
        if not stream.unsent and stream.unsent_end is None:
            return
        view = memoryview(stream.unsent)
        at = 0
        while at < len(view):
            size = min(len(view) - at, stream.window, self._window, self._frame_bytes)
            if size <= 0:
                break
            self._write(h2.HEADER.pack(size >> 8, size & 0xFF, h2.DATA, 0, stream.number) + view[at : at + size])
            stream.window -= size
            self._window -= size
            at += size
        stream.unsent = bytes(view[at:])
        if not stream.unsent and stream.unsent_end is not None:
            end, stream.unsent_end = stream.unsent_end, None
            self._write(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream.number, end))
            self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        stream.closed = True
        if stream.ended:
            self._drop(stream)
        else:
            # The answer is complete before the request: the peer need not go on.
            asyncio.get_running_loop().call_soon(self._cut, stream)
        self._leave_if_done()

    def _cut(self, stream: Stream) -> None:
        if self._drop(stream) and not stream.ended:
            self._write(h2.reset(stream.number, h2.NO_ERROR))
        self._leave_if_done()

    def reset(self, stream: Stream, code: int) -> None:
        """Gives a stream up.

        Args:
            stream: The stream.
            code: Why.
        """
        self._write(h2.reset(stream.number, code))
        self._lose(stream)
        self._leave_if_done()

    def _lose(self, stream: Stream) -> None:
        """Ends a stream that will not be answered."""
        stream.closed = True
        handler = stream.handler
        self._drop(stream)
        handler.on_reset()

    def _drop(self, stream: Stream) -> bool:
        """Forgets a stream, and says whether it was known."""
        # A stream and its handler know each other: left so, each call would be work for the garbage collector, which
        # stops the whole server for as long as 20 ms when it looks at everything.
        stream.handler = _NOBODY
        return self._streams.pop(stream.number, None) is not None

    def _leave_if_done(self) -> None:
        if self._leaving and not self._streams and self._transport is not None:
            self._transport.close()
