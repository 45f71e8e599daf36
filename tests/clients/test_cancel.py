"""Who cancels a call spares the server its work: what waits there is dropped before it is computed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import numpy as np
import pytest

from modelyard.clients import connect_async
from tests.clients.conftest import url_of
from tests.support.metrics import monitoring_flag, until_in_flight
from tests.support.models import publish_slow
from tests.support.server import RunningServer, serve

WAITING = 10


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("cancel")
    publish_slow(folder / "slow", loops=1000)
    with serve(folder / "slow", model="slow", log_dir=folder, flags=[monitoring_flag(folder)]) as running:
        yield running


def computed(server: RunningServer) -> int:
    (row,) = json.loads(server.get("/v2/models/slow/stats")[1])["model_stats"]
    return int(row["inference_count"])


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_cancelled_calls_are_not_computed(slow_server: RunningServer, transport: str) -> None:
    x = {"x": np.ones(1, np.float32)}

    async def run() -> int:
        async with connect_async(url_of(slow_server, transport)) as client:
            before = computed(slow_server)
            first = asyncio.create_task(client.predict("slow", x))
            await asyncio.to_thread(until_in_flight, slow_server, 1)
            rest = [asyncio.create_task(client.predict("slow", x)) for _ in range(WAITING)]
            await asyncio.to_thread(until_in_flight, slow_server, 1 + WAITING)
            for task in rest:
                task.cancel()
            assert all(
                isinstance(item, asyncio.CancelledError) for item in await asyncio.gather(*rest, return_exceptions=True)
            )
            await first
            # Behind whatever still waits.
            await client.predict("slow", x)
            return computed(slow_server) - before - 2

    # One may have begun: a model that computes is not interrupted.
    assert asyncio.run(run()) <= 1
