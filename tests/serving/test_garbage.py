"""What a request leaves behind is freed when it is over: nothing of it waits for the garbage collector.

A full collection stops a server for 15 ms and more, and each cycle brings the next one nearer.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")

from modelyard.clients import connect
from modelyard.errors import InvalidInputError, ModelNotFoundError, ModelyardError
from modelyard.serving import Server, parse_flags
from tests.support.models import publish_affine, publish_slow
from tests.support.server import free_port

CALLS = 50
SCHEMES = ["grpc", "grpc+v2", "http", "http+v2"]


@dataclass(frozen=True, kw_only=True)
class Ports:
    grpc: int
    rest: int


@pytest.fixture(scope="module")
def ports(session_dir: Path) -> Iterator[Ports]:
    """A server in a thread of this process: the collector here is its collector.

    Not over grpc.aio, whose server leaves six objects of its own for each call.
    """
    # A collection would look at all that the tests before have left, for seconds each time.
    gc.collect()
    gc.freeze()
    folder = session_dir / "garbage"
    publish_affine(folder / "affine", slope=2.0, intercept=1.0)
    publish_slow(folder / "slow", loops=1)
    config = folder / "models.config"
    entries = [
        f'config {{ name: "{name}" base_path: "{folder / name}" model_platform: "tensorflow" }}'
        for name in ("affine", "slow")
    ]
    config.write_text(f"model_config_list {{ {' '.join(entries)} }}")
    ports = Ports(grpc=free_port(), rest=free_port())
    options = parse_flags(
        [
            f"--port={ports.grpc}", f"--rest_api_port={ports.rest}",
            f"--model_config_file={config}", "--transport=native",
        ]
    )  # fmt: skip
    server, loop = Server(options), asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()))
    thread.start()
    try:
        with connect(f"grpc://127.0.0.1:{ports.grpc}") as client:
            for name in ("affine", "slow"):
                client.wait_ready(name, timeout_s=60)
        yield ports
    finally:
        loop.call_soon_threadsafe(server.request_stop)
        thread.join(60)
        loop.close()


def left_behind(call: Callable[[], object]) -> float:
    """Objects per call that only the collector frees: the fewest of three rounds, for other threads leave some, too."""
    call()
    gc.collect()
    gc.disable()
    found = []
    try:
        for _ in range(3):
            for _ in range(CALLS):
                call()
            found.append(gc.collect() / CALLS)
    finally:
        gc.enable()
    return min(found)


def url(scheme: str, ports: Ports) -> str:
    return f"{scheme}://127.0.0.1:{ports.grpc if scheme.startswith('grpc') else ports.rest}"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("model", "size"), [("affine", 8), ("affine", 20_000), ("slow", 1)], ids=["in place", "large", "on a thread"]
)
def test_an_answer(ports: Ports, scheme: str, model: str, size: int) -> None:
    with connect(url(scheme, ports)) as client:
        values = np.ones(size, np.float32)
        assert left_behind(lambda: client.predict(model, {"x": values})) < 1


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", [1, 20_000], ids=["in place", "large"])
def test_a_refusal(ports: Ports, scheme: str, size: int) -> None:
    values = np.ones(size, np.float32)
    with connect(url(scheme, ports)) as client:

        def refused(model: str, error: type[ModelyardError]) -> None:
            with contextlib.suppress(error):
                client.predict(model, {"y": values})
                pytest.fail("it was answered")

        assert left_behind(lambda: refused("affine", InvalidInputError)) < 1
        assert left_behind(lambda: refused("nobody", ModelNotFoundError)) < 1
