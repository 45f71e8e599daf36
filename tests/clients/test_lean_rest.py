"""HTTP/1.1 on plain sockets: every framing, reuse of connections, compression, proxies."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import ClientOptions, RetryOptions, connect
from tests.clients.conftest import connected, peer
from tests.clients.http_script import read_message
from tests.support.server import RunningServer
from tests.support.waiting import until

STATUS = b'{"model_version_status": [{"version": "3", "state": "AVAILABLE"}]}'
ZIPPED = gzip.compress(STATUS)
ONCE = ClientOptions(retry=RetryOptions(attempts=1))


def _head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode()


def _zipped(body: bytes) -> bytes:
    return _head("HTTP/1.1 200 OK", f"content-length: {len(body)}", "content-encoding: gzip") + body


GOOD = {
    "length": _head("HTTP/1.1 200 OK", f"Content-Length:{len(STATUS)}") + STATUS,
    "until the end": _head("HTTP/1.0 200 OK") + STATUS,
    "no reason": _head("HTTP/1.1 200", f"content-length: {len(STATUS)} ") + STATUS,
    "interim": _head("HTTP/1.1 103 Early Hints") + _head("HTTP/1.1 200 OK", f"content-length: {len(STATUS)}") + STATUS,
    "chunks": _head("HTTP/1.1 200 OK", "Transfer-Encoding: chunked")
    + b"5;x=y\r\n" + STATUS[:5] + b"\r\n%X\r\n" % len(STATUS[5:]) + STATUS[5:] + b"\r\n0\r\nTrailer: a\r\n\r\n",
    "gzip": _zipped(ZIPPED),
}  # fmt: skip
BAD = {
    "garbage": b"220 smtp ready\r\n\r\n",
    "status": _head("HTTP/1.1 abc OK"),
    "header": _head("HTTP/1.1 200 OK", "nonsense"),
    "length": _head("HTTP/1.1 200 OK", "content-length: -1"),
    "chunk": _head("HTTP/1.1 200 OK", "transfer-encoding: chunked") + b"zz\r\n",
    "chunk end": _head("HTTP/1.1 200 OK", "transfer-encoding: chunked") + b"1\r\nabc\r\n",
    "encoding": _head("HTTP/1.1 200 OK", "content-length: 1", "content-encoding: br") + b"x",
    "gzip": _zipped(b"abc"),
    "two lengths": _head("HTTP/1.1 200 OK", f"content-length: {len(STATUS)}", "content-length: 2") + STATUS,
    "length and chunks": _head("HTTP/1.1 200 OK", "content-length: 5", "transfer-encoding: chunked") + b"0\r\n\r\n",
    "another coding": _head("HTTP/1.1 200 OK", "transfer-encoding: gzip, chunked") + b"0\r\n\r\n",
    "gzip without its end": _zipped(ZIPPED[:-1]),
    "gzip, and more": _zipped(ZIPPED + b"x"),
    "endless head": b"HTTP/1.1 200 OK\r\nx: " + b"y" * (1 << 17),
}


def _say(data: bytes, step: int = 7) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        read_message(connection)
        # In pieces, so that no framing depends on where packets end.
        if len(data) < 1000:
            for start in range(0, len(data), step):
                connection.sendall(data[start : start + step])
        else:
            connection.sendall(data)

    return answer


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("kind", ["", "async"])
def test_every_framing_is_read(name: str, kind: str) -> None:
    with peer(_say(GOOD[name])) as port, connected(f"http://127.0.0.1:{port}", kind, ONCE) as client:
        assert client.status("m", timeout_s=10).available == (3,)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("kind", ["", "async"])
def test_what_is_no_http_is_a_protocol_error(name: str, kind: str) -> None:
    with peer(_say(BAD[name])) as port, connected(f"http://127.0.0.1:{port}", kind, ONCE) as client:
        with pytest.raises(errors.ProtocolError, match="http://127"):
            client.status("m", timeout_s=10)


@pytest.mark.parametrize("kind", ["", "async"])
def test_what_comes_after_an_answer_is_nobody_s(kind: str) -> None:
    other = STATUS.replace(b"3", b"4")
    both = GOOD["length"] + _head("HTTP/1.1 200 OK", f"content-length: {len(other)}") + other

    def answer(connection: socket.socket) -> None:
        while read_message(connection) is not None:
            connection.sendall(both)

    with peer(answer) as port, connected(f"http://127.0.0.1:{port}", kind, ONCE) as client:
        for _ in range(3):
            assert client.status("m", timeout_s=10).available == (3,)


@pytest.mark.parametrize("cut", [0, 5, 30, len(GOOD["length"]) - 1])
def test_an_answer_cut_short_is_unavailable(cut: int) -> None:
    with peer(_say(GOOD["length"][:cut])) as port, connect(f"http://127.0.0.1:{port}", ONCE) as client:
        with pytest.raises(errors.UnavailableError, match="closed the connection"):
            client.status("m", timeout_s=10)


@pytest.mark.parametrize("name", ["chunks", "until the end", "gzip"])
def test_limits_hold_for_every_framing(name: str) -> None:
    options = ClientOptions(max_message_bytes=40)
    with peer(_say(GOOD[name])) as port, connect(f"http://127.0.0.1:{port}", options) as client:
        with pytest.raises(errors.RequestTooLargeError, match="larger than 40 bytes"):
            client.status("m", timeout_s=10)


@pytest.mark.parametrize("kind", ["", "async"])
def test_an_early_refusal_is_read_and_the_request_is_not_sent_again(kind: str) -> None:
    asked: list[bytes] = []

    def refuse(connection: socket.socket) -> None:
        asked.append(connection.recv(1 << 16))
        body = b'{"error": "larger than allowed"}'
        connection.sendall(_head("HTTP/1.1 413 No", "connection: close", f"content-length: {len(body)}") + body)
        # It is closed with bytes that nobody has read, which resets it.

    with peer(refuse) as port, connected(f"http://127.0.0.1:{port}", kind) as client:
        with pytest.raises(errors.RequestTooLargeError, match="larger than allowed"):
            client.classify("m", [{"x": bytes(30_000_000)}], timeout_s=20)
    assert len(asked) == 1


def test_addresses_of_a_name_share_the_time_to_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(peer(_say(GOOD["until the end"])))
        for host in ("127.0.0.2", "127.0.0.3"):
            # Nobody accepts here, so that the system lets further connections wait.
            listener = stack.enter_context(socket.create_server((host, port), backlog=0))
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(listener.getsockname())
        rows = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (2, 3, 1)]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
        with connect(f"http://models.example:{port}", ONCE) as client:
            assert client.status("m", timeout_s=3).available == (3,)
            del rows[-1]
            started = time.monotonic()
            with pytest.raises(errors.DeadlineExceededError):
                client.status("m", timeout_s=1)
            assert time.monotonic() - started < 1.8


def test_connections_are_reused_and_replaced() -> None:
    opened = threading.Semaphore(0)
    requests = [0]

    def answer(connection: socket.socket) -> None:
        opened.release()
        # Two answers on each connection, then it is closed without a word, as servers do with idle ones.
        for _ in range(2):
            if read_message(connection) is None:
                return
            requests[0] += 1
            connection.sendall(GOOD["length"])

    with peer(answer) as port, connect(f"http://127.0.0.1:{port}", ONCE) as client:
        for _ in range(2):
            assert client.status("m").available == (3,)
        (transport,) = client._engine.pool.all_transports
        idle: Any = transport
        while idle._pool._idle[0][0].usable():
            pass
        for _ in range(2):
            assert client.status("m").available == (3,)
    assert requests == [4]
    assert [opened.acquire(blocking=False) for _ in range(3)] == [True, True, False]


def test_connections_are_bounded() -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    def answer(connection: socket.socket) -> None:
        while read_message(connection) is not None:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            threading.Event().wait(0.05)
            with lock:
                running[0] -= 1
            connection.sendall(GOOD["length"])

    with peer(answer) as port, connect(f"http://127.0.0.1:{port}", ClientOptions(max_connections=2)) as client:
        threads = [threading.Thread(target=client.status, args=("m",)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [2]


def test_connections_of_a_burst_are_closed_when_they_are_old() -> None:
    burst = threading.Barrier(4)

    def answer(connection: socket.socket) -> None:
        if read_message(connection) is not None:
            burst.wait(10)
            connection.sendall(GOOD["length"])
        while read_message(connection) is not None:
            connection.sendall(GOOD["length"])

    with peer(answer) as port, connect(f"http://127.0.0.1:{port}", ClientOptions(keepalive_s=0.2)) as client:
        threads = [threading.Thread(target=client.status, args=("m",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (transport,) = client._engine.pool.all_transports
        idle = cast(Any, transport)._pool._idle
        assert len(idle) == 4
        until(lambda: client.status("m") and len(idle) == 1, 2, "connections that no call needs stay open")


def test_calls_of_the_parent_bound_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[int] = []
    over = threading.Event()

    def answer(connection: socket.socket) -> None:
        read_message(connection)
        requests.append(1)
        if len(requests) == 1:
            over.wait(10)
        connection.sendall(GOOD["length"])

    with peer(answer) as port, connect(f"http://127.0.0.1:{port}", ClientOptions(max_connections=1)) as client:
        thread = threading.Thread(target=client.status, args=("m",))
        thread.start()
        until(lambda: requests)
        other = os.getpid() + 1
        monkeypatch.setattr(os, "getpid", lambda: other)
        assert client.status("m", timeout_s=1).available == (3,)
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", ["grpc", "rest", "grpc-async", "rest-async"])
def test_compression(affine_server: RunningServer, kind: str) -> None:
    url = f"grpc://{affine_server.grpc_address}" if kind.startswith("grpc") else affine_server.rest_url
    x = np.zeros(10_000, np.float32)
    with connected(url, kind, ClientOptions(compression="gzip")) as client:
        assert set(client.predict("affine", {"x": x})["y"].tolist()) == {2.0}


@pytest.mark.parametrize("kind", ["", "async"])
def test_large_bodies_are_sent_compressed(kind: str) -> None:
    sent: list[tuple[bytes, bytes]] = []

    def answer(connection: socket.socket) -> None:
        while (message := read_message(connection)) is not None:
            sent.append(message)
            body = b'{"outputs": []}'
            if message[0].startswith(b"GET"):
                signature = {"serving_default": {"inputs": {}, "outputs": {}, "method_name": ""}}
                signature["serving_default"]["inputs"] = {"x": {"dtype": "DT_FLOAT"}}
                signature["serving_default"]["outputs"] = {"y": {"dtype": "DT_FLOAT"}}
                document = {"model_spec": {"name": "m"}, "metadata": {"signature_def": {"signature_def": signature}}}
                body = json.dumps(document).encode()
            connection.sendall(_head("HTTP/1.1 200 OK", f"content-length: {len(body)}") + body)

    with peer(answer) as port:
        with connected(f"http://127.0.0.1:{port}", kind, ClientOptions(compression="gzip")) as client:
            assert client.predict("m", {"x": np.zeros(5000, np.float32)})["y"].shape == (0,)
    head, body = sent[-1]
    assert b"content-encoding: gzip" in head.lower()
    assert len(json.loads(gzip.decompress(body))["inputs"]["x"]) == 5000


def test_the_environments_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        message = read_message(connection)
        if message is not None:
            seen.append(message[0].split(b"\r\n")[0])
            connection.sendall(GOOD["length"])

    with peer(answer) as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("no_proxy", "")
        with connect("http://models.example:8501", ONCE) as client:
            assert client.status("m", timeout_s=10).available == (3,)
    assert seen == [b"GET http://models.example:8501/v1/models/m HTTP/1.1"]
