"""SageMaker's container contract, as SageMaker calls it: environment variables, one argument, two URLs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving import parse_flags
from tests.support.models import publish_affine
from tests.support.server import RunningServer, free_port, serve

ROWS = json.dumps({"instances": [1.0, 2.0]}).encode()


@pytest.fixture(scope="module")
def server(session_dir: Path) -> Iterator[RunningServer]:
    folder = session_dir / "sagemaker"
    publish_affine(folder / "model" / "fashion", slope=2.0, intercept=1.0)
    publish_affine(folder / "model" / "fashion", slope=3.0, intercept=0.0)
    port = free_port()
    env = {"SAGEMAKER_BIND_TO_PORT": str(port), "MODEL_NAME": "fashion", "MODEL_BASE_PATH": str(folder / "model")}
    with serve(None, model="fashion", log_dir=folder, flags=["serve"], env=env, wait=False) as started:
        server = replace(started, rest_port=port)
        server.wait_available()
        yield server


def test_ping_is_readiness(server: RunningServer) -> None:
    assert server.get("/ping") == (200, "")


def test_ping_is_not_ok_while_nothing_can_be_answered(tmp_path: Path) -> None:
    port = free_port()
    env = {"SAGEMAKER_BIND_TO_PORT": str(port), "MODEL_NAME": "absent", "MODEL_BASE_PATH": str(tmp_path)}
    with serve(None, model="absent", log_dir=tmp_path, flags=["serve"], env=env, wait=False) as started:
        server = replace(started, rest_port=port)
        server.wait_until(lambda: server.get("/v2/health/live")[0] == 200, 30, "alive")
        assert server.get("/ping")[0] == 400


def test_invocations_are_predictions_of_the_newest_version(server: RunningServer) -> None:
    status, body = server.post("/invocations", ROWS, {"Content-Type": "application/json"})
    assert (status, json.loads(body)) == (200, {"predictions": [3.0, 6.0]})
    assert server.post("/v1/models/fashion:predict", ROWS) == (status, body)


def test_columns_are_taken_too(server: RunningServer) -> None:
    status, body = server.post("/invocations", json.dumps({"inputs": {"x": [1.0]}}).encode())
    assert (status, json.loads(body)) == (200, {"outputs": [3.0]})


@pytest.mark.parametrize(
    ("attributes", "status", "part"),
    [
        ("tfs-model-name=fashion", 200, '"predictions"'),
        ("tfs-model-name=fashion, tfs-model-version=2,other=x", 200, '"predictions"'),
        ("tfs-model-version=1", 404, "fashion"),
        ("tfs-model-name=hat", 404, "hat"),
        ("tfs-model-name=a/b", 404, "a/b"),
        ("tfs-method=explain", 400, "Malformed request"),
        ("tfs-model-version=newest", 400, "Malformed request"),
    ],
)
def test_attributes_choose_model_version_and_method(
    server: RunningServer, attributes: str, status: int, part: str
) -> None:
    answer = server.post("/invocations", ROWS, {"X-Amzn-SageMaker-Custom-Attributes": attributes})
    assert answer[0] == status
    assert part in answer[1]


def test_a_bad_request_is_the_caller_s_error(server: RunningServer) -> None:
    status, body = server.post("/invocations", b"1,2,3", {"Content-Type": "text/csv"})
    assert status == 400
    assert "error" in json.loads(body)
    assert server.get("/invocations")[0] == 400


def test_without_the_flag_there_are_no_such_urls(half_server: RunningServer) -> None:
    assert half_server.get("/ping")[0] == 404
    assert half_server.post("/invocations", ROWS)[0] == 404


def test_defaults_are_sagemaker_s() -> None:
    image = {"MODEL_BASE_PATH": "/models"}
    options = parse_flags(["--rest_api_port=8501", "serve"], image)
    assert options.sagemaker
    assert options.rest_api_port == 8080
    assert [(model.name, str(model.base_path)) for model in options.models] == [("model", "/opt/ml/model")]
    flagged = parse_flags(["--sagemaker", "--model_name=hat", "--model_base_path=/hats"], image)
    assert [(model.name, str(model.base_path)) for model in flagged.models] == [("hat", "/hats")]


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(ConfigurationError, match="SAGEMAKER_BIND_TO_PORT is .*expected a port"):
        parse_flags(["serve"], {"SAGEMAKER_BIND_TO_PORT": port})


def test_another_argument_is_still_refused() -> None:
    with pytest.raises(ConfigurationError):
        parse_flags(["train", "--model_base_path=/m"])
