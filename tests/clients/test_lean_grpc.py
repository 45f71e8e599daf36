"""gRPC on plain sockets, blocking and not: frames as servers may send them, and servers that misbehave by a script."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import (
    AsyncClient,
    BalanceOptions,
    ClientOptions,
    ModelConfig,
    RetryOptions,
    TlsOptions,
    connect,
    connect_async,
)
from modelyard.clients.http import encode_fields as encode
from modelyard.wire import serving_pb2
from tests.clients.conftest import connected, peer
from tests.clients.http2_script import (
    ACK,
    CONTINUATION,
    DATA,
    DONE,
    END,
    END_HEADERS,
    GOAWAY,
    GOOD,
    HEADERS,
    HELLO,
    OK,
    PADDED,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    STATUS,
    WINDOW,
    ZIPPED,
    Http2Peer,
    answer,
    frame,
    message,
    trailers,
)
from tests.support.certificates import self_signed
from tests.support.server import RunningServer

KINDS = ["", "async"]
ONCE = ClientOptions(retry=RetryOptions(attempts=1))


def say(data: bytes, step: int = 7) -> Callable[[socket.socket], None]:
    """Answers the first request with these bytes, in pieces, so that nothing depends on where packets end."""

    def serve(connection: socket.socket) -> None:
        Http2Peer(connection).request()
        for start in range(0, len(data), max(step, len(data) // 300)):
            connection.sendall(data[start : start + max(step, len(data) // 300)])
        # Closed with unread bytes, a connection is reset, and what it said may be lost.
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass

    return serve


BAD = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
    "frames of one byte": frame(SETTINGS, 0, 0, b"\0\5\0\0\0\1"),
    "frames of 4 GB": frame(SETTINGS, 0, 0, b"\0\5\xff\xff\xff\xff"),
    "settings that take a second": HELLO + frame(SETTINGS, 0, 0, 170_000 * b"\0\4\0\1\0\0"),
    "a window of 4 GB": frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
    "a large ping": HELLO + frame(PING, 0, 0, b"x" * 1000),
    "no settings": frame(PING, 0, 0, b"12345678"),
    "endless frame": HELLO + b"\x10\0\1" + bytes([DATA, 0, 0, 0, 0, 1]),
    "nothing continued": HELLO + frame(CONTINUATION, END_HEADERS, 1, OK),
    "headers broken off": HELLO + frame(HEADERS, 0, 1, OK) + frame(PING, 0, 0, b"12345678"),
    "endless headers": HELLO + frame(HEADERS, 0, 1, b"\0" * 40_000) + frame(CONTINUATION, 0, 1, b"\0" * 40_000),
    "a table that was not offered": HELLO + frame(HEADERS, END_HEADERS, 1, b"\xbe"),
    "data without its padding": HELLO + frame(DATA, PADDED, 1),
    "headers without their padding": HELLO + frame(HEADERS, END_HEADERS | PADDED, 1),
    "no message": HELLO + frame(HEADERS, END_HEADERS, 1, OK) + frame(HEADERS, END | END_HEADERS, 1, DONE),
    "two messages": HELLO
    + frame(HEADERS, END_HEADERS, 1, OK)
    + frame(DATA, 0, 1, 2 * message(STATUS))
    + frame(HEADERS, END | END_HEADERS, 1, DONE),
    "an encoding": HELLO
    + frame(HEADERS, END_HEADERS, 1, encode([(":status", "200"), ("grpc-encoding", "snappy")]))
    + frame(DATA, 0, 1, message(STATUS, compressed=True))
    + frame(HEADERS, END | END_HEADERS, 1, DONE),
    **{
        name: HELLO
        + frame(HEADERS, END_HEADERS, 1, ZIPPED)
        + frame(DATA, 0, 1, message(content, compressed=True))
        + frame(HEADERS, END | END_HEADERS, 1, DONE)
        for name, content in {
            "damaged gzip": b"no gzip",
            "gzip without its end": gzip.compress(STATUS)[:-1],
            "gzip, and more": gzip.compress(STATUS) + b"x",
        }.items()
    },
}


@contextlib.contextmanager
def speaking(serve: Callable[[socket.socket], None], kind: str, options: ClientOptions = ONCE) -> Iterator[Any]:
    with peer(serve) as port, connected(f"grpc://127.0.0.1:{port}", kind, options) as client:
        yield client


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", GOOD)
def test_every_form_of_an_answer_is_read(name: str, kind: str) -> None:
    with speaking(say(GOOD[name]), kind) as client:
        assert client.status("m", timeout_s=10).available == (3,)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_are_sent_compressed_where_that_is_asked_for(kind: str) -> None:
    sent: list[tuple[dict[str, str], int, bytes]] = []

    def serve(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        _, headers, packed = one.request()
        flag = next(payload[0] for kind, _, _, payload in one.frames if kind == DATA)
        sent.append((headers, flag, packed))
        connection.sendall(HELLO + answer())
        connection.recv(1)

    with speaking(serve, kind, ClientOptions(compression="gzip")) as client:
        assert client.status("mine", timeout_s=10).available == (3,)
    ((headers, flag, packed),) = sent
    assert (headers["grpc-encoding"], headers["grpc-accept-encoding"], flag) == ("gzip", "identity,gzip", 1)
    assert serving_pb2.GetModelStatusRequest.FromString(gzip.decompress(packed)).model_spec.name == "mine"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BAD)
def test_what_is_no_answer_is_a_protocol_error(name: str, kind: str) -> None:
    with speaking(say(BAD[name]), kind) as client:
        with pytest.raises(errors.ProtocolError, match="grpc://127"):
            client.status("m", timeout_s=10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [0, 5, 20, len(GOOD["whole"]) - 1])
def test_an_answer_cut_short_is_unavailable(cut: int, kind: str) -> None:
    with speaking(say(GOOD["whole"][:cut]), kind) as client:
        with pytest.raises(errors.UnavailableError, match="closed the connection|reset"):
            client.status("m", timeout_s=10)


@pytest.mark.parametrize(
    ("ending", "kind", "message"),
    [
        (frame(HEADERS, END | END_HEADERS, 1, trailers(_status="") + OK), errors.InternalError, "HTTP status 200"),
        (
            frame(HEADERS, END | END_HEADERS, 1, encode([(":status", "503")])),
            errors.UnavailableError,
            "HTTP status 503",
        ),
        (frame(HEADERS, END | END_HEADERS, 1, encode([(":status", "401")])), errors.UnauthenticatedError, "401"),
        (frame(HEADERS, END | END_HEADERS, 1, OK + trailers(grpc_status="99")), errors.InternalError, "status 200"),
        (
            frame(HEADERS, END | END_HEADERS, 1, OK + trailers(grpc_status="9" * 5000)),
            errors.InternalError,
            "status 200",
        ),
        (
            frame(HEADERS, END | END_HEADERS, 1, OK + trailers(grpc_status="5", retry_after="9" * 5000)),
            errors.ModelNotFoundError,
            "no reason",
        ),
        (
            frame(HEADERS, END | END_HEADERS, 1, OK + trailers(grpc_status="5", grpc_message="gr%C3%BC%C3%9Fe 100%25")),
            errors.ModelNotFoundError,
            "grüße 100%",
        ),
        (
            frame(HEADERS, END | END_HEADERS, 1, OK + trailers(grpc_status="16")),
            errors.UnauthenticatedError,
            "no reason",
        ),
        (frame(RESET, 0, 1, b"\0\0\0\7"), errors.UnavailableError, "code 7"),
        (frame(RESET, 0, 1, b"\0\0\0\x08"), errors.RequestCancelledError, "code 8"),
        (frame(RESET, 0, 1, b"\0\0\0\x0b"), errors.OverloadedError, "code 11"),
        (frame(RESET, 0, 1, b"\0\0\0\2"), errors.InternalError, "code 2"),
        (frame(RESET, 0, 1, b"\0\0\0\2" + bytes(2000)), errors.InternalError, "code 2"),
        (frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0bye"), errors.UnavailableError, "code 7"),
    ],
)
def test_endings_have_a_class(ending: bytes, kind: type[errors.ModelyardError], message: str) -> None:
    with speaking(say(HELLO + ending), "") as client:
        with pytest.raises(errors.ModelyardError, match=message) as caught:
            client.status("m", timeout_s=10)
    assert type(caught.value) is kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("pushback", "times"), [("1", 4), ("-1", 1), ("later", 1)])
def test_a_server_that_wants_no_repetition_gets_none(pushback: str, times: int, kind: str) -> None:
    asked: list[int] = []
    refusal = OK + trailers(grpc_status="14", grpc_message="busy", grpc_retry_pushback_ms=pushback)

    def serve(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        connection.sendall(HELLO)
        while True:
            asked.append(one.request()[0])
            connection.sendall(frame(HEADERS, END | END_HEADERS, asked[-1], refusal))

    with speaking(serve, kind, ClientOptions()) as client:
        with pytest.raises(errors.UnavailableError, match="busy"):
            client.status("m", timeout_s=10)
    assert len(asked) == times


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", [frame(RESET, 0, 1, b"\0\0\0\7"), frame(GOAWAY, 0, 0, b"\0" * 8), b""])
def test_a_refused_call_is_sent_again(ending: bytes, kind: str) -> None:
    first = threading.Lock()

    def serve(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        stream, _, _ = one.request()
        if first.acquire(blocking=False):
            connection.sendall(HELLO + ending)
            if ending[3:4] != bytes([RESET]):
                return
            stream, _, _ = one.request()
            connection.sendall(answer(stream=stream))
            return
        connection.sendall(HELLO + answer())

    with speaking(serve, kind, ClientOptions()) as client:
        assert client.status("m", timeout_s=10).available == (3,)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [1, 1000])
def test_requests_keep_to_the_windows(window: int, kind: str) -> None:
    received = [b""]

    def serve(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        # A narrow window for the stream from the start, and frames of no more than 16 KiB.
        connection.sendall(frame(SETTINGS, 0, 0, b"\0\4" + window.to_bytes(4)))
        assert one.read(len(PREFACE)) == PREFACE
        # What the connection may send, and the stream.
        given, own, settled = 65_535, 65_535, False
        while True:
            kind, flags, _, payload = one.next()
            if kind == SETTINGS and flags & ACK:
                # What was sent before the settings arrived counts, too: the window may be below nothing.
                settled, own = True, own + window - 65_535
            if kind == DATA:
                received[0] += payload
                given, own = given - len(payload), own - len(payload)
                assert len(payload) <= 16_384 and given >= 0 and own >= 0
                if flags & END:
                    break
            if settled and given < 9000:
                connection.sendall(frame(WINDOW, 0, 0, (9000).to_bytes(4)))
                given += 9000
            if settled and own < 1:
                connection.sendall(frame(WINDOW, 0, 1, (20_000 - own).to_bytes(4)))
                own = 20_000
        connection.sendall(answer())

    x = np.arange(50_000, dtype=np.float32)
    with speaking(serve, kind) as client:
        with contextlib.suppress(errors.ModelyardError):
            client.predict("m", {"x": x}, timeout_s=20)
    assert len(received[0]) == 5 + int.from_bytes(received[0][1:5])
    assert received[0].endswith(x.tobytes())


@pytest.mark.parametrize("kind", KINDS)
def test_an_early_refusal_ends_the_request(kind: str) -> None:
    def serve(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        assert one.read(len(PREFACE)) == PREFACE
        while one.next()[0] != DATA:
            pass
        # With windows as they are the request cannot be complete.
        text = trailers(grpc_status="8", grpc_message="it is larger than allowed")
        connection.sendall(HELLO + frame(HEADERS, END | END_HEADERS, 1, OK + text))
        while connection.recv(1 << 16):
            pass

    with speaking(serve, kind) as client:
        with pytest.raises(errors.RequestTooLargeError, match="larger than allowed"):
            client.predict("m", {"x": np.zeros(1 << 18, np.float32)}, timeout_s=10)


@pytest.mark.parametrize("kind", KINDS)
def test_connections_are_reused_pinged_and_replaced(kind: str) -> None:
    seen: list[list[tuple[int, int, int, bytes]]] = []
    streams: list[int] = []

    def serve(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        seen.append(one.frames)
        connection.sendall(HELLO)
        for turn in range(2):
            stream, headers, _ = one.request()
            streams.append(stream)
            assert headers["te"] == "trailers" and headers["grpc-timeout"].endswith("m")
            goodbye = frame(PING, 0, 0, b"12345678") if turn == 0 else frame(GOAWAY, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0")
            connection.sendall(answer(stream=stream) + goodbye)
        connection.recv(1 << 16)

    with speaking(serve, kind) as client:
        for _ in range(4):
            assert client.status("m", timeout_s=10).available == (3,)
    assert streams == [1, 3, 1, 3]
    assert all((PING, ACK, 0, b"12345678") in frames for frames in seen)


def test_another_process_opens_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def serve(connection: socket.socket) -> None:
        opened.append(1)
        Http2Peer(connection).request()
        connection.sendall(HELLO + answer())
        while connection.recv(1 << 16):
            pass

    with speaking(serve, "") as client:
        client.status("m")
        other = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: other)
        client.status("m")
    assert len(opened) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_repeated_goes_over_a_new_connection(kind: str) -> None:
    opened: list[int] = []

    def serve(connection: socket.socket) -> None:
        opened.append(1)
        one = Http2Peer(connection)
        connection.sendall(HELLO)
        while True:
            stream, headers, _ = one.request()
            body = b"" if "Reload" in headers[":path"] else STATUS
            connection.sendall(answer(body, stream=stream))

    with speaking(serve, kind) as client:
        client.status("m")
        client.reload_config([ModelConfig(name="m", base_path="/m")])
        client.status("m")
    assert len(opened) == 2


def test_a_server_may_limit_the_calls_on_a_connection() -> None:
    lock = threading.Lock()
    running, most, opened = [0], [0], [0]
    # The first call comes alone; the next wait until there are two at a time.
    several = threading.Event()
    several.set()

    def serve(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        connection.sendall(frame(SETTINGS, 0, 0, b"\0\3\0\0\0\1"))
        with lock:
            opened[0] += 1
        with contextlib.suppress(ConnectionError):
            while True:
                stream, _, _ = one.request()
                with lock:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                threading.Event().wait(0.02)
                with lock:
                    running[0] -= 1
                connection.sendall(answer(stream=stream))

    async def run(port: int) -> None:
        async with connect_async(f"grpc://127.0.0.1:{port}", ClientOptions(max_connections=3)) as client:
            await client.status("m")
            await asyncio.gather(*(client.status("m") for _ in range(20)))

    with peer(serve) as port:
        asyncio.run(run(port))
    assert 2 <= opened[0] <= 3 and 2 <= most[0] <= opened[0]


def test_cancelling_resets_the_stream_and_keeps_the_connection() -> None:
    got, seen = threading.Event(), []

    def serve(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        connection.sendall(HELLO)
        one.request()
        got.set()
        while one.next()[0] != RESET:
            pass
        seen.append(one.frames[-1])
        # Too late, and nobody minds.
        connection.sendall(answer())
        stream, _, _ = one.request()
        connection.sendall(answer(stream=stream))
        connection.recv(1)

    async def run(port: int) -> None:
        async with connect_async(f"grpc://127.0.0.1:{port}") as client:
            task = asyncio.create_task(client.status("m"))
            await asyncio.to_thread(got.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.status("m", timeout_s=10)).available == (3,)

    with peer(serve) as port:
        asyncio.run(run(port))
    assert seen == [(RESET, 0, 1, b"\0\0\0\x08")]


def test_calls_of_one_connection_meet_their_own_deadlines() -> None:
    def serve(connection: socket.socket) -> None:
        one = Http2Peer(connection)
        connection.sendall(HELLO)
        numbers = [one.request()[0] for _ in range(4)]
        resets: list[int] = []
        while len(resets) < 3:
            if (frame := one.next())[0] == RESET:
                resets.append(frame[2])
        seen.extend([numbers.index(number) for number in resets])
        connection.sendall(answer(stream=numbers[0]))
        connection.recv(1)

    async def expired(client: AsyncClient, timeout_s: float) -> float:
        started = time.monotonic()
        with pytest.raises(errors.DeadlineExceededError, match="no complete answer in time"):
            await client.status("m", timeout_s=timeout_s)
        return time.monotonic() - started - timeout_s

    async def run(port: int) -> None:
        async with connect_async(f"grpc://127.0.0.1:{port}", ONCE) as client:
            patient = asyncio.create_task(client.status("m", timeout_s=20))
            await asyncio.sleep(0)
            late = await asyncio.gather(*[expired(client, seconds) for seconds in (1.0, 0.4, 0.7)])
            assert all(0 <= seconds < 5 for seconds in late)
            assert (await patient).available == (3,)

    seen: list[int] = []
    with peer(serve) as port:
        asyncio.run(run(port))
    assert seen == [2, 3, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 5_000, 3_000_000])
def test_messages_of_every_size(affine_server: RunningServer, kind: str, size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    with connected(f"grpc://{affine_server.grpc_address}", kind) as client:
        for _ in range(2):
            np.testing.assert_array_equal(client.predict("affine", {"x": x})["y"], x * np.float32(0.5) + 2)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_many_calls_at_a_time_get_their_own_answers(affine_server: RunningServer, scheme: str) -> None:
    url = f"grpc://{affine_server.grpc_address}" if scheme == "grpc" else affine_server.rest_url

    async def run() -> None:
        async with connect_async(url) as client:

            async def one(number: int) -> None:
                x = np.full(1 + 97 * (number % 50), number, np.float32)
                assert (await client.predict("affine", {"x": x}))["y"].tolist() == (x * 0.5 + 2).tolist()

            await asyncio.gather(*(one(number) for number in range(64)))

    asyncio.run(run())

    with connect(url) as client:

        def work(number: int) -> None:
            for turn in range(20):
                x = np.full(1 + 300 * turn, number, np.float32)
                results.append(client.predict("affine", {"x": x})["y"].tolist() == (x * 0.5 + 2).tolist())

        results: list[bool] = []
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 160


@pytest.mark.parametrize("kind", KINDS)
def test_tls_without_http2_is_unavailable(tmp_path: Path, kind: str) -> None:
    key, cert = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1)

    options = ClientOptions(tls=TlsOptions(ca=cert), retry=RetryOptions(attempts=1))
    with peer(serve) as port, connected(f"grpcs://localhost:{port}", kind, options) as client:
        with pytest.raises(errors.UnavailableError, match="no HTTP/2"):
            client.status("m", timeout_s=10)


@pytest.mark.parametrize("kind", KINDS)
def test_health_checks_share_connections(affine_server: RunningServer, kind: str) -> None:
    opened, asked = [], []

    def serve(connection: socket.socket) -> None:
        opened.append(1)
        one = Http2Peer(connection)
        connection.sendall(HELLO)
        with contextlib.suppress(ConnectionError):
            while True:
                stream, _, _ = one.request()
                asked.append(1)
                connection.sendall(answer(b"\x08\x01", stream=stream))

    balance = BalanceOptions(probe_interval_s=0.02)
    with peer(serve) as port, contextlib.ExitStack() as stack:
        urls = f"grpc://127.0.0.1:{port},grpc://{affine_server.grpc_address}"
        client: Any = stack.enter_context(connected(urls, kind, ClientOptions(balance=balance)))
        endpoint = client._engine.pool.endpoints[0]
        # Calls keep an event loop running; they go to the other server.
        while len(asked) < 10:
            endpoint.in_flight = 1000
            # One that goes to this server after all gets the answer of a health check, which is no prediction.
            with contextlib.suppress(errors.ProtocolError):
                client.predict("affine", {"x": np.zeros(1, np.float32)}, timeout_s=10)
    assert len(opened) <= 2
