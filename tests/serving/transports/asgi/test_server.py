"""uvicorn as a transport, over real sockets, byte by byte where a client's library is too polite."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving.config import TransportLimits
from modelyard.serving.requests import Caller
from modelyard.serving.transports.asgi import UvicornServer
from modelyard.serving.transports.http import Answer, HttpLimits, HttpRequest
from tests.support.server import free_port
from tests.support.waiting import until_async

LIMIT = 1 << 20
LIMITS = HttpLimits(max_body_bytes=LIMIT)


class Echo:
    """Answers with what it was sent: ``/slow`` after a while, ``/never`` when its client has gone."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self.limits = replace(LIMITS, timeout_s=timeout_s)
        self.requests: list[HttpRequest] = []
        self.callers: list[Caller] = []

    async def answer(self, request: HttpRequest) -> Answer:
        self.requests.append(request)
        assert request.caller is not None
        self.callers.append(request.caller)
        if request.path == "/slow":
            await asyncio.sleep(0.2)
        while request.path == "/never" and request.caller.refusal() is None:
            await asyncio.sleep(0.01)
        text = request.problem.message.encode() if request.problem else request.body
        return Answer(status=400 if request.problem else 200, body=text, headers=[(b"x-path", request.path.encode())])


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.port: int = writer.get_extra_info("peername")[1]

    def send(self, *lines: str, body: bytes = b"", start: str = "POST /echo HTTP/1.1") -> None:
        self.writer.write("\r\n".join([start, "Host: x", *lines, "", ""]).encode() + body)

    async def answer(self, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in lines[1:])
        length = int(headers.get("content-length", "0"))
        return int(lines[0].split()[1]), headers, await self.reader.readexactly(length if body else 0)

    async def ended(self) -> bool:
        return await self.reader.read() == b""


Test = Callable[[Client, Echo, UvicornServer], Awaitable[None]]


def run(test: Test, *, limits: TransportLimits | None = None, **options: Any) -> None:
    async def main() -> None:
        app, port = Echo(**options), free_port()
        server = UvicornServer(app, port=port, limits=limits)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.wait_for(test(Client(reader, writer), app, server), 30)
        finally:
            writer.close()
            await server.stop(0.0)

    asyncio.run(main())


def test_requests_reach_the_application_as_they_were_sent() -> None:
    async def test(client: Client, app: Echo, _: UvicornServer) -> None:
        for body in (b"one", b"", b"x" * 500_000):
            client.send(
                f"Content-Length: {len(body)}", "X-Twice: 1", "X-Twice:  2 ", "X-Request-Id: me",
                "X-Modelyard-Priority: low", body=body, start="POST /a%2Fb/%C3%A4?c=%20d HTTP/1.1",
            )  # fmt: skip
            status, headers, content = await client.answer()
            assert (status, content, headers["x-path"]) == (200, body, "/a%2Fb/%C3%A4")
            assert headers["x-request-id"] == "me"
            assert "date" in headers and headers.keys().isdisjoint({"connection", "server"})
        request = app.requests[0]
        assert (request.method, request.query, request.client) == ("POST", "c=%20d", "127.0.0.1")
        assert request.headers == {"host": "x", "x-twice": "1, 2", "x-modelyard-priority": "low"}
        assert request.caller is not None and request.caller.low_priority
        client.send("Content-Length: 1", "Connection: close", body=b"a")
        assert (await client.answer())[1]["connection"] == "close"
        assert await client.ended()

    run(test)


def test_bytes_may_come_one_by_one_and_requests_in_a_row() -> None:
    async def test(client: Client, _: Echo, __: UvicornServer) -> None:
        request = b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        request += (
            b"\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
        )
        for byte in request:
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        client.writer.write(request)
        assert [(await client.answer())[2] for _ in range(4)] == [b"abc", b"def"] * 2

    run(test)


def test_fields_behind_a_body_are_not_of_the_head() -> None:
    async def test(client: Client, app: Echo, _: UvicornServer) -> None:
        fields = b"X-Api-Key: a-key\r\nHost: y\r\nExpect: 100-continue\r\n"
        client.send("Transfer-Encoding: chunked", body=b"2\r\nab\r\n0\r\n" + fields + b"\r\n")
        assert (await client.answer())[::2] == (200, b"ab")
        assert app.requests[0].headers == {"host": "x", "transfer-encoding": "chunked"}

    run(test)


@pytest.mark.parametrize("field", [b"a", b"a\r\nX: "], ids=["one", "many"])
def test_fields_behind_a_body_have_the_heads_limit(field: bytes) -> None:
    async def test(client: Client, app: Echo, _: UvicornServer) -> None:
        client.send("Transfer-Encoding: chunked", "Expect: 100-continue")
        assert (await client.answer())[0] == 100
        client.writer.write(b"0\r\nX: " + field * TransportLimits().max_header_bytes)
        status, headers, _content = await client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert app.requests == []

    run(test)


