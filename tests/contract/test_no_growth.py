"""What comes again and again leaves nothing: configurations, plans of the native core, connections of clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from modelyard.artifact import collect
from modelyard.clients import ModelConfig, connect, connect_async
from modelyard.errors import ModelNotFoundError
from tests.support.admin import config_text, model_text
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

X = {"x": np.ones(1, np.float32)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    publish_affine(tmp_path / "m", slope=2.0, intercept=1.0)
    return tmp_path / "m"


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[RunningServer]:
    (tmp_path / "config").write_text(config_text(model_text("m", model)))
    with serve(None, model="m", log_dir=tmp_path, flags=[f"--model_config_file={tmp_path / 'config'}"]) as started:
        yield started


def configured(model: Path, number: int) -> list[ModelConfig]:
    """Another configuration than the one before."""
    return [ModelConfig(name="m", base_path=str(model), latest=1 + number % 2)]


def test_a_server_that_is_configured_again_and_again_keeps_its_memory(server: RunningServer, model: Path) -> None:
    process = psutil.Process(server.process.pid)
    before = 0
    with connect(f"grpc://{server.grpc_address}") as client:
        for number in range(600):
            client.reload_config(configured(model, number))
            assert client.predict("m", X)["y"] == 3
            if number == 200:
                before = process.memory_info().rss
    assert process.memory_info().rss - before < 2e6


def test_a_server_whose_versions_come_and_go_keeps_its_memory(server: RunningServer, model: Path) -> None:
    """What a load left had been kept from the garbage collector for good: 25 kB of each version, and more."""
    process = psutil.Process(server.process.pid)
    before = 0
    for number in range(150):
        newest = publish_affine(model, slope=2.0, intercept=1.0).number
        collect(model, keep=2)
        server.wait_available(newest)
        if number == 50:
            before = process.memory_info().rss
    assert process.memory_info().rss - before < 1.2e6


def test_clients_keep_one_connection_however_often_they_reload(server: RunningServer, model: Path) -> None:
    own = psutil.Process()

    async def reload() -> int:
        async with connect_async(f"grpc://{server.grpc_address}") as client:
            for number in range(20):
                await client.reload_config(configured(model, number))
            return own.num_fds()

    before = own.num_fds()
    with connect(f"grpc://{server.grpc_address}") as client:
        for number in range(20):
            client.reload_config(configured(model, number))
        assert own.num_fds() - before <= 2
    # An event loop has some of its own.
    assert asyncio.run(reload()) - before <= 6


def test_names_of_requests_leave_nothing(server: RunningServer) -> None:
    """The native core had remembered that there is no model of such a name, with the name, of 3 MB in each call."""
    process = psutil.Process(server.process.pid)
    with connect(f"grpc://{server.grpc_address}") as client:
        before = 0
        for number in range(60):
            with pytest.raises(ModelNotFoundError):
                client.predict(f"{number}" + 3_000_000 * "x", X)
            if number == 10:
                before = process.memory_info().rss
    # glibc keeps some of what a single call takes.
    assert process.memory_info().rss - before < 60e6
