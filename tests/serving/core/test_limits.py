"""What clients may have the core hold, over sockets: connections, header fields, time, bytes of requests."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from modelyard.clients.http import decode_fields as decode
from modelyard.clients.http import encode_fields as encode
from tests.serving.core.frames import (
    DATA,
    GOAWAY,
    HEADERS,
    METHOD,
    PING,
    PREFACE,
    SETTINGS,
    STREAM,
    WINDOW_UPDATE,
    call_head,
    fields_of,
    frame,
    frames,
    opened,
)  # fmt: skip
from tests.support.server import free_port
from tests.support.waiting import until

core = pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")


class Echo:
    """In place of the handlers: says how many bytes came, and sends messages back."""

    def rest(self, exchange: Any) -> None:
        host = exchange.headers.get("host", "").encode()
        exchange.respond(200, [(b"x-host", host)], b"%d" % len(exchange.body))

    def __init__(self) -> None:
        self.streams: list[Any] = []

    def call(self, call: Any) -> None:
        if call.path == STREAM:
            self.streams.append(call)
        else:
            call.respond(call.message)

    def feed(self, call: Any, message: bytes | None) -> None:
        """The test takes the messages of a stream."""

    def gone(self, item: Any) -> None:
        """Nobody waits for it."""

    def learn(self, *key: Any) -> None:
        """There are no plans."""


class Ports:
    """A core with short limits."""

    def __init__(self, handlers: Echo, server: Any, rest: int, grpc_port: int) -> None:
        self.handlers, self.server, self.rest, self.grpc = handlers, server, rest, grpc_port

    def inflight(self, wanted: int) -> None:
        """Waits until so many bytes of requests are held."""
        until(lambda: self.server.inflight_bytes == wanted, what=lambda: self.server.inflight_bytes)

    def call(self, message: bytes) -> Any:
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc}") as channel:
            return channel.unary_unary(METHOD, bytes, bytes)(message, timeout=20)


@contextlib.contextmanager
def serving(**limits: Any) -> Iterator[Ports]:
    rest, grpc_port = free_port(), free_port()
    handlers = Echo()
    server = core.Server(
        handlers, threads=1, max_body_bytes=1 << 20, max_message_bytes=1 << 20, rest_timeout_s=30.0,
        wrong_rest_port="", wrong_grpc_port="not gRPC", **limits,
    )  # fmt: skip
    server.set_methods({METHOD: False, STREAM: True})
    server.listen(grpc=False, port=rest)
    server.listen(grpc=True, port=grpc_port)
    try:
        yield Ports(handlers, server, rest, grpc_port)
    finally:
        server.stop(0.0)


@contextlib.contextmanager
def connected(port: int, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        yield connection


def to_the_end(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while more := connection.recv(65536):
            data += more
    return data


def ask(port: int, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own."""
    with connected(port, head.encode() + b"\r\nhost: x\r\nconnection: close\r\n\r\n" + body) as connection:
        return answer(to_the_end(connection))


