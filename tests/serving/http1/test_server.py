"""The HTTP/1.1 server over real sockets, byte by byte where a client's library is too polite."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from unittest.mock import ANY

import pytest

from modelyard.errors import DeadlineExceededError, ModelyardError, RequestTooLargeError
from modelyard.serving._requests import Caller
from modelyard.serving.http1 import Answer, Begin, Head, Http1Server, HttpRequest, Respond
from modelyard.serving.http1 import _connection as connection_module
from modelyard.serving.http1._head import MAX_HEAD_BYTES
from tests.support.server import free_port

LIMIT = 1 << 20


class Echo:
    """Answers with what it was sent: ``/short`` at once, ``/late`` never, everything else in a task."""

    max_body_bytes = LIMIT
    max_short_bytes = 1000

    def __init__(self, timeout_s: float = 30.0) -> None:
        self.timeout_s = timeout_s
        self.requests: list[HttpRequest] = []
        self.callers: list[Caller] = []

    def find(self, head: Head) -> Begin | None:
        return {"/short": self._begin, "/late": self._late}.get(head.path)

    def late(self) -> ModelyardError:
        return DeadlineExceededError("late")

    def too_large(self) -> ModelyardError:
        return RequestTooLargeError("too large")

    async def answer(self, request: HttpRequest) -> Answer:
        self.requests.append(request)
        if request.path == "/slow":
            await asyncio.sleep(0.2)
        if request.path == "/big":
            return Answer(status=200, body=b"x" * (8 << 20), headers=[])
        text = request.problem.message.encode() if request.problem else request.body
        return Answer(status=400 if request.problem else 200, body=text, headers=[(b"x-path", request.path.encode())])

    def _begin(self, headers: Mapping[bytes, bytes], body: bytes | None, caller: Caller, respond: Respond) -> None:
        respond(Answer(status=200, body=b"short " + (body or b""), headers=[]))

    def _late(self, headers: Mapping[bytes, bytes], body: bytes | None, caller: Caller, respond: Respond) -> None:
        self.callers.append(caller)
        if body is None:
            respond(Answer(status=504, body=b"late", headers=[]))


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *lines: str, body: bytes = b"", start: str = "POST /echo HTTP/1.1") -> None:
        self.writer.write("\r\n".join([start, "Host: x", *lines, "", ""]).encode() + body)

    async def answer(self, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in lines[1:])
        length = int(headers.get("content-length", "0"))
        return int(lines[0].split()[1]), headers, await self.reader.readexactly(length if body else 0)

    async def ended(self) -> bool:
        return await self.reader.read() == b""


Test = Callable[[Client, Echo, Http1Server], Awaitable[None]]


def run(test: Test, **options: Any) -> None:
    async def main() -> None:
        app, port = Echo(**options), free_port()
        server = Http1Server(app, port=port)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.wait_for(test(Client(reader, writer), app, server), 30)
        finally:
            writer.close()
            await server.stop(0.0)

    asyncio.run(main())


def test_a_connection_is_kept() -> None:
    async def test(client: Client, app: Echo, _: Http1Server) -> None:
        for body in (b"one", b"", b"x" * 100_000):
            client.send(f"Content-Length: {len(body)}", body=body)
            status, headers, content = await client.answer()
            assert (status, content, headers["x-path"]) == (200, body, "/echo")
            assert "date" in headers and "connection" not in headers
        client.send("Content-Length: 1", "Connection: close", body=b"a")
        assert (await client.answer())[1]["connection"] == "close"
        assert await client.ended()
        assert app.requests[0].client in ("127.0.0.1", "::ffff:127.0.0.1")

    run(test)


def test_heads_that_are_known_still_have_their_own_lengths() -> None:
    async def test(client: Client, _: Echo, server: Http1Server) -> None:
        requests = [
            ("/echo", "1", b"one"), ("/echo", "1", b"two"), ("/echo", "2", b"three"), ("/short", "2", b"three"),
            ("/echo", "3", b""), ("/echo", None, b""), ("/short", "4", b"three"), ("/echo", "1", b"one"),
        ]  # fmt: skip
        for path, number, body in requests * 2:
            lines = [] if number is None else [f"X-Request-Id: {number}", f"Content-Length: {len(body)}"]
            client.send(*lines, body=body, start=f"POST {path} HTTP/1.1")
            assert await client.answer() == (200, ANY, b"short " * (path == "/short") + body)
        # Each path, and /echo without a length.
        assert len(server.heads) == 3

    run(test)


def test_bytes_may_come_one_by_one() -> None:
    async def test(client: Client, _: Echo, __: Http1Server) -> None:
        request = b"POST /short HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        request += (
            b"\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
        )
        for byte in request:
            client.writer.write(bytes([byte]))
            await client.writer.drain()
            await asyncio.sleep(0)
        assert (await client.answer())[2] == b"short abc"
        assert (await client.answer())[2] == b"def"

    run(test)


def test_requests_in_a_row_are_answered_in_order() -> None:
    async def test(client: Client, app: Echo, _: Http1Server) -> None:
        for number in range(2000):
            path = ("/slow", "/echo")[number > 0] if number % 3 == 0 else "/short"
            client.send("Content-Length: 4", body=b"%04d" % number, start=f"POST {path} HTTP/1.1")
        answers = [(await client.answer())[2][-4:] for _ in range(2000)]
        assert answers == [b"%04d" % number for number in range(2000)]

    run(test)


def test_a_client_that_waits_for_leave_gets_it() -> None:
    async def test(client: Client, _: Echo, __: Http1Server) -> None:
        client.send("Content-Length: 3", "Expect: 100-continue")
        assert (await client.answer())[0] == 100
        client.writer.write(b"abc")
        assert (await client.answer())[2] == b"abc"
        client.send("Transfer-Encoding: chunked", "Expect: 100-continue")
        assert (await client.answer())[0] == 100
        client.writer.write(b"1\r\na\r\n0\r\n\r\n")
        assert (await client.answer())[2] == b"a"
        client.send(f"Content-Length: {LIMIT + 1}", "Expect: 100-continue")
        status, headers, content = await client.answer()
        assert (status, headers["connection"], content) == (400, "close", b"too large")

    run(test)


def test_head_has_no_body() -> None:
    async def test(client: Client, _: Echo, __: Http1Server) -> None:
        client.send("Content-Length: 3", body=b"abc", start="HEAD /echo HTTP/1.1")
        assert (await client.answer(body=False))[1]["content-length"] == "3"
        client.send(start="GET /echo HTTP/1.1")
        assert (await client.answer())[0] == 200

    run(test)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_answered_before_it_is_whole(chunked: bool) -> None:
    async def test(client: Client, _: Echo, __: Http1Server) -> None:
        client.send("Transfer-Encoding: chunked" if chunked else f"Content-Length: {100 * LIMIT}")
        piece = b"x" * LIMIT
        for _piece in range(3):
            client.writer.write(b"%x\r\n%b\r\n" % (LIMIT, piece) if chunked else piece)
        # The client has not read anything yet: what it still sends must not cost it the answer.
        await client.writer.drain()
        status, headers, content = await client.answer()
        assert (status, headers["connection"], content) == (400, "close", b"too large")
        assert await client.ended()

    run(test)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / ",
            400,
        ),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES, 431),
        (b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 200 + b"\r\n", 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_no_request_ends_the_connection(data: bytes, status: int) -> None:
    async def test(client: Client, app: Echo, _: Http1Server) -> None:
        client.writer.write(data)
        answer = await client.answer()
        assert (answer[0], answer[1]["connection"]) == (status, "close")
        assert await client.ended()
        assert app.requests == []

    run(test)


def test_a_body_that_does_not_come_is_late() -> None:
    async def test(client: Client, app: Echo, _: Http1Server) -> None:
        for path in ("/echo", "/short"):
            reader, writer = await asyncio.open_connection(*client.writer.get_extra_info("peername")[:2])
            slow = Client(reader, writer)
            slow.send("Content-Length: 10", body=b"abc", start=f"POST {path} HTTP/1.1")
            assert (await slow.answer())[::2] == (400, b"late")
            assert await slow.ended()
            writer.close()
        assert [request.body for request in app.requests] == [b"", b""]

    run(test, timeout_s=0.1)


def test_an_answer_that_does_not_come_is_late() -> None:
    async def test(client: Client, app: Echo, _: Http1Server) -> None:
        client.send("Content-Length: 3", body=b"abc", start="POST /late HTTP/1.1")
        assert (await client.answer())[::2] == (504, b"late")
        assert app.callers[0].refusal() is not None
        # The connection is as good as before.
        client.send("Content-Length: 3", body=b"abc", start="POST /short HTTP/1.1")
        assert (await client.answer())[2] == b"short abc"

    run(test, timeout_s=0.1)


def test_tasks_mind_their_time_themselves() -> None:
    async def test(client: Client, _: Echo, __: Http1Server) -> None:
        client.send("Content-Length: 3", body=b"abc", start="POST /slow HTTP/1.1")
        assert (await client.answer())[2] == b"abc"

    run(test, timeout_s=0.05)


def test_whoever_hangs_up_waits_no_more() -> None:
    async def test(client: Client, app: Echo, _: Http1Server) -> None:
        client.send("Content-Length: 3", body=b"abc", start="POST /late HTTP/1.1")
        while not app.callers:
            await asyncio.sleep(0.01)
        assert app.callers[0].refusal() is None
        client.writer.close()
        while app.callers[0].refusal() is None:
            await asyncio.sleep(0.01)

    run(test)


def test_idle_and_half_begun_connections_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HEAD_S", 0.1)
    monkeypatch.setattr(connection_module, "IDLE_S", 0.1)

    async def test(client: Client, _: Echo, __: Http1Server) -> None:
        client.send(start="GET /echo HTTP/1.1")
        assert (await client.answer())[0] == 200
        client.writer.write(b"GET / HT")
        assert (await client.answer())[0] == 408
        assert await client.ended()
        reader, writer = await asyncio.open_connection(*client.writer.get_extra_info("peername")[:2])
        assert await reader.read() == b""
        writer.close()

    run(test, timeout_s=0.1)


def test_a_client_that_does_not_read_is_not_read_either() -> None:
    async def test(client: Client, app: Echo, _: Http1Server) -> None:
        port = client.writer.get_extra_info("peername")[1]
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.setblocking(False)
            request, sent = b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n" * 100, 0
            for _turn in range(200):
                try:
                    sent += deaf.send(request)
                except BlockingIOError:
                    break
                await asyncio.sleep(0.001)
            # What it asks for after that waits, in the kernel if need be, and takes no memory here.
            assert len(app.requests) <= 3
            client.send(start="GET /echo HTTP/1.1")
            assert (await client.answer())[0] == 200

    run(test)


def test_a_stop_answers_what_runs_and_says_goodbye() -> None:
    async def test(client: Client, app: Echo, server: Http1Server) -> None:
        port = client.writer.get_extra_info("peername")[1]
        client.send("Content-Length: 3", body=b"abc", start="POST /slow HTTP/1.1")
        idle, writer = await asyncio.open_connection("127.0.0.1", port)
        while not app.requests:
            await asyncio.sleep(0.01)
        stop = asyncio.create_task(server.stop(5.0))
        _, headers, content = await client.answer()
        assert (headers["connection"], content) == ("close", b"abc")
        assert await client.ended()
        assert await idle.read() == b""
        await stop
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    run(test)


def test_a_stop_does_not_wait_for_ever() -> None:
    async def test(client: Client, app: Echo, server: Http1Server) -> None:
        client.send("Content-Length: 3", body=b"abc", start="POST /late HTTP/1.1")
        while not app.callers:
            await asyncio.sleep(0.01)
        await server.stop(0.1)
        # An end or a reset: either way nobody answers.
        try:
            assert await client.ended()
        except ConnectionResetError:
            pass

    run(test)