def test_a_client_that_waits_for_leave_gets_it_and_head_no_body() -> None:
    async def test(client: Client, _: Echo, __: UvicornServer) -> None:
        client.send("Content-Length: 3", body=b"abc", start="HEAD /echo HTTP/1.1")
        assert (await client.answer(body=False))[1]["content-length"] == "3"
        client.send("Content-Length: 3", "Expect: 100-continue")
        assert (await client.answer())[0] == 100
        client.writer.write(b"abc")
        assert (await client.answer())[2] == b"abc"
        client.send(f"Content-Length: {LIMIT + 1}", "Expect: 100-continue")
        status, headers, content = await client.answer()
        assert (status, headers["connection"], content) == (400, "close", LIMITS.too_large().message.encode())

    run(test)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_answered_before_it_is_whole(chunked: bool) -> None:
    async def test(client: Client, _: Echo, __: UvicornServer) -> None:
        client.send("Transfer-Encoding: chunked" if chunked else f"Content-Length: {3 * LIMIT}")
        piece = b"x" * LIMIT
        for _piece in range(3):
            client.writer.write(b"%x\r\n%b\r\n" % (LIMIT, piece) if chunked else piece)
        # The client has not read anything yet: what it still sends must not cost it the answer.
        await client.writer.drain()
        client.writer.write(b"0\r\n\r\n" if chunked else b"")
        status, headers, content = await client.answer()
        assert (status, headers["connection"], content) == (400, "close", LIMITS.too_large().message.encode())
        assert await client.ended()

    run(test)


def test_a_body_that_does_not_come_is_late() -> None:
    async def test(client: Client, app: Echo, _: UvicornServer) -> None:
        client.send("Content-Length: 10", body=b"abc")
        assert (await client.answer())[::2] == (400, b"No answer within 0.1 s, the server's --rest_api_timeout_in_ms.")
        assert [request.body for request in app.requests] == [b""]
        # The time of a body, and no other: the application minds that of its answers itself.
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        other = Client(reader, writer)
        other.send("Content-Length: 3", body=b"abc", start="POST /slow HTTP/1.1")
        assert (await other.answer())[2] == b"abc"
        writer.close()

    run(test, timeout_s=0.1)


def test_whoever_hangs_up_waits_no_more() -> None:
    async def test(client: Client, app: Echo, _: UvicornServer) -> None:
        client.send("Content-Length: 3", body=b"abc", start="POST /never HTTP/1.1")
        await until_async(lambda: app.callers)
        assert app.callers[0].refusal() is None
        client.writer.close()
        await until_async(app.callers[0].refusal)

    run(test)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / ",
        b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * TransportLimits().max_header_bytes,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_request_ends_the_connection(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(client: Client, app: Echo, _: UvicornServer) -> None:
        client.writer.write(data)
        status, headers, _content = await client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert await client.ended()
        assert app.requests == []

    run(test)
    assert caplog.records == []


def test_an_offer_of_another_protocol_costs_nobody_a_body() -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")

    async def test(client: Client, app: Echo, _: UvicornServer) -> None:
        for lines in (offer, offer[1:], ()):
            client.send(*lines, "Content-Length: 3", body=b"abc")
            assert (await client.answer())[::2] == (200, b"abc")
        client.send(*offer, start="GET /echo HTTP/1.1")
        assert (await client.answer())[0] == 200
        client.writer.write(b"POST /echo HTTP/1.1\r\n")
        await asyncio.sleep(0.05)
        client.send(*offer, "Content-Length: 3", body=b"abc", start="X: y")
        assert (await client.answer())[0] == 400
        assert len(app.requests) == 4

    run(test)


def test_half_begun_connections_are_ended() -> None:
    async def test(client: Client, _: Echo, __: UvicornServer) -> None:
        for begin in (b"GET / HT", b"POST /slow HTTP/1.1\r\nContent-Length: 1\r\n\r\naGET / HT"):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
            writer.write(begin)
            if begin.startswith(b"POST"):
                # It does not end what is answered.
                assert (await Client(reader, writer).answer())[2] == b"a"
                writer.write(b"TP")
            assert await reader.read() == b""
            writer.close()

        # Nothing of this one's head has come.
        client.send(body=b"")
        assert (await client.answer())[0] == 200

    run(test, limits=TransportLimits(header_timeout_s=0.1))


def test_connections_without_a_request_are_idle() -> None:
    async def test(client: Client, _: Echo, __: UvicornServer) -> None:
        assert await client.ended()

    run(test, limits=TransportLimits(idle_timeout_s=0.1))


def test_a_stop_answers_what_runs_and_says_goodbye() -> None:
    async def test(client: Client, app: Echo, server: UvicornServer) -> None:
        client.send("Content-Length: 3", body=b"abc", start="POST /slow HTTP/1.1")
        idle, writer = await asyncio.open_connection("127.0.0.1", client.port)
        await until_async(lambda: app.requests)
        stop = asyncio.create_task(server.stop(5.0))
        _, headers, content = await client.answer()
        assert (headers["connection"], content) == ("close", b"abc")
        assert await client.ended()
        assert await idle.read() == b""
        await stop
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", client.port)
        writer.close()

    run(test)


def test_a_stop_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def test(client: Client, app: Echo, server: UvicornServer) -> None:
        client.send("Content-Length: 3", body=b"abc", start="POST /never HTTP/1.1")
        await until_async(lambda: app.callers)
        await server.stop(0.1)
        assert app.callers[0].refusal() is not None
        # An end or a reset: either way nobody answers.
        try:
            assert await client.ended()
        except ConnectionResetError:
            pass

    run(test)
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


def test_a_port_in_use() -> None:
    async def main() -> None:
        server = UvicornServer(Echo(), port=free_port())
        await server.start()
        with pytest.raises(ConfigurationError, match="Choose another with --rest_api_port"):
            await UvicornServer(Echo(), port=server._port).start()
        await server.stop(0.0)

    asyncio.run(main())
