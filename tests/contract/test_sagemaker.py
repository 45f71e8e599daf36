"""SageMaker's container contract, as SageMaker calls it: environment variables, one argument, two URLs."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving import parse_flags
from modelyard.serving.handlers.rest._sagemaker_bodies import as_instances
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


@pytest.mark.parametrize(
    ("kind", "body", "rows"),
    [
        ("application/json", b"5.0", [15.0]),
        ("application/json", b'{"x": 1.0}', [3.0]),
        ("application/jsonlines", b'{"x": 1.0}\n{"x": 2.0}\n', [3.0, 6.0]),
        ("application/json", b'{"x": 1.0}\r\n\r\n{"x": 2.0}', [3.0, 6.0]),
        ("application/jsonlines", b"1.0\n2.0\n", [3.0, 6.0]),
        ("application/jsonlines", ROWS, [3.0, 6.0]),
        ("text/csv", b"1.0\r\n2.0\r\n", [3.0, 6.0]),
        ("Text/CSV; charset=utf-8", b" -1\n", [-3.0]),
        ("text/csv", b"1.0\n" * 30_000, [3.0] * 30_000),
    ],
)
def test_rows_as_sagemaker_s_own_container_takes_them(
    server: RunningServer, kind: str, body: bytes, rows: list[float]
) -> None:
    status, answer = server.post("/invocations", body, {"Content-Type": kind})
    assert (status, json.loads(answer)) == (200, {"predictions": rows})


@pytest.mark.parametrize(
    ("kind", "body", "instances"),
    [
        ("text/csv", b"1,2\n3,4", [[1, 2], [3, 4]]),
        ("text/csv", b'"a","b c"\n"d","e"', [["a", "b c"], ["d", "e"]]),
        ("text/csv", 'Zürich,x\nBasel,"y"'.encode(), [["Zürich", "x"], ["Basel", '"y"']]),
        ("application/json", b"[1, 2]", [[1, 2]]),
        ("application/json", b" [[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        ("application/jsonlines", b"[1, 2]\n[3, 4]", [[1, 2], [3, 4]]),
    ],
)
def test_rows_of_several_columns(kind: str, body: bytes, instances: list[object]) -> None:
    assert json.loads(as_instances(body, kind)) == {"instances": instances}


def test_what_the_router_judges_is_passed_on_as_it_is() -> None:
    for kind, body in (("application/x-image", b"\xff"), ("", b"1,2"), ("application/json", b"  ")):
        assert as_instances(body, kind) == body


def test_an_answer_of_one_line_for_batch_transform(server: RunningServer) -> None:
    request = urllib.request.Request(
        f"{server.rest_url}/invocations", b"1.0\n2.0", {"Content-Type": "text/csv", "Accept": "application/jsonlines"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        body = response.read()
        assert response.headers["Content-Type"] == "application/jsonlines"
    assert (body.count(b"\n"), json.loads(body)) == (0, {"predictions": [3.0, 6.0]})


def test_an_archive_as_for_sagemaker_s_own_container(tmp_path: Path) -> None:
    """Several models, of which requests choose, and a script that is not run."""
    publish_affine(tmp_path / "double", slope=2.0, intercept=0.0)
    publish_affine(tmp_path / "treble", slope=3.0, intercept=0.0)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "inference.py").write_text("")
    port = free_port()
    env = {
        "SAGEMAKER_BIND_TO_PORT": str(port), "MODEL_BASE_PATH": str(tmp_path),
        "SAGEMAKER_TFS_DEFAULT_MODEL_NAME": "treble", "SAGEMAKER_TFS_ENABLE_BATCHING": "true",
    }  # fmt: skip
    with serve(None, model="treble", log_dir=tmp_path, flags=["serve"], env=env, wait=False) as started:
        server = replace(started, rest_port=port)
        server.wait_until(lambda: server.get("/ping")[0] == 200, 30, "ready")
        assert json.loads(server.post("/invocations", ROWS)[1]) == {"predictions": [3.0, 6.0]}
        named = {"X-Amzn-SageMaker-Custom-Attributes": "tfs-model-name=double"}
        assert json.loads(server.post("/invocations", ROWS, named)[1]) == {"predictions": [2.0, 4.0]}
        assert "inference.py is not run" in server.log_text()
        assert "no effect here: SAGEMAKER_TFS_ENABLE_BATCHING;" in server.log_text()
    with pytest.raises(ConfigurationError, match="is 'hat', and .* has no such model; expected one of double, treble"):
        parse_flags(["serve"], env | {"SAGEMAKER_TFS_DEFAULT_MODEL_NAME": "hat"})


def test_where_the_models_of_an_archive_are(tmp_path: Path) -> None:
    env = {"MODEL_BASE_PATH": str(tmp_path)}
    publish_affine(tmp_path / "export" / "Servo", slope=2.0, intercept=0.0)
    (model,) = parse_flags(["serve"], env).models
    assert (model.name, model.base_path) == ("Servo", tmp_path / "export" / "Servo")
    (model,) = parse_flags(["serve"], env | {"MODEL_NAME": "mine"}).models
    assert (model.name, model.base_path) == ("mine", tmp_path / "export" / "Servo")
    publish_affine(tmp_path / "other", slope=2.0, intercept=0.0)
    with pytest.raises(ConfigurationError, match=r"holds several models: .*/export/Servo, .*/other; expected one"):
        parse_flags(["serve"], env)
    with pytest.raises(ConfigurationError, match="SAGEMAKER_MULTI_MODEL is true"):
        parse_flags(["serve"], env | {"SAGEMAKER_MULTI_MODEL": "True"})


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
