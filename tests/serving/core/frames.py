"""Frames of HTTP/2 as a client of gRPC sends and reads them."""

from __future__ import annotations

import socket

from modelyard.clients.http import decode_fields as decode
from modelyard.clients.http import encode_fields as encode

METHOD = "/test.Service/Echo"
STREAM = "/test.Service/Stream"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8


def frame(kind: int, flags: int, payload: bytes, *, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def call_head(*more: tuple[str, str], path: str = METHOD, end: bool = False) -> bytes:
    fields = ((":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", "application/grpc"))
    return frame(HEADERS, 5 if end else 4, encode([*fields, *more]))


def opened(stream: int, data: bytes = b"\0\0\0\0\0") -> bytes:
    """A stream and, in frames of DATA, what its client sends: a message of no bytes."""
    head = call_head(path=STREAM).replace(b"\0\0\0\1", stream.to_bytes(4), 1)
    return head + (frame(DATA, 0, data, stream=stream) if data else b"")


def frames(connection: socket.socket, last: int, twice: int = -1) -> list[tuple[int, bytes]]:
    """Kinds and contents of frames, to the first of a kind, or the second of another, or to the end."""
    data, found = b"", []
    while True:
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3]):
            size = 9 + int.from_bytes(data[:3])
            found.append((data[3], data[9:size]))
            data = data[size:]
        kinds = [kind for kind, _ in found]
        if last in kinds or kinds.count(twice) == 2:
            return found
        more = connection.recv(65536)
        if not more:
            return found
        data += more


def fields_of(connection: socket.socket) -> dict[str, str]:
    return dict(decode(next(content for kind, content in frames(connection, HEADERS) if kind == HEADERS)))
