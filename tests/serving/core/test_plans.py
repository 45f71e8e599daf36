"""Plans that the core has been given, while versions come and go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelyard.artifact import write_labels
from modelyard.serving.config import LoadOptions, ModelConfig, ServerOptions, WatchOptions
from modelyard.serving.metrics import Metrics, ModelStatistics
from modelyard.serving.repository import ModelManager
from modelyard.serving.requests import ModelSpec
from modelyard.serving.servables import load_servable
from tests.serving.core.test_server import HandedOver, ask
from tests.support.models import publish_affine
from tests.support.server import free_port
from tests.support.waiting import until

core = pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")

TIMEOUT_S = 60.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ModelManager]:
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    manager = ModelManager(
        [ModelConfig(name="m", base_path=tmp_path / "m")],
        lambda config, version, path: load_servable(config.name, version, path, LoadOptions()),
        WatchOptions(poll_wait_s=0.01),
    )
    manager.start()
    assert manager.wait_until_polled(TIMEOUT_S)
    yield manager
    manager.stop()


@pytest.fixture
def server() -> Iterator[tuple[Any, int]]:
    port = free_port()
    server = core.Server(
        HandedOver(), threads=1, max_body_bytes=1 << 20, max_message_bytes=1 << 20, rest_timeout_s=30.0,
        wrong_rest_port="", wrong_grpc_port="",
    )  # fmt: skip
    server.listen(grpc=False, port=port)
    yield server, port
    server.stop(1.0)


def test_requests_with_known_keys_stay_in_the_core_when_versions_come_and_labels_move(
    manager: ModelManager, server: tuple[Any, int], tmp_path: Path
) -> None:
    from modelyard.serving.transports.native._plans import Plans

    core_server, port = server
    plans = Plans(core_server, manager, Metrics(), ModelStatistics(), ServerOptions(), None)

    def answer(path: str = "/v1/models/m:predict") -> list[float] | None:
        status, body = ask(port, path, {"instances": [1.0]})
        if status == 418:
            return None
        found: list[float] = json.loads(body)["predictions"]
        return found

    assert answer() is None
    plans.learn("m", None, None, "", ())
    assert answer() == [1.0]
    publish_affine(tmp_path / "m", slope=2.0, intercept=0.0)
    until(lambda: manager.resolve(ModelSpec(name="m", version=1)) is None, TIMEOUT_S)
    assert answer() == [2.0]

    by_label = "/v1/models/m/labels/stable:predict"
    write_labels(tmp_path / "m", {"stable": 2})
    until(lambda: manager.labels("m"), TIMEOUT_S)
    plans.learn("m", None, "stable", "", ())
    assert answer(by_label) == [2.0]
    publish_affine(tmp_path / "m", slope=3.0, intercept=0.0)
    until(lambda: answer() == [3.0], TIMEOUT_S)
    assert answer(by_label) == [2.0]
    write_labels(tmp_path / "m", {"stable": 3})
    until(lambda: answer(by_label) == [3.0], TIMEOUT_S)

    # What was never asked for has no plan.
    assert answer("/v1/models/m/versions/2:predict") is None
