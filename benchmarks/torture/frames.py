"""HTTP/2 frames, whole or wrong, and connections that send them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from modelyard.clients.http import encode_fields

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
INFER_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
PREDICT = "/tensorflow.serving.PredictionService/Predict"


def frame(kind: int, flags: int, payload: bytes = b"", *, stream: int = 0) -> bytes:
    """One frame."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def head(stream: int, path: str, *more: tuple[str, str], flags: int = END_HEADERS) -> bytes:
    """The head of a gRPC call."""
    fields = [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
        ("content-type", "application/grpc"), ("te", "trailers"), *more,
    ]  # fmt: skip
    return frame(HEADERS, flags, encode_fields(fields), stream=stream)


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    """Bytes of a body, in frames of the usual largest size."""
    parts = [payload[at : at + 16384] for at in range(0, len(payload), 16384)] or [b""]
    last = len(parts) - 1
    return b"".join(
        frame(DATA, END_STREAM if end and number == last else 0, part, stream=stream)
        for number, part in enumerate(parts)
    )


def message(payload: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix."""
    return bytes([compressed]) + len(payload).to_bytes(4) + payload


class Wire:
    """A connection that sends what it is told to, and counts what comes back."""

    def __init__(self, port: int, *, reads: bool = True, settings: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.closed = False
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, settings))
        # The server's windows hold once its settings are acknowledged.
        self.received = len(self.socket.recv(1 << 16))
        self.socket.sendall(frame(SETTINGS, 1))
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while got := self.socket.recv(1 << 16):
                self.received += len(got)
        self.closed = True

    def send(self, content: bytes) -> bool:
        """Sends all of it; False where the server has ended the connection, or takes no more."""
        try:
            self.socket.sendall(content)
        except OSError:
            self.closed = True
        return not self.closed

    def close(self) -> None:
        """Ends the connection, also where another thread reads."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@contextlib.contextmanager
def wire(port: int, *, reads: bool = True, settings: bytes = b"") -> Iterator[Wire]:
    """A connection with HTTP/2's beginning sent."""
    connection = Wire(port, reads=reads, settings=settings)
    try:
        yield connection
    finally:
        connection.close()


def crowd(count: int, attack: Callable[[], int]) -> int:
    """Runs an attack so many times at once, and returns the sum of what it counted."""
    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(lambda _: attack(), range(count)))


def flood(connection: Wire, chunk: bytes, each: int, seconds: float) -> int:
    """Sends a chunk of so many frames again and again for a while; what was sent before the server ended it."""
    sent, end = 0, time.monotonic() + seconds
    while time.monotonic() < end and connection.send(chunk):
        sent += each
    return sent
