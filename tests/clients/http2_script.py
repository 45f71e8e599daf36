"""Frames of HTTP/2, and the server's side of a connection, for scripted servers."""

from __future__ import annotations

import gzip
import socket

from modelyard.clients.http import decode_fields as decode
from modelyard.clients.http import encode_fields as encode
from modelyard.wire import serving_pb2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 0x20


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def message(body: bytes, *, compressed: bool = False) -> bytes:
    return bytes([compressed]) + len(body).to_bytes(4) + body


def _status() -> bytes:
    response = serving_pb2.GetModelStatusResponse()
    response.model_version_status.add(version=3, state=30)
    return response.SerializeToString()


STATUS = _status()
OK = encode([(":status", "200"), ("content-type", "application/grpc")])
ZIPPED = encode([(":status", "200"), ("grpc-encoding", "gzip")])
DONE = encode([("grpc-status", "0")])
HELLO = frame(SETTINGS, 0, 0)


def trailers(**fields: str) -> bytes:
    return encode([(name.replace("_", "-"), value) for name, value in fields.items()])


def answer(body: bytes = STATUS, *, stream: int = 1) -> bytes:
    """What a server says to a stream."""
    return (
        frame(HEADERS, END_HEADERS, stream, OK)
        + frame(DATA, 0, stream, message(body))
        + frame(HEADERS, END | END_HEADERS, stream, DONE)
    )


class Http2Peer:
    """The server's side of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.buffer = b""
        self.frames: list[tuple[int, int, int, bytes]] = []

    def read(self, size: int) -> bytes:
        while len(self.buffer) < size:
            part = self.socket.recv(1 << 16)
            if not part:
                raise ConnectionError
            self.buffer += part
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def next(self) -> tuple[int, int, int, bytes]:
        head = self.read(9)
        found = (head[3], head[4], int.from_bytes(head[5:]), self.read(int.from_bytes(head[:3])))
        self.frames.append(found)
        return found

    def request(self) -> tuple[int, dict[str, str], bytes]:
        """Stream, headers and message of the next request."""
        if not self.frames:
            assert self.read(len(PREFACE)) == PREFACE
        headers, body = b"", b""
        while True:
            kind, flags, stream, payload = self.next()
            if kind == HEADERS:
                headers = payload
            elif kind == DATA:
                body += payload
                if flags & END:
                    return stream, dict(decode(headers)), body[5:]


#: Forms of one answer, to the first stream.
GOOD = {
    "whole": HELLO + answer(),
    "padded": HELLO
    + frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, b"\3" + b"\0\0\0\0\7" + OK + b"\0\0\0")
    + frame(DATA, PADDED, 1, b"\2" + message(STATUS) + b"\0\0")
    + frame(HEADERS, END | END_HEADERS, 1, DONE),
    "continued": HELLO
    + frame(HEADERS, 0, 1, OK[:3])
    + frame(CONTINUATION, 0, 1, OK[3:5])
    + frame(CONTINUATION, END_HEADERS, 1, OK[5:])
    + frame(DATA, 0, 1, message(STATUS))
    + frame(HEADERS, END, 1, DONE[:4])
    + frame(CONTINUATION, END_HEADERS, 1, DONE[4:]),
    "interleaved": frame(SETTINGS, 0, 0, b"\0\4\0\1\0\0\0\3\0\0\0\7\0\5\0\1\0\0")
    + frame(SETTINGS, ACK, 0)
    + frame(HEADERS, END_HEADERS, 1, encode([(":status", "103")]))
    + frame(HEADERS, END_HEADERS, 1, OK)
    + frame(PING, 0, 0, b"12345678")
    + frame(DATA, 0, 1, message(STATUS)[:2])
    + frame(WINDOW, 0, 0, b"\0\0\0\1")
    + frame(DATA, 0, 1)
    + frame(99, 0, 0, b"nobody knows this kind")
    + frame(DATA, 0, 1, message(STATUS)[2:])
    + frame(DATA, 0, 77, b"a stream that is over")
    + frame(HEADERS, END | END_HEADERS, 77, DONE)
    + frame(RESET, 0, 77, b"\0\0\0\0")
    + frame(WINDOW, 0, 77, b"\0\0\0\1")
    + frame(HEADERS, END | END_HEADERS, 1, DONE),
    "gzip": HELLO
    + frame(HEADERS, END_HEADERS, 1, ZIPPED)
    + frame(DATA, 0, 1, message(gzip.compress(STATUS), compressed=True))
    + frame(HEADERS, END | END_HEADERS, 1, DONE),
    "goodbye after it": HELLO + frame(GOAWAY, 0, 0, b"\0\0\0\1\0\0\0\0") + answer(),
}