def answer(data: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    start, *lines = head.decode().split("\r\n")
    return int(start.split()[1]), dict(line.split(": ", 1) for line in lines), body


def pushback(error: grpc.RpcError) -> list[Any]:
    """Milliseconds after which a refused call may be tried again."""
    return [each.value for each in error.trailing_metadata() if each.key == "grpc-retry-pushback-ms"]


def test_connections_beyond_the_limit_are_told_to_come_back() -> None:
    with serving(max_connections=1) as ports, connected(ports.rest) as first:
        status, headers, body = ask(ports.rest, "GET / HTTP/1.1")
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert "1 connections already (--max_connections)" in json.loads(body)["error"]
        with connected(ports.rest, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000\r\n\r\n") as sending:
            # Were the rest not read, it would be answered with a reset, which takes the answer away.
            for _ in range(400):
                sending.sendall(b"x" * 10_000)
            assert answer(to_the_end(sending))[0] == 503
        with pytest.raises(grpc.RpcError) as caught:
            ports.call(b"x")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert pushback(caught.value) == ["1000"]
        # Many more are closed at once.
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(connected(ports.rest)) for _ in range(70)]
            crowd[-1].settimeout(0.5)
            assert crowd[-1].recv(1) == b""
        first.close()
        until(lambda: not ports.server.connections)
        assert ask(ports.rest, "GET / HTTP/1.1")[0] == 200


def test_a_head_that_does_not_come_to_an_end_is_answered_408() -> None:
    with serving(header_timeout_s=0.3) as ports:
        for begin in (b"GET / HTTP/1.1\r\nhost: x\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET "):
            with connected(ports.rest, begin) as connection:
                if begin.endswith(b"GET "):
                    # The next one on a connection.
                    assert b"200 OK" in connection.recv(65536)
                    connection.sendall(b"/ HT")
                status, headers, body = answer(to_the_end(connection))
                assert (status, headers["connection"]) == (408, "close")
                assert "after 0.3 s (--header_timeout_seconds)" in json.loads(body)["error"]
        with connected(ports.grpc, b"PR") as connection:
            assert to_the_end(connection) == b""


def test_idle_connections_are_closed() -> None:
    with serving(idle_timeout_s=0.3, header_timeout_s=10.0) as ports:
        with connected(ports.rest, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n") as used, connected(ports.rest) as silent:
            assert answer(to_the_end(used))[0] == 200
            assert to_the_end(silent) == b""
        for begin in (PREFACE, PREFACE[:20], PREFACE + call_head()[:20]):
            with connected(ports.grpc, begin) as connection:
                found = frames(connection, last=-1)
                # Over HTTP/2 in an orderly way, where it has begun.
                assert (GOAWAY in [kind for kind, _ in found]) == (begin != PREFACE[:20])


def test_a_connection_that_is_used_is_not_idle() -> None:
    with serving(idle_timeout_s=2.0) as ports, connected(ports.rest) as used:
        for _ in range(4):
            used.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert used.recv(65536).startswith(b"HTTP/1.1 200 ")
            time.sleep(0.8)


def test_a_stream_that_ends_within_a_message_is_refused() -> None:
    with serving() as ports:
        for begun in (b"\0\0", b"\0\0\0\0\5abc"):
            ended = call_head(path=STREAM) + frame(DATA, 1, begun)
            with connected(ports.grpc, PREFACE + ended) as connection:
                blocks = [content for kind, content in frames(connection, -1, HEADERS) if kind == HEADERS]
            fields = dict(decode(blocks[-1]))
            assert (fields["grpc-status"], fields["grpc-message"]) == ("13", "The stream ended within a message.")


def test_header_fields_are_limited() -> None:
    with serving(max_header_bytes=10_000, max_streams=3) as ports:
        assert ask(ports.rest, "GET / HTTP/1.1\r\nx: " + "a" * 9000)[0] == 200
        assert ask(ports.rest, "GET / HTTP/1.1\r\nx: " + "a" * 11_000)[0] == 431
        # As the flag's help says.
        assert ask(ports.rest, "GET / HTTP/1.1" + "\r\nx: a" * 101)[0] == 431
        with connected(ports.grpc, PREFACE + call_head(("x", "a" * 11_000), end=True)) as connection:
            assert fields_of(connection)[":status"] == "431"
        with connected(ports.grpc, PREFACE) as connection:
            settings = next(content for kind, content in frames(connection, SETTINGS) if kind == SETTINGS)
            pairs = {settings[i : i + 2]: settings[i + 2 : i + 6] for i in range(0, len(settings), 6)}
            # SETTINGS_MAX_CONCURRENT_STREAMS and SETTINGS_MAX_HEADER_LIST_SIZE.
            assert [int.from_bytes(pairs[key]) for key in (b"\0\3", b"\0\6")] == [3, 10_000]


def test_a_body_that_comes_too_slowly_is_refused() -> None:
    with serving(body_timeout_s=0.3, max_inflight_bytes=1000) as ports:
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
        with connected(ports.rest, head + b"12345") as connection:
            status, headers, body = answer(connection.recv(65536))
            assert (status, headers["connection"]) == (408, "close")
            assert "5 bytes of the request's body came" in json.loads(body)["error"]
        with connected(ports.grpc, PREFACE + call_head() + frame(DATA, 0, b"\0\0\0\0\x64abc")) as connection:
            fields = fields_of(connection)
            assert fields["grpc-status"] == "4" and "--body_timeout_seconds" in fields["grpc-message"]
        ports.inflight(0)


def test_bytes_in_flight_are_limited_before_they_are_there() -> None:
    with serving(max_inflight_bytes=1000) as ports:
        with connected(ports.rest, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 800\r\n\r\n") as first:
            ports.inflight(800)
            status, headers, body = ask(ports.rest, "POST / HTTP/1.1\r\ncontent-length: 300", b"a" * 300)
            assert (status, headers["retry-after"]) == (503, "1")
            assert "holds 800 bytes of requests already, of --max_inflight_bytes=1000" in json.loads(body)["error"]
            # Without a length, as its bytes come.
            chunked = b"12c\r\n" + b"a" * 300 + b"\r\n0\r\n\r\n"
            assert ask(ports.rest, "POST / HTTP/1.1\r\ntransfer-encoding: chunked", chunked)[0] == 503
            with pytest.raises(grpc.RpcError) as caught:
                ports.call(b"a" * 300)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert pushback(caught.value) == ["1000"]
            assert ports.call(b"a" * 200) == b"a" * 200
            first.sendall(b"a" * 800)
            assert answer(first.recv(65536))[0] == 200
        ports.inflight(0)
        with connected(ports.grpc, PREFACE + call_head() + frame(DATA, 0, b"\0\0\0\3\x84")):
            ports.inflight(900)
            assert ask(ports.rest, "POST / HTTP/1.1\r\ncontent-length: 300", b"a" * 300)[0] == 503
        # A client that goes gives back what it had.
        ports.inflight(0)
        assert ask(ports.rest, "POST / HTTP/1.1\r\ncontent-length: 300", b"a" * 300)[2] == b"300"


def test_messages_of_a_stream_are_charged_until_they_are_answered() -> None:
    def message(size: int) -> bytes:
        return frame(DATA, 0, b"\0" + size.to_bytes(4) + b"a" * size)

    with serving(max_inflight_bytes=1000) as ports:
        with connected(ports.grpc, PREFACE + call_head(path=STREAM) + message(100) + message(50)) as connection:
            ports.inflight(150)
            (call,) = ports.handlers.streams
            call.took()
            call.took()
            assert ports.server.inflight_bytes == 150
            call.send(b"an answer")
            assert ports.server.inflight_bytes == 50
            connection.sendall(message(960))
            # What it was answered so far, and its trailers.
            blocks = [content for kind, content in frames(connection, -1, HEADERS) if kind == HEADERS]
            assert dict(decode(blocks[-1]))["grpc-status"] == "8"
        ports.inflight(0)


def test_a_compressed_message_is_charged_as_it_grows() -> None:
    with serving(max_inflight_bytes=100_000) as ports:
        address = f"127.0.0.1:{ports.grpc}"
        with grpc.insecure_channel(address, compression=grpc.Compression.Gzip) as channel:
            echo = channel.unary_unary(METHOD, bytes, bytes)
            with pytest.raises(grpc.RpcError) as caught:
                echo(b"\0" * 500_000, timeout=20)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(echo(b"\0" * 50_000, timeout=20)) == 50_000
        ports.inflight(0)


def test_header_fields_beyond_the_usual_are_charged() -> None:
    with serving(max_inflight_bytes=10_000, max_header_bytes=30_000) as ports:
        assert ask(ports.rest, "GET / HTTP/1.1\r\nx: " + "a" * 9000)[0] == 200
        assert ask(ports.rest, "GET / HTTP/1.1\r\nx: " + "a" * 13_000)[0] == 503
        head = call_head(("x", "a" * 8000), path=STREAM)
        with connected(ports.grpc, PREFACE + head) as connection:
            assert fields_of(connection)[":status"] == "200"
            # As long as the stream lives.
            ports.inflight(sum(len(name) + len(value) + 32 for name, value in decode(head[9:])[3:]) - 2048)
        ports.inflight(0)


def test_streams_are_limited() -> None:
    with serving(max_streams=5000) as ports, connected(ports.grpc, PREFACE) as connection:
        for number in range(4100):
            connection.sendall(opened(2 * number + 1))
        until(lambda: len(ports.handlers.streams) == 4096, what=lambda: len(ports.handlers.streams))
        with pytest.raises(grpc.RpcError) as caught:
            with grpc.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
                list(channel.stream_stream(STREAM, bytes, bytes)(iter([]), timeout=20))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "4096 streams" in (caught.value.details() or "") and pushback(caught.value) == ["1000"]
        # Unary calls have no part in it.
        assert ports.call(b"x") == b"x"


def test_a_stream_costs_python_nothing_before_its_first_message() -> None:
    with serving() as ports, connected(ports.grpc, PREFACE) as connection:
        connection.sendall(opened(1, b"") + opened(3, b"\0\0\0\0") + opened(5))
        until(lambda: ports.handlers.streams)
        time.sleep(0.2)
        assert len(ports.handlers.streams) == 1
        connection.sendall(frame(DATA, 0, b"\0", stream=3) + frame(DATA, 1, b"", stream=1))
        until(lambda: len(ports.handlers.streams) == 3)


def test_a_stop_waits_for_no_stream_without_a_message() -> None:
    with (
        serving() as ports,
        connected(ports.grpc, PREFACE + opened(1)) as busy,
        connected(ports.grpc, PREFACE + opened(1, b"")) as silent,
    ):
        frames(busy, HEADERS)
        frames(silent, HEADERS)
        until(lambda: ports.handlers.streams)
        stop = threading.Thread(target=ports.server.stop, args=(60.0,))
        stop.start()
        ended = fields_of(silent)
        assert ended["grpc-status"] == "14" and "stopping" in ended["grpc-message"]
        assert stop.is_alive()
        (call,) = ports.handlers.streams
        call.finish(0, "", [])
        stop.join(20)
        assert not stop.is_alive()


def test_a_stream_that_is_opened_after_the_last_goaway_costs_the_others_nothing() -> None:
    with serving() as ports, connected(ports.grpc, PREFACE + opened(1)) as connection:
        until(lambda: ports.handlers.streams)
        stop = threading.Thread(target=ports.server.stop, args=(20.0,))
        stop.start()
        found = frames(connection, PING)
        assert [content[:4] for kind, content in found if kind == GOAWAY] == [b"\x7f\xff\xff\xff"]
        # A client that did not know of the end when it opened a stream, with a larger window, as gRPC's C core does.
        acknowledged = frame(PING, 1, found[-1][1], stream=0)
        connection.sendall(acknowledged + opened(3) + frame(WINDOW_UPDATE, 0, b"\0\1\0\0", stream=3))
        assert frames(connection, GOAWAY)[-1][1] == b"\0\0\0\1" + b"\0\0\0\0"
        (call,) = ports.handlers.streams
        call.finish(0, "", [])
        blocks = [content for kind, content in frames(connection, -1) if kind == HEADERS]
        assert dict(decode(blocks[-1]))["grpc-status"] == "0"
        stop.join(20)


_SMALL = {
    "settings": frame(SETTINGS, 0, b"\0\4\0\0\xff\xff", stream=0),
    "windows": frame(WINDOW_UPDATE, 0, b"\0\0\0\1", stream=0),
    "pings": frame(PING, 0, b"12345678", stream=0),
    "bytes of a message": frame(DATA, 0, b"a"),
    "nothing of a message": frame(DATA, 0, b""),
}


@pytest.mark.parametrize("small", _SMALL.values(), ids=_SMALL)
def test_a_flood_of_small_frames_ends_its_connection(small: bytes) -> None:
    with serving() as ports:
        with connected(ports.grpc, PREFACE + call_head(path=STREAM) + frame(DATA, 0, b"\0\0\x0f\0\0")) as flood:
            with pytest.raises(OSError):
                for _ in range(100):
                    flood.sendall(small * 1000)
                    # A connection that was ended is seen at the next write.
                    time.sleep(0.01)
        assert ports.call(b"x") == b"x"
        ports.inflight(0)


def test_requests_that_two_servers_could_read_differently_are_refused() -> None:
    with serving() as ports:
        for head, body, words in (
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked", b"-1\r\na\r\n0\r\n\r\n", "not in chunks"),
            ("POST / HTTP/1.1\r\ntransfer-encoding: chunked", b"1\r\nabc\r\n0\r\n\r\n", "not in chunks"),
            ("POST / HTTP/1.1\r\nhost: y\r\ncontent-length: 1", b"a", "several Host fields"),
        ):
            status, headers, text = ask(ports.rest, head, body)
            assert (status, headers["connection"], words in json.loads(text)["error"]) == (400, "close", True), text
        ports.inflight(0)


def test_the_host_is_the_targets() -> None:
    with serving() as ports:
        fields = ((":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a.example:1"))
        with connected(ports.rest, PREFACE + frame(HEADERS, 5, encode(fields))) as connection:
            assert fields_of(connection)["x-host"] == "a.example:1"
        assert ask(ports.rest, "POST http://a.example:1/ HTTP/1.1")[1]["x-host"] == "a.example:1"
        assert ask(ports.rest, "POST / HTTP/1.1")[1]["x-host"] == "x"


def test_what_is_no_http_is_refused() -> None:
    with serving() as ports:
        with connected(ports.grpc, b"NONSENSE /\r\n\r\n" + b"\0" * 20) as connection:
            assert connection.recv(1) == b""
        assert ask(ports.grpc, "GET / HTTP/1.1")[0] == 400


def test_a_connection_without_a_request_delays_no_stop() -> None:
    with serving() as ports, connected(ports.rest), connected(ports.grpc, b"PR"), connected(ports.grpc, PREFACE):
        assert ask(ports.rest, "GET / HTTP/1.1")[0] == 200
        begun = time.monotonic()
        ports.server.stop(20.0)
        assert time.monotonic() - begun < 10.0
