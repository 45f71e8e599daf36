"""The boundaries: what strange peers do is mapped to one class, and deadlines hold."""

from __future__ import annotations

import asyncio
import gzip
import socket
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, Literal

import httpx
import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import ClientOptions, connect_async
from modelyard.clients.transport import parse_addresses
from modelyard.clients.transport.lean import LeanRestTransport
from modelyard.clients.transport.libraries._rest import _error
from tests.clients.conftest import connected, peer
from tests.clients.http_script import read_message
from tests.support.server import RunningServer

STATUS = b'{"model_version_status": []}  '


def _silent(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.settimeout(10)
    connection.recv(1)


def _hang_up(connection: socket.socket) -> None:
    connection.recv(1 << 16)


def _nonsense(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"220 mail.example.com ESMTP\r\n\r\n")


def _trickle(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(start)
        for _ in range(100):
            connection.sendall(piece)
            time.sleep(0.05)

    return answer


TRICKLES = {
    "a body": _trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b" "),
    "a head": _trickle(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"),
    "interim answers": _trickle(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


def _redirect(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")


KINDS = [("grpc", ""), ("http", ""), ("grpc", "async"), ("http", "async")]


def _say_zipped(content: bytes) -> Callable[[socket.socket], None]:
    body = gzip.compress(content)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"

    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(head.encode() + body)

    return answer


@pytest.mark.parametrize("transport", ["own", "library"])
@pytest.mark.parametrize("kind", ["", "async"])
def test_no_more_is_inflated_than_the_limit(kind: str, transport: Literal["own", "library"]) -> None:
    options = ClientOptions(transport=transport, max_message_bytes=1000, compression="gzip")
    status = b'{"model_version_status": [{"version": "3", "state": "AVAILABLE"}]}'
    with peer(_say_zipped(status)) as port, connected(f"http://127.0.0.1:{port}", kind, options) as client:
        assert client.status("m").available == (3,)
    with peer(_say_zipped(bytes(50_000_000))) as port, connected(f"http://127.0.0.1:{port}", kind, options) as client:
        tracemalloc.start()
        try:
            with pytest.raises(errors.RequestTooLargeError, match="larger than 1000 bytes"):
                client.status("m")
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("transport", ["own", "library"])
@pytest.mark.parametrize("kind", ["", "async"])
def test_a_server_s_cookies_are_not_kept(kind: str, transport: Literal["own", "library"]) -> None:
    heads: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        while (message := read_message(connection)) is not None:
            heads.append(message[0])
            connection.sendall(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 30\r\n\r\n" + STATUS)

    with peer(answer) as port:
        with connected(f"http://127.0.0.1:{port}", kind, ClientOptions(transport=transport)) as client:
            for _ in range(2):
                assert client.status("m").versions == ()
    assert len(heads) == 2 and not any(b"cookie" in head.lower() for head in heads)


def test_no_error_shows_a_header_s_value() -> None:
    text = str(_error(httpx.LocalProtocolError("Illegal header value b'Bearer SECRET '"), "http://x"))
    assert "SECRET" not in text and "token, metadata" in text


@pytest.mark.parametrize(("scheme", "kind"), KINDS)
def test_a_silent_server_meets_the_deadline(scheme: str, kind: str) -> None:
    with peer(_silent) as port, connected(f"{scheme}://127.0.0.1:{port}", kind) as client:
        start = time.monotonic()
        with pytest.raises(errors.DeadlineExceededError, match=f"{scheme}://127"):
            client.predict("m", {"x": np.zeros(1, np.float32)}, timeout_s=0.3)
        assert 0.25 < time.monotonic() - start < 5


@pytest.mark.parametrize("transport", ["own", "library"])
@pytest.mark.parametrize("kind", ["", "async"])
@pytest.mark.parametrize("trickle", TRICKLES)
def test_a_trickling_server_meets_the_deadline(trickle: str, kind: str, transport: Any) -> None:
    options = ClientOptions(transport=transport)
    with peer(TRICKLES[trickle]) as port, connected(f"http://127.0.0.1:{port}", kind, options) as client:
        start = time.monotonic()
        with pytest.raises(errors.DeadlineExceededError, match="no complete answer"):
            client.status("m", timeout_s=0.3)
        assert time.monotonic() - start < 3


@pytest.mark.parametrize("transport", ["own", "library"])
@pytest.mark.parametrize(("scheme", "kind"), [*KINDS, ("grpc+v2", ""), ("http+v2", "async")])
def test_a_deadline_names_the_timeout_that_was_given(scheme: str, kind: str, transport: Any) -> None:
    options = ClientOptions(transport=transport)
    with peer(_silent) as port, connected(f"{scheme}://127.0.0.1:{port}", kind, options) as client:
        with pytest.raises(errors.DeadlineExceededError, match=r"\. The call's timeout_s was 0\.3\.$") as caught:
            client.predict("m", {"x": 1.0}, timeout_s=0.3)
        assert str(caught.value) == caught.value.message


@pytest.mark.parametrize("transport", ["own", "library"])
def test_waiting_for_a_connection_counts(transport: Any) -> None:
    async def run(url: str) -> None:
        async with connect_async(url, ClientOptions(transport=transport, max_connections=1)) as client:
            start = time.monotonic()
            calls = (client.status("m", timeout_s=0.3) for _ in range(20))
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - start < 3
        assert {type(answer) for answer in answers} == {errors.DeadlineExceededError}

    with peer(_silent) as port:
        asyncio.run(run(f"http://127.0.0.1:{port}"))


@pytest.mark.parametrize("transport", ["own", "library"])
def test_many_calls_at_once_over_rest(server: RunningServer, transport: Any) -> None:
    async def run() -> set[float]:
        async with connect_async(server.rest_url, ClientOptions(transport=transport, max_connections=20)) as client:
            calls = (client.predict("half", {"x": [1.0]}) for _ in range(500))
            return {float(answer["y"][0]) for answer in await asyncio.gather(*calls)}

    assert asyncio.run(run()) == {2.5}


@pytest.mark.parametrize(("scheme", "kind"), KINDS)
def test_a_server_that_hangs_up_is_unavailable(scheme: str, kind: str) -> None:
    with peer(_hang_up) as port, connected(f"{scheme}://127.0.0.1:{port}", kind) as client:
        with pytest.raises(errors.UnavailableError):
            client.status("m", timeout_s=5)


@pytest.mark.parametrize("kind", ["", "async"])
@pytest.mark.parametrize("answer", [_nonsense, _redirect])
def test_what_is_no_answer_is_a_protocol_error(answer: Callable[[socket.socket], None], kind: str) -> None:
    with peer(answer) as port, connected(f"http://127.0.0.1:{port}", kind) as client:
        with pytest.raises(errors.ProtocolError, match="http://127"):
            client.status("m", timeout_s=5)


def _all_httpx_errors(kind: type[Exception] = httpx.HTTPError) -> list[type[Exception]]:
    # HTTPStatusError comes from raise_for_status alone, which is never called.
    children = [child for child in kind.__subclasses__() if child is not httpx.HTTPStatusError]
    return [kind, *(found for child in children for found in _all_httpx_errors(child))]


@pytest.mark.parametrize("kind", [*_all_httpx_errors(), httpx.InvalidURL], ids=lambda kind: kind.__name__)
def test_every_error_of_httpx_has_a_class(kind: type[Exception]) -> None:
    reason: Any = kind("reason")
    error = _error(reason, "http://host")
    expected: type[errors.ModelyardError] = errors.ProtocolError
    if issubclass(kind, httpx.TimeoutException):
        expected = errors.DeadlineExceededError
    elif issubclass(kind, (httpx.NetworkError, httpx.ProxyError)):
        expected = errors.UnavailableError
    elif kind in (httpx.InvalidURL, httpx.LocalProtocolError, httpx.UnsupportedProtocol):
        expected = errors.InvalidRequestError
    assert type(error) is expected
    assert "http://host" in error.message


def test_plain_http_reads_no_roots() -> None:
    transport = LeanRestTransport(parse_addresses("http://localhost")[0], ClientOptions())
    transport.close()
    transport.close()
