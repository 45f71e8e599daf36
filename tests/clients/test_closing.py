"""Closing a client while its calls are under way."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from modelyard import errors
from modelyard.clients import ClientOptions, RetryOptions, connect, connect_async
from tests.clients.conftest import peer
from tests.clients.test_engine import QUICK, SERVERS, Script, rest_server
from tests.support.waiting import until, until_async


@pytest.mark.parametrize("kind", ["grpc", "rest"])
@pytest.mark.parametrize("sent", [True, False])
def test_closing_ends_the_calls_under_way_and_sends_none_again(kind: str, sent: bool) -> None:
    script = Script("silent")

    async def run(url: str) -> None:
        client = connect_async(url, ClientOptions(retry=QUICK, timeout_s=5))
        calls = [asyncio.create_task(client.status("m")) for _ in range(3)]
        # They connect now.
        await asyncio.sleep(0)
        if sent:
            await until_async(lambda: len(script.seen) == 3)
        await client.close()
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, errors.UnavailableError) and "was closed" in error.message
        (transport,) = client._engine.pool.all_transports
        assert cast(Any, transport)._pool._channels == []

    with SERVERS[kind](script) as url:
        asyncio.run(run(url))
    assert len(script.seen) == (3 if sent else 0)


def test_closing_ends_the_calls_that_wait_for_a_connection() -> None:
    async def run(url: str) -> None:
        client = connect_async(url, ClientOptions(max_connections=1, timeout_s=60))
        calls = [asyncio.create_task(client.status("m")) for _ in range(5)]
        await until_async(lambda: script.seen)
        await client.close()
        async with asyncio.timeout(20):
            failures = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(item) for item in failures] == [errors.UnavailableError] * 5

    script = Script("silent")
    with rest_server(script) as url:
        asyncio.run(run(url))


def test_closing_a_blocking_client_of_a_library_ends_its_calls_and_its_thread() -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "modelyard-httpx"]

    script = Script("ok", "silent")
    with rest_server(script) as url, ThreadPoolExecutor(1) as callers:
        client = connect(url, ClientOptions(transport="library", timeout_s=30))
        assert client.status("m").available == (3,)
        call = callers.submit(client.status, "m")
        until(lambda: len(script.seen) == 2)
        client.close()
        with pytest.raises(errors.UnavailableError, match="was closed"):
            call.result(10)
        until(lambda: not threads())
        # One that is forgotten has no thread either.
        script.steps.extend(["ok"])
        script.steps.popleft()
        connect(url, ClientOptions(transport="library", timeout_s=30)).status("m")
        gc.collect()
        until(lambda: not threads())


def test_closing_a_blocking_client_of_a_library_leaves_no_task(caplog: pytest.LogCaptureFixture) -> None:
    def too_long(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(500_000))
        connection.recv(1)

    for _ in range(10):
        options = ClientOptions(transport="library", max_message_bytes=1000)
        with peer(too_long) as port, connect(f"http://127.0.0.1:{port}", options) as client:
            with pytest.raises(errors.RequestTooLargeError):
                client.status("m", timeout_s=10)
    gc.collect()
    assert not caplog.records


def test_a_blocking_client_that_is_closed_hedges_no_call() -> None:
    script = Script("silent")
    failures: list[BaseException] = []

    def call() -> None:
        try:
            client.status("m")
        except Exception as exc:
            failures.append(exc)

    with rest_server(script) as url:
        client = connect(url, ClientOptions(hedge_after_s=2, timeout_s=2.5))
        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: script.seen)
        client.close()
        thread.join()
    assert [type(item) for item in failures] == [errors.DeadlineExceededError]
    assert len(script.seen) == 1


def test_hedged_calls_that_fail_leave_no_cycle() -> None:
    """What they sent is freed at once, not when the garbage collector comes by."""

    def listen() -> None:
        for _ in range(4):
            connection, _ = listener.accept()
            # Each ends without an answer, after the second call of its pair has begun.
            threading.Timer(0.3, connection.close).start()

    def left() -> list[object]:
        # Not by isinstance, which asks proxies for their class: some libraries' raise for it.
        found = [each for each in gc.get_objects() if type(each) is errors.UnavailableError]
        return [each for each in found if url in each.message]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        options = ClientOptions(hedge_after_s=0.05, retry=RetryOptions(attempts=1))
        with connect(url, options) as client:
            gc.collect()
            gc.disable()
            try:
                for _ in range(2):
                    with contextlib.suppress(errors.UnavailableError):
                        client.status("m")
                until(lambda: not left(), 5)
            finally:
                gc.enable()
