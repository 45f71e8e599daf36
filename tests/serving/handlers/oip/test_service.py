"""The protocol on a real manager and predictor, without a transport; and who may load."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from modelyard.errors import (
    InvalidRequestError,
    LoadError,
    ModelNotFoundError,
    SignatureNotFoundError,
    UnsupportedError,
)
from modelyard.serving import (
    LoadOptions,
    ModelConfig,
    ModelManager,
    Predictor,
    Servable,
    ServerOptions,
    WatchOptions,
    load_servable,
)
from modelyard.serving.access import Access
from modelyard.serving.handlers.oip import InferRequest, OipRest, OipService, RequestedOutput
from modelyard.serving.metrics import Metrics
from modelyard.serving.repository import Admin
from modelyard.serving.transports.http import HttpRequest
from tests.support.models import publish_affine

LOCAL, REMOTE = "127.0.0.1", "192.0.2.7"


@dataclass(frozen=True, kw_only=True)
class Room:
    """What the tests of this file work with."""

    service: OipService
    manager: ModelManager
    predictor: Predictor
    base_path: Path


def load(config: ModelConfig, version: int, path: Path) -> Servable:
    return load_servable(config.name, version, path, LoadOptions())


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    base_path = tmp_path / "affine"
    publish_affine(base_path, slope=2.0, intercept=1.0)
    manager = ModelManager(
        [ModelConfig(name="affine", base_path=base_path)], load, WatchOptions(poll_wait_s=0, explicit=True)
    )
    predictor = Predictor(manager, Metrics(), workers=1)
    manager.start()
    service = OipService(manager, predictor, Admin(manager))
    yield Room(service=service, manager=manager, predictor=predictor, base_path=base_path)
    predictor.close()
    manager.stop()


def ask(*outputs: RequestedOutput, **fields: str) -> InferRequest:
    values = np.array([1.0, 2.0], np.float32)
    return InferRequest(model="affine", inputs=lambda _: {"x": values}, outputs=outputs, **fields)  # type: ignore[arg-type]


def test_a_model_is_loaded_and_unloaded_on_request(room: Room) -> None:
    assert room.service.ready()
    assert not room.service.model_ready("affine", "")
    (row,) = room.service.index().models
    assert (row.name, row.version, row.state, row.reason) == ("affine", "", "UNAVAILABLE", "not loaded")
    with pytest.raises(ModelNotFoundError, match="loaded on request only"):
        asyncio.run(room.service.infer(ask(), lambda result: result))

    asyncio.run(room.service.load("affine", []))
    assert room.service.model_ready("affine", "1")
    (row,) = room.service.index(ready=True).models
    assert (row.name, row.version, row.state, row.reason) == ("affine", "1", "READY", "")
    result = asyncio.run(room.service.infer(ask(id="3"), lambda result: result))
    assert (result.version, result.id, result.outputs[0].array.tolist()) == ("1", "3", [3.0, 5.0])

    asyncio.run(room.service.unload("affine", ["unload_dependents"]))
    assert not room.service.index(ready=True).models
    with pytest.raises(ModelNotFoundError, match="is not loaded"):
        room.service.statistics("affine", "")


def test_a_reload_of_the_configuration_does_not_load_what_nobody_asked_for(room: Room) -> None:
    room.manager.reload(room.manager.configs, timeout_s=10)
    assert not room.service.model_ready("affine", "")
    with pytest.raises(ModelNotFoundError, match="loaded on request only"):
        room.service.model_metadata("affine", "")


def test_a_load_that_fails_is_an_error_and_shows_in_the_index(room: Room) -> None:
    (room.base_path / "2").mkdir()
    with pytest.raises(LoadError, match=r"'affine' cannot be loaded: version 2: .* holds no model"):
        asyncio.run(room.service.load("affine", []))
    # It has never answered, and takes nothing from others.
    assert (room.service.ready(), room.service.model_ready("affine", "")) == (True, False)
    (entry,) = room.service.index().models
    assert (entry.version, entry.state, "holds no model" in entry.reason) == ("2", "UNAVAILABLE", True)


def test_what_may_not_load(room: Room) -> None:
    with pytest.raises(UnsupportedError, match="'config' is not supported"):
        asyncio.run(room.service.load("affine", ["config"]))
    with pytest.raises(UnsupportedError, match="'repository_name' specification"):
        asyncio.run(room.service.load("affine", [], repository="r"))
    with pytest.raises(ModelNotFoundError, match="'nobody' is not configured; the models here are: affine"):
        asyncio.run(room.service.load("nobody", []))
    assert not room.service.model_ready("affine", "")


@pytest.mark.parametrize(("client", "status"), [(LOCAL, 200), (REMOTE, 403), (None, 403)])
def test_who_may_load_over_rest(room: Room, client: str | None, status: int) -> None:
    rest = OipRest(room.service, room.predictor, ServerOptions(), Access(insecure_admin="loopback"), Metrics())
    request = HttpRequest(
        method="POST", path="/v2/repository/models/affine/load", query="", headers={}, body=b"", client=client
    )
    answer = asyncio.run(rest.answer(request))
    assert (answer.status, b"--access_file" in answer.body) == (status, status == 403)


@pytest.mark.parametrize("rows", [1, 100_000])
def test_a_small_body_is_decoded_at_once(room: Room, rows: int) -> None:
    """A large one is decoded on a thread of its model."""
    asyncio.run(room.service.load("affine", []))
    rest = OipRest(room.service, room.predictor, ServerOptions(), Access(), Metrics())
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows], "data": [1.0] * rows}
    body = json.dumps({"inputs": [tensor]}).encode()
    request = HttpRequest(method="POST", path="/v2/models/affine/infer", query="", headers={}, body=body, client=LOCAL)
    threads = room.predictor._workers.of("affine")
    assert asyncio.run(rest.answer(request)).status == 200
    assert (threads.work_cost.seconds > 0) is (rows > 1)


def test_nothing_is_loaded_on_request_in_other_modes(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    config = ModelConfig(name="affine", base_path=tmp_path / "affine")
    manager = ModelManager([config], load, WatchOptions(poll_wait_s=0))
    for change in (manager.load_model, manager.unload_model):
        with pytest.raises(UnsupportedError, match="--model_control_mode=explicit"):
            change("affine")


def test_requests_that_make_no_sense(room: Room) -> None:
    asyncio.run(room.service.load("affine", []))
    for version in ("x", "-1", "1.0", "²", str(1 << 63), "9" * 5000):
        with pytest.raises(InvalidRequestError, match="version should be an integer"):
            room.service.model_ready("affine", version)
    with pytest.raises(SignatureNotFoundError, match="nope"):
        room.service.model_metadata("affine", "", "nope")
    with pytest.raises(ModelNotFoundError, match="version 9 is not loaded"):
        room.service.statistics("affine", "9")
    with pytest.raises(UnsupportedError, match="Repository 'r'"):
        room.service.index(repository="r")


def test_classification_replaces_the_tensor(room: Room) -> None:
    asyncio.run(room.service.load("affine", []))
    request = ask(RequestedOutput(name="y", classification=1))
    (output,) = asyncio.run(room.service.infer(request, lambda result: result)).outputs
    assert (output.datatype, output.array.tolist()) == ("BYTES", [b"5.000000:1"])
