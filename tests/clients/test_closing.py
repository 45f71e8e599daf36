"""Calls whose client is closed or forked meanwhile, or whose helpers fail: none hangs, none is sent again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import BalanceOptions, ClientOptions, RetryOptions, connect, connect_async
from tests.support.server import RunningServer
from tests.support.waiting import until, until_async

INPUTS = {"x": np.ones(1, np.float32)}


@contextlib.contextmanager
def silent() -> Iterator[tuple[int, list[socket.socket]]]:
    """A port that takes connections and says nothing, and those that it has taken."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield listener.getsockname()[1], taken
        listener.shutdown(socket.SHUT_RDWR)
    for connection in taken:
        connection.close()


def test_hedged_calls_keep_their_deadline_and_end_when_their_client_is_closed() -> None:
    options = ClientOptions(timeout_s=1.5, hedge_after_s=0.1, max_connections=500, retry=RetryOptions(attempts=1))
    with silent() as (port, taken), ThreadPoolExecutor(60) as pool:
        client = connect(f"http://127.0.0.1:{port}", options)

        def call() -> tuple[str, float]:
            begun = time.monotonic()
            with pytest.raises(errors.ModelyardError) as caught:
                client.status("m")
            return type(caught.value).__name__, time.monotonic() - begun

        calls = [pool.submit(call) for _ in range(60)]
        # More than one of each: the second ones are under way.
        until(lambda: len(taken) > 60)
        client.close()
        ended = [each.result(30) for each in calls]
    assert {name for name, _ in ended} <= {"DeadlineExceededError", "UnavailableError"}
    assert max(seconds for _, seconds in ended) < 10


@pytest.mark.parametrize("options", [{"hedge_after_s": 0.2}, {"max_connections": 1}], ids=["hedged", "all in use"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_calls_on(affine_server: RunningServer, options: dict[str, Any]) -> None:
    with connect(f"grpc://{affine_server.grpc_address}", ClientOptions(timeout_s=5, **options)) as client:
        pool = client._engine.pool.endpoints[0].transport._pool  # type: ignore[attr-defined]
        client.predict("affine", INPUTS)
        # As where another thread is within a call.
        with pool.slot("", 1.0):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    os._exit(0 if client.predict("affine", INPUTS)["y"].tolist() == [2.5] else 1)
                os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_each_address_of_a_name_has_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as stack:
        # Its queue is full: who connects hears nothing.
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = full.getsockname()[1]
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(("127.0.0.1", port))
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address] * 4)
        begun = time.monotonic()
        with connect(f"grpc://models.internal:{port}", ClientOptions(timeout_s=1)) as client:
            with pytest.raises(errors.DeadlineExceededError):
                client.status("m")
        assert 0.5 < time.monotonic() - begun < 3


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_calls_of_a_closed_asynchronous_client_are_not_sent_again(scheme: str) -> None:
    async def main(port: int, taken: list[socket.socket]) -> None:
        client = connect_async(f"{scheme}://127.0.0.1:{port}", ClientOptions(timeout_s=20))
        calls = [asyncio.create_task(client.status("m")) for _ in range(3)]
        wanted = 1 if scheme == "grpc" else 3
        await until_async(lambda: len(taken) == wanted)
        await client.close()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(ended, errors.UnavailableError) and "was closed" in ended.message
        assert len(taken) == wanted
        for connection in taken:
            connection.settimeout(20)
            while connection.recv(1 << 16):
                pass

    with silent() as (port, taken):
        asyncio.run(main(port, taken))


def test_a_token_that_cannot_be_had_ends_no_health_checks(affine_server: RunningServer) -> None:
    away = False

    def token() -> str:
        if away:
            raise ConnectionError("the identity provider is away")
        return "abc"

    async def main() -> None:
        nonlocal away
        port = affine_server.grpc_port
        options = ClientOptions(token=token, balance=BalanceOptions(probe_interval_s=0.05))
        client = connect_async([f"grpc://127.0.0.1:{port}", f"grpc://localhost:{port}"], options)
        await client.predict("affine", INPUTS)
        away = True
        await asyncio.sleep(0.3)
        away = False
        for endpoint in client._engine.pool.endpoints:
            endpoint.healthy = False
        await until_async(lambda: all(endpoint.healthy for endpoint in client._engine.pool.endpoints))
        await client.close()

    asyncio.run(main())
