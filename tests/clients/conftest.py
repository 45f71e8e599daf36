"""A served model, and one client for each transport."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from modelyard.clients import Client, ClientOptions, connect, connect_async
from modelyard.training.data import FashionMnist, load_fashion_mnist
from tests.support.classifier import publish_classifier
from tests.support.models import publish_affine, save_half_plus_two
from tests.support.saved_models import save_tf1_half_plus_two
from tests.support.server import RunningServer, serve


@pytest.fixture(scope="session")
def server(session_dir: Path) -> Iterator[RunningServer]:
    base_path = session_dir / "clients" / "half"
    save_half_plus_two(base_path / "7")
    with serve(base_path, model="half", log_dir=session_dir, poll_s=60) as running:
        yield running


@pytest.fixture(scope="session")
def fashion() -> FashionMnist:
    return load_fashion_mnist(allow_download=False)


@pytest.fixture(scope="session")
def fashion_server(session_dir: Path, fashion: FashionMnist) -> Iterator[RunningServer]:
    base_path = session_dir / "clients" / "fashion"
    publish_classifier(base_path, fashion)
    with serve(base_path, model="fashion", log_dir=session_dir, poll_s=60) as running:
        yield running


@pytest.fixture(scope="session")
def examples_server(session_dir: Path) -> Iterator[RunningServer]:
    """Signatures over ``tf.Example``, and an administrator at the local address."""
    base_path = session_dir / "clients" / "examples"
    save_tf1_half_plus_two(base_path / "3")
    with serve(base_path, model="half", log_dir=session_dir, poll_s=60) as running:
        yield running


@pytest.fixture(scope="session")
def affine_dir(session_dir: Path) -> Path:
    base_path = session_dir / "clients" / "affine"
    publish_affine(base_path, slope=0.5, intercept=2)
    return base_path


@pytest.fixture(scope="session")
def affine_server(session_dir: Path, affine_dir: Path) -> Iterator[RunningServer]:
    with serve(affine_dir, model="affine", log_dir=session_dir, poll_s=60) as running:
        yield running


def url_of(server: RunningServer, transport: str) -> str:
    return f"grpc://{server.grpc_address}" if transport.startswith("grpc") else server.rest_url


class Awaited:
    """An asynchronous client whose methods wait, so that the same tests run over it."""

    def __init__(self, url: str, options: ClientOptions | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.client = connect_async(url, options)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.client, name)
        if not inspect.iscoroutinefunction(value):
            return value
        return lambda *args, **kwargs: self.loop.run_until_complete(value(*args, **kwargs))


@contextlib.contextmanager
def connected(url: str, kind: str, options: ClientOptions | None = None) -> Iterator[Client]:
    """A client of one of the four implementations; ``kind`` ends in ``async`` for two of them."""
    if not kind.endswith("async"):
        with connect(url, options) as client:
            yield client
        return
    awaited = Awaited(url, options)
    try:
        yield cast(Client, awaited)
    finally:
        awaited.close()
        awaited.loop.run_until_complete(awaited.loop.shutdown_default_executor())
        awaited.loop.close()


KINDS = ["grpc", "rest", "grpc-async", "rest-async"]


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Client]:
    with connected(url_of(server, request.param), request.param) as made:
        yield made


@contextlib.contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A TCP server that does one thing with every connection, each on its own thread."""
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve_one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                answer(connection)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                thread = threading.Thread(target=serve_one, args=(connection,), daemon=True)
                threads.append(thread)
                thread.start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)
    for item in threads:
        item.join(5)


@pytest.fixture
def both(server: RunningServer) -> Iterator[tuple[Client, Client]]:
    with connect(url_of(server, "grpc")) as first, connect(url_of(server, "rest")) as second:
        yield first, second
