"""Several servers behind one client: calls spread, and a server that dies costs no call."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import BalanceOptions, ClientOptions, connect, connect_async
from modelyard.clients.transport import Pool, parse_addresses
from modelyard.clients.transport._address import resolve
from tests.clients.conftest import url_of
from tests.support.server import RunningServer, free_port, serve
from tests.support.waiting import until, until_async


@pytest.fixture
def pair(affine_dir: Path, tmp_path: Path) -> Iterator[tuple[RunningServer, RunningServer]]:
    # Both start at the same time.
    with serve(affine_dir, model="affine", log_dir=tmp_path, wait=False) as first:
        with serve(affine_dir, model="affine", log_dir=tmp_path) as second:
            first.wait_available()
            yield first, second


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_killing_a_server_under_load_fails_no_call(pair: tuple[RunningServer, RunningServer], transport: str) -> None:
    first, second = pair
    failures: list[BaseException] = []
    slowest = [0.0] * 8
    calls = [0] * 8
    stop = threading.Event()

    with connect([url_of(first, transport), url_of(second, transport)]) as client:

        def load(number: int) -> None:
            while not stop.is_set():
                started = time.monotonic()
                try:
                    answer = client.predict("affine", {"x": np.array([number], np.float32)})
                    assert answer["y"].tolist() == [number * 0.5 + 2]
                except (errors.ModelyardError, AssertionError) as exc:
                    failures.append(exc)
                slowest[number] = max(slowest[number], time.monotonic() - started)
                calls[number] += 1

        threads = [threading.Thread(target=load, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: min(calls) > 20)
        usual, slowest[:] = max(slowest), [0.0] * 8
        first.process.kill()
        before = list(calls)
        until(lambda: all(now > then + 20 for now, then in zip(calls, before, strict=True)))
        stop.set()
        for thread in threads:
            thread.join()
        health = [endpoint.healthy for endpoint in client._engine.pool.endpoints]
    assert failures == []
    # No call waits for a time-out.
    assert max(slowest) < 10 * usual + 1
    assert health == [False, True]


def test_killing_a_server_fails_no_asynchronous_call(pair: tuple[RunningServer, RunningServer]) -> None:
    first, second = pair

    async def run() -> None:
        async with connect_async(f"grpc://{first.grpc_address},grpc://{second.grpc_address}") as client:
            calls = [0] * 16

            async def load(number: int, count: int) -> None:
                while calls[number] < count:
                    await client.predict("affine", {"x": np.zeros(1, np.float32)}, timeout_s=20)
                    calls[number] += 1

            tasks = [asyncio.create_task(load(number, 100)) for number in range(16)]
            await until_async(lambda: min(calls) > 20)
            second.process.kill()
            await asyncio.gather(*tasks)
            assert [endpoint.healthy for endpoint in client._engine.pool.endpoints] == [True, False]

    asyncio.run(run())


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_server_that_comes_back_gets_calls_again(affine_dir: Path, tmp_path: Path, transport: str) -> None:
    with serve(affine_dir, model="affine", log_dir=tmp_path) as server:
        absent = f"{'grpc' if transport == 'grpc' else 'http'}://127.0.0.1:{free_port()}"
        with connect([absent, url_of(server, transport)]) as client:
            for _ in range(4):
                client.predict("affine", {"x": np.zeros(1, np.float32)})
            bad, good = client._engine.pool.endpoints
            server.wait_until(lambda: not bad.healthy and good.healthy, 10, "the absent server found")
            good.healthy = False
            server.wait_until(lambda: good.healthy, 10, "a health check that finds the server well")


#: A child finds out that a server is well; the parent hands its exit code on.
FORKED = """
import os, sys, time
from modelyard.clients import connect
with connect(sys.argv[1:]) as client:
    client.status("affine")
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    first, _ = client._engine.pool.endpoints
    first.healthy = False
    client.status("affine")
    deadline = time.monotonic() + 10
    while not first.healthy and time.monotonic() < deadline:
        time.sleep(0.01)
    os._exit(0 if first.healthy else 3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_health_checks_go_on_in_a_forked_process(pair: tuple[RunningServer, RunningServer], transport: str) -> None:
    urls = [url_of(server, transport) for server in pair]
    done = subprocess.run([sys.executable, "-c", FORKED, *urls], timeout=60, check=False)
    assert done.returncode == 0


def test_health_checks_outlive_a_token_that_cannot_be_had(affine_server: RunningServer) -> None:
    asked, away = [0], [False]

    def token() -> str:
        if away[0]:
            asked[0] += 1
            raise ConnectionError("the identity provider is away")
        return "token"

    async def run() -> None:
        url = f"grpc://{affine_server.grpc_address}"
        options = ClientOptions(token=token, balance=BalanceOptions(probe_interval_s=0.02))
        async with connect_async([url, url.replace("127.0.0.1", "localhost")], options) as client:
            await client.predict("affine", {"x": np.zeros(1, np.float32)})
            away[0] = True
            await until_async(lambda: asked[0] > 3)
            away[0] = False
            for endpoint in client._engine.pool.endpoints:
                endpoint.healthy = False
            await until_async(lambda: all(endpoint.healthy for endpoint in client._engine.pool.endpoints), 5)

    asyncio.run(run())


class _Busy(ThreadingHTTPServer):
    """Answers health checks at once, and calls when it is let."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked, self.let = threading.Event(), threading.Event()


class _Answer(BaseHTTPRequestHandler):
    server: _Busy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Health checks ask for a model that there is not."""
        if self.path != "/v1/models/-":
            self.server.asked.set()
            self.server.let.wait(60)
        body = b'{"error": "no such model"}'
        self.send_response(404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def busy() -> Iterator[_Busy]:
    with _Busy() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.let.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("transport", ["own", "library"])
@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_call_that_has_the_last_connection_makes_no_server_unhealthy(transport: Any, kind: str, busy: _Busy) -> None:
    balance = BalanceOptions(probe_interval_s=0.01)
    options = ClientOptions(transport=transport, max_connections=1, balance=balance)
    urls = [f"http://127.0.0.1:{busy.server_port}", f"http://127.0.0.1:{free_port()}"]

    def block() -> None:
        with connect(urls, options) as client, ThreadPoolExecutor() as threads:
            good, client._engine.pool.endpoints[1].healthy = client._engine.pool.endpoints[0], False
            call = threads.submit(client.status, "m", timeout_s=60)
            assert busy.asked.wait(30)
            good.healthy = False
            until(lambda: good.healthy)
            assert not call.done()
            busy.let.set()
            assert isinstance(call.exception(), errors.ModelNotFoundError)

    async def wait() -> None:
        async with connect_async(urls, options) as client:
            good, client._engine.pool.endpoints[1].healthy = client._engine.pool.endpoints[0], False
            call = asyncio.create_task(client.status("m", timeout_s=60))
            await until_async(busy.asked.is_set)
            good.healthy = False
            await until_async(lambda: good.healthy)
            assert not call.done()
            busy.let.set()
            with pytest.raises(errors.ModelNotFoundError):
                await call

    block() if kind == "blocking" else asyncio.run(wait())


def _pool(*urls: str, dns: bool = False) -> Pool[Any]:
    return Pool(parse_addresses(list(urls)), lambda address: address.url, BalanceOptions(dns=dns))


def test_the_least_loaded_healthy_server_is_next() -> None:
    pool = _pool("grpc://a", "grpc://b", "grpc://c")
    taken = {pool.acquire().address.host for _ in range(3)}
    assert taken == {"a", "b", "c"}
    a, b, c = pool.endpoints
    pool.release(b)
    assert pool.acquire() is b
    a.healthy = False
    pool.release(a)
    assert pool.acquire() is not a
    assert pool.acquire([b, c]) is a
    assert pool.fresh([b]) and not pool.fresh([b, c])


def test_a_name_is_all_of_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"name": ["10.0.0.1", "10.0.0.2"]}

    def look_up(name: str, port: int, **_: Any) -> list[Any]:
        if name not in found:
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in found[name]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    pool = Pool(
        parse_addresses("https://name:9"), lambda address: address.url, BalanceOptions(dns=True, dns_refresh_s=0.001)
    )
    pool.acquire()
    assert [endpoint.address.authority for endpoint in pool.endpoints] == ["10.0.0.1:9", "10.0.0.2:9"]
    # Certificates are for the name, not for the address.
    assert {endpoint.address.server_name for endpoint in pool.endpoints} == {"name"}
    kept = pool.endpoints[1]
    found["name"] = ["10.0.0.2", "10.0.0.3"]
    time.sleep(0.01)
    pool.refresh()
    assert pool.endpoints[0] is kept
    assert [endpoint.address.host for endpoint in pool.endpoints] == ["10.0.0.2", "10.0.0.3"]
    found.clear()
    time.sleep(0.01)
    pool.refresh()
    assert len(pool.endpoints) == 2
    with pytest.raises(errors.UnavailableError, match="'other' cannot be resolved"):
        resolve(parse_addresses("grpc://other")[0])


def test_calls_go_on_while_a_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = threading.Event(), threading.Event()
    row = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 9))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: row)
    pool = Pool(
        parse_addresses("http://name:9"), lambda address: address.url, BalanceOptions(dns=True, dns_refresh_s=0.001)
    )
    pool.acquire()

    def slow(*_: Any, **__: Any) -> list[Any]:
        asked.set()
        answer.wait(10)
        return row

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    time.sleep(0.01)
    thread = threading.Thread(target=pool.refresh)
    thread.start()
    assert asked.wait(10)
    assert pool.acquire().in_flight == 2
    assert not answer.is_set()
    answer.set()
    thread.join()


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_localhost_by_dns(affine_server: RunningServer, transport: str) -> None:
    url = url_of(affine_server, transport).replace("127.0.0.1", "localhost")
    options = ClientOptions(balance=BalanceOptions(dns=True))
    with connect(url, options) as client:
        assert client.predict("affine", {"x": [2.0]})["y"].tolist() == [3.0]


def test_servers_of_one_scheme() -> None:
    with pytest.raises(errors.ConfigurationError, match="one scheme"):
        connect("grpc://a,http://b")
    with pytest.raises(errors.ConfigurationError, match="nothing"):
        connect([])
