"""A served model, and one client for each transport."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from modelyard.clients import Client, connect
from modelyard.training.data import FashionMnist, load_fashion_mnist
from tests.support.classifier import publish_classifier
from tests.support.models import save_half_plus_two
from tests.support.server import RunningServer, serve


@pytest.fixture(scope="session")
def server(session_dir: Path) -> Iterator[RunningServer]:
    base_path = session_dir / "clients" / "half"
    save_half_plus_two(base_path / "7")
    with serve(base_path, model="half", log_dir=session_dir) as running:
        yield running


@pytest.fixture(scope="session")
def fashion() -> FashionMnist:
    return load_fashion_mnist(allow_download=False)


@pytest.fixture(scope="session")
def fashion_server(session_dir: Path, fashion: FashionMnist) -> Iterator[RunningServer]:
    base_path = session_dir / "clients" / "fashion"
    publish_classifier(base_path, fashion)
    with serve(base_path, model="fashion", log_dir=session_dir) as running:
        yield running


def url_of(server: RunningServer, transport: str) -> str:
    return f"grpc://{server.grpc_address}" if transport == "grpc" else server.rest_url


@pytest.fixture(params=["grpc", "rest"])
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Client]:
    with connect(url_of(server, request.param)) as connected:
        yield connected


@pytest.fixture
def both(server: RunningServer) -> Iterator[tuple[Client, Client]]:
    with connect(url_of(server, "grpc")) as first, connect(url_of(server, "rest")) as second:
        yield first, second
