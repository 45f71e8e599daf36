"""gRPC's use of HTTP/2 (RFC 9113), with no I/O in it: frames, windows, and streams of one request and one answer.

A transport sends what :meth:`Connection.output` returns and feeds what
arrives; blocking and asynchronous transports differ in nothing else.
"""

from __future__ import annotations

import struct

from modelyard.clients.http._bodies import TLS_ALERT
from modelyard.clients.http._hpack import Fields, decode
from modelyard.errors import ProtocolError

_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _CONTINUATION = range(10)
_END_STREAM = _ACK = 0x1
_END_HEADERS = 0x4
_PADDED = 0x8
_HAS_PRIORITY = 0x20
_SETTING_STREAMS, _SETTING_WINDOW, _SETTING_FRAME = 3, 4, 5
_HEAD = 9
_PING_SIZE = 8
#: The head of a frame: its size in two parts, its kind, its flags, its stream.
_FRAME_HEAD = struct.Struct(">HBBBI")
#: The same, and the head of a message in it: whether it is compressed, and its length.
_MESSAGE_FRAME_HEAD = struct.Struct(">HBBBIBI")
_LARGEST_WINDOW = (1 << 31) - 1
_LAST_STREAM = (1 << 31) - 1
_FIRST_WINDOW = 65_535
_FIRST_FRAME = 16_384
#: The largest frame that the server may send: fewer heads to read in large answers.
_FRAME = 1 << 20
#: As much as grpcio takes.
_MAX_BLOCK = 1 << 14
#: Blocks of headers that an answer may have: one, trailers, and some interim ones (1xx).
_MOST_BLOCKS = 16
#: Frames that neither begin nor end a call nor move its data on; PINGs that measure a window are one a round trip.
_MOST_CONTROL = 10_000
#: Settings in a frame: there are less than ten, and one of a window is for every call that is under way.
_MOST_SETTINGS = 32
#: Smaller parts of an answer are collected: an object for each takes many times their size.
_SMALL = 4096
#: The windows are refilled when half of them is used.
_REFILL = 1 << 30
#: Bytes before a message: whether it is compressed, and its length.
_MESSAGE_HEAD = 5
CANCEL = 8
REFUSED = 7


def _frame_head(size: int, kind: int, flags: int, stream: int) -> bytes:
    return _FRAME_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _frame_head(len(payload), kind, flags, stream) + payload


#: Table of headers, push, window of a stream, frame, list of headers.
_SETTINGS_SENT = ((1, 0), (2, 0), (_SETTING_WINDOW, _LARGEST_WINDOW), (_SETTING_FRAME, _FRAME), (6, _MAX_BLOCK))
_PREFACE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(
        _SETTINGS,
        0,
        0,
        b"".join(number.to_bytes(2) + value.to_bytes(4) for number, value in _SETTINGS_SENT),
    )
    + _frame(_WINDOW, 0, 0, (_LARGEST_WINDOW - _FIRST_WINDOW).to_bytes(4))
)


class Stream:
    """One call: what is left to send, and what has come.

    Attributes:
        headers: Of the answer; empty until they come.
        trailers: After the answer's data, or in its place.
        parts: The answer's data.
        size: Bytes in ``parts``.
        done: Whether nothing more will come.
        reset: HTTP/2's code where the stream was broken off; None where it was not.
    """

    __slots__ = (
        "blocks", "done", "headers", "number", "parts", "received", "reset", "size", "trailers", "unsent", "window",
    )  # fmt: skip

    def __init__(self, number: int, window: int) -> None:
        self.number = number
        self.blocks = 0
        self.window = window
        self.unsent = memoryview(b"")
        self.headers: Fields = ()
        self.trailers: Fields = ()
        self.parts: list[bytes | bytearray | memoryview] = []
        self.size = 0
        self.received = 0
        self.done = False
        self.reset: int | None = None

    @property
    def data(self) -> memoryview:
        """The answer's data as a whole."""
        return memoryview(self.parts[0] if len(self.parts) == 1 else b"".join(self.parts))


class Connection:
    """One connection's state, on the client's side.

    Attributes:
        streams: Those that are not done, by number.
        closing: Why the server takes no more streams here; None where it does.
        most_streams: Streams that the server takes at a time.
    """

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.closing: str | None = None
        self.most_streams = _LAST_STREAM
        self._out: list[bytes | memoryview] = [_PREFACE]
        self._next = 1
        self._window = _FIRST_WINDOW
        self._first_window = _FIRST_WINDOW
        self._frame_size = _FIRST_FRAME
        self._received = 0
        self._rest = b""
        self._greeted = False
        self._control = 0
        #: Of a frame of data that has not come as a whole: bytes missing, its stream, whether it is the last.
        self._missing = 0
        self._filling: Stream | None = None
        self._ends = False
        self._block: tuple[int, int, bytes] | None = None

    def output(self) -> list[bytes | memoryview]:
        """What has to be sent now; it counts as sent."""
        out = self._out
        self._out = []
        return out

    def start(self, headers: bytes, message: bytes, *, compressed: bool = False) -> Stream:
        """Begins a call."""
        number = self._next
        self._next += 2
        self._control = 0
        if self._next >= _LAST_STREAM:
            self.closing = "its numbers of streams are used up"
        stream = self.streams[number] = Stream(number, self._first_window)
        size = len(message) + _MESSAGE_HEAD
        self._out += (_frame_head(len(headers), _HEADERS, _END_HEADERS, number), headers)
        if size <= self._frame_size and size <= self._window and size <= stream.window:
            self._window -= size
            stream.window -= size
            length = len(message)
            head = _MESSAGE_FRAME_HEAD.pack(size >> 8, size & 0xFF, _DATA, _END_STREAM, number, compressed, length)
            self._out += (head, message)
            return stream
        head = b"%c%b" % (compressed, len(message).to_bytes(4))
        # A frame of its own for the head spares a copy of the message.
        if min(self._window, stream.window) >= _MESSAGE_HEAD:
            self._window -= _MESSAGE_HEAD
            stream.window -= _MESSAGE_HEAD
            self._out.append(_frame(_DATA, 0, number, head))
            stream.unsent = memoryview(message)
        else:
            stream.unsent = memoryview(head + message)
        self._pump(stream)
        return stream

    def cancel(self, stream: Stream) -> None:
        """Breaks a call off, so that the server stops its work."""
        if self.streams.pop(stream.number, None) is not None:
            stream.done = True
            self._out.append(_frame(_RESET, 0, stream.number, CANCEL.to_bytes(4)))

    def feed(self, data: bytes) -> list[Stream]:
        """Takes what has arrived."""
        done: list[Stream] = []
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, end = 0, len(data)
        view = memoryview(data)
        while at < end:
            if self._missing:
                size = min(self._missing, end - at)
                self._missing -= size
                # A view keeps all that has come with it.
                self._take(self._filling, view[at : at + size] if size * 2 >= end else data[at : at + size], size)
                at += size
                if not self._missing and self._ends and self._filling is not None:
                    self._finish(self._filling, done)
                continue
            if end - at < _HEAD:
                if not self._greeted and data.startswith(TLS_ALERT):
                    raise ProtocolError("it answered in TLS: begin the URL with grpcs://")
                break
            # A server's first frame are its settings: anything else is another protocol.
            if not self._greeted and (data[0] or data[3] != _SETTINGS or data[4]):
                raise ProtocolError(f"expected HTTP/2; received {data[:80]!r}")
            self._greeted = True
            size, low, kind, flags, number = _FRAME_HEAD.unpack_from(data, at)
            size, number = size << 8 | low, number & _LAST_STREAM
            if size > _FRAME:
                raise ProtocolError(f"An HTTP/2 peer sent a frame of {size} bytes; {_FRAME} were allowed.")
            if kind == _DATA and not flags & _PADDED:
                at += _HEAD
                self._missing, self._filling, self._ends = size, self.streams.get(number), bool(flags & _END_STREAM)
                if not size or self._filling is None:
                    self._count()
                if not size and self._ends and self._filling is not None:
                    self._finish(self._filling, done)
                continue
            if end - at < _HEAD + size:
                break
            payload = data[at + _HEAD : at + _HEAD + size]
            at += _HEAD + size
            try:
                self._read(kind, flags, number, payload, done)
            except IndexError as exc:
                raise ProtocolError(f"An HTTP/2 peer sent a frame that is too short: {payload!r}.") from exc
        self._rest = data[at:]
        return done

    def _read(self, kind: int, flags: int, number: int, payload: bytes, done: list[Stream]) -> None:
        if self._block is not None and kind != _CONTINUATION:
            raise ProtocolError("An HTTP/2 peer broke its headers off for a frame of another kind.")
        # A server may open its window for each frame of a request that was sent as a whole.
        if kind != _WINDOW:
            self._count()
        if kind in (_HEADERS, _CONTINUATION):
            self._headers(kind, flags, number, payload, done)
        elif kind == _DATA:
            stream = self.streams.get(number)
            size = len(payload) - 1 - payload[0]
            if size < 0:
                raise ProtocolError(f"An HTTP/2 peer sent {payload[0]} bytes of padding in {len(payload)}.")
            self._received += 1 + payload[0]
            self._take(stream, payload[1 : 1 + size], size)
            if flags & _END_STREAM and stream is not None:
                self._finish(stream, done)
        elif kind == _RESET:
            stream = self.streams.get(number)
            if stream is not None:
                # A code is four bytes: of more Python could not even write the number into an error.
                stream.reset = int.from_bytes(payload[:4])
                self._finish(stream, done)
        elif kind == _SETTINGS and not flags & _ACK:
            self._settings(payload)
        elif kind == _PING and not flags & _ACK:
            if len(payload) != _PING_SIZE:
                raise ProtocolError(f"An HTTP/2 peer sent a PING of {len(payload)} bytes; it has 8.")
            self._out.append(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW:
            self._widen(number, int.from_bytes(payload) & _LARGEST_WINDOW)
        elif kind == _GOAWAY:
            last = int.from_bytes(payload[:4]) & _LAST_STREAM
            code = int.from_bytes(payload[4:8])
            self.closing = f"the server ends this connection (code {code} {payload[8:200].decode('latin-1')})".rstrip()
            for stream in [item for item in self.streams.values() if item.number > last]:
                stream.reset = REFUSED
                self._finish(stream, done)

    def _headers(self, kind: int, flags: int, number: int, payload: bytes, done: list[Stream]) -> None:
        if kind == _HEADERS:
            start, stop = 0, len(payload)
            if flags & _PADDED:
                start, stop = 1, stop - payload[0]
            if flags & _HAS_PRIORITY:
                start += 5
            block = payload[start:stop]
        elif self._block is None or self._block[0] != number:
            raise ProtocolError("An HTTP/2 peer continued headers that it had not begun.")
        else:
            flags |= self._block[1]
            block = self._block[2] + payload
        if len(block) > _MAX_BLOCK:
            raise ProtocolError(f"An HTTP/2 peer sent headers of more than {_MAX_BLOCK} bytes.")
        if not flags & _END_HEADERS:
            self._block = (number, flags, block)
            return
        self._block = None
        stream = self.streams.get(number)
        # Without a table a block that nobody waits for need not be read.
        if stream is None:
            return
        stream.blocks += 1
        if stream.blocks > _MOST_BLOCKS:
            raise ProtocolError(f"An HTTP/2 peer sent more than {_MOST_BLOCKS} blocks of headers in one answer.")
        fields = decode(block)
        if flags & _END_STREAM:
            stream.trailers = fields
            self._finish(stream, done)
        elif not fields or fields[0][0] != ":status" or not fields[0][1].startswith("1"):
            stream.headers = fields

    def _count(self) -> None:
        """Counts a frame that may come without end, at no cost to the server."""
        self._control += 1
        if self._control > _MOST_CONTROL:
            raise ProtocolError(f"An HTTP/2 peer sent {_MOST_CONTROL} frames that carry nothing of an answer.")

    def _settings(self, payload: bytes) -> None:
        if len(payload) > 6 * _MOST_SETTINGS:
            raise ProtocolError(f"An HTTP/2 peer sent {len(payload) // 6} settings in a frame; expected a few.")
        for at in range(0, len(payload) - 5, 6):
            number, value = int.from_bytes(payload[at : at + 2]), int.from_bytes(payload[at + 2 : at + 6])
            if number == _SETTING_STREAMS:
                self.most_streams = value
            elif number == _SETTING_FRAME:
                # RFC 9113, section 6.5.2: a request in frames of one byte would take 400 times its size.
                if not _FIRST_FRAME <= value < 1 << 24:
                    raise ProtocolError(f"An HTTP/2 peer asked for frames of {value} bytes; 16,384 are the least.")
                self._frame_size = value
            elif number == _SETTING_WINDOW:
                if value > _LARGEST_WINDOW:
                    raise ProtocolError(f"An HTTP/2 peer opened a window of {value} bytes; {_LARGEST_WINDOW} are most.")
                change = value - self._first_window
                self._first_window = value
                for stream in self.streams.values():
                    stream.window += change
        self._out.append(_frame(_SETTINGS, _ACK, 0, b""))
        self._pump_all()

    def _widen(self, number: int, by: int) -> None:
        if not number:
            self._window += by
            self._pump_all()
        elif (stream := self.streams.get(number)) is not None:
            stream.window += by
            self._pump(stream)

    def _pump_all(self) -> None:
        for stream in [item for item in self.streams.values() if item.unsent]:
            self._pump(stream)

    def _pump(self, stream: Stream) -> None:
        unsent = stream.unsent
        while unsent and (size := min(len(unsent), self._frame_size, self._window, stream.window)) > 0:
            ends = _END_STREAM if size == len(unsent) else 0
            self._out += (_frame_head(size, _DATA, ends, stream.number), unsent[:size])
            unsent = unsent[size:]
            self._control = 0
            self._window -= size
            stream.window -= size
        stream.unsent = unsent

    def _take(self, stream: Stream | None, part: bytes | memoryview, size: int) -> None:
        self._received += size
        if self._received >= _REFILL:
            self._out.append(_frame(_WINDOW, 0, 0, self._received.to_bytes(4)))
            self._received = 0
        if stream is None or not size:
            return
        if size >= _SMALL:
            stream.parts.append(part)
        elif stream.parts and isinstance(last := stream.parts[-1], bytearray):
            last += part
        else:
            stream.parts.append(bytearray(part))
        stream.size += size
        stream.received += size
        if stream.received >= _REFILL:
            self._out.append(_frame(_WINDOW, 0, stream.number, stream.received.to_bytes(4)))
            stream.received = 0

    def _finish(self, stream: Stream, done: list[Stream]) -> None:
        stream.done = True
        self._control = 0
        del self.streams[stream.number]
        if stream.unsent and stream.reset is None:
            # The server has answered without the rest of the request, which it would have to read otherwise.
            self._out.append(_frame(_RESET, 0, stream.number, CANCEL.to_bytes(4)))
            stream.unsent = memoryview(b"")
        done.append(stream)
