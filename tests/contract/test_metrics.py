"""Metrics under TensorFlow Serving's names, as its own test reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.support.admin import ask
from tests.support.metrics import METRICS_PATH, monitoring_flag, scrape, value
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

COUNT = ":tensorflow:serving:request_count"
LATENCY = ":tensorflow:serving:request_latency"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("metrics")
    publish_affine(folder / "affine", slope=1.0, intercept=0.0)
    with serve(folder / "affine", model="affine", log_dir=folder, flags=[monitoring_flag(folder)]) as running:
        yield running


def predict(server: RunningServer, model: str, *, times: int = 1) -> None:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(array_to_tensor(np.array([2.0], np.float32)))
    with grpc.insecure_channel(server.grpc_address) as channel:
        for _ in range(times):
            channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)(
                request.SerializeToString(), timeout=30
            )


def test_requests_of_both_protocols_are_counted(server: RunningServer) -> None:
    before = scrape(server)
    predict(server, "affine", times=3)
    for _ in range(2):
        assert ask(server, "affine") == 1.0
    assert ask(server, "affine", where="/versions/99")[0] == 404
    server.get("/v1/models/affine/metadata")
    after = scrape(server)

    def change(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert change(COUNT, model_name="affine", status="OK") == 5
    assert change(COUNT, model_name="affine", status="NOT_FOUND") == 1
    # "Predict" over gRPC and "predict" over REST, as upstream; failures have no latency.
    assert change(f"{LATENCY}_count", model_name="affine", API="Predict", entrypoint="GRPC") == 3
    assert change(f"{LATENCY}_count", model_name="affine", API="predict", entrypoint="REST") == 2
    assert change(f"{LATENCY}_sum", model_name="affine", API="predict", entrypoint="REST") > 0
    assert change(
        ":tensorflow:serving:runtime_latency_count", model_name="affine", API="Predict", runtime="onnxruntime"
    ) == 5  # fmt: skip
    assert change(":modelyard:serving:predictions", model="affine", version="1", status="OK") == 5


def test_loads_are_counted(server: RunningServer) -> None:
    path = str(server.log.parent / "affine" / "1")
    assert (
        value(scrape(server), ":tensorflow:cc:saved_model:load_attempt_count", model_path=path, status="success") == 1
    )


def test_names_that_nobody_serves_do_not_grow_the_page(server: RunningServer) -> None:
    ask(server, "nobody")
    before = scrape(server)
    for number in range(20):
        assert ask(server, f"made-up-{number}")[0] == 404
        with pytest.raises(grpc.RpcError):
            predict(server, f"made-up-{number}")
    after = scrape(server)
    assert after.keys() == before.keys()
    assert value(after, COUNT, model_name="", status="NOT_FOUND") - value(
        before, COUNT, model_name="", status="NOT_FOUND"
    ) == 40  # fmt: skip


def test_the_page_s_type_and_path(server: RunningServer) -> None:
    import urllib.request

    with urllib.request.urlopen(server.rest_url + METRICS_PATH, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
    status, text = server.get(f"{METRICS_PATH}?x=1")
    assert (status, f"Unexpected path: {METRICS_PATH}?x=1. Should be {METRICS_PATH}" in text) == (400, True)


def test_the_short_path_needs_no_file_and_upstream_s_does(tmp_path: Path, server: RunningServer) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path) as unconfigured:
        status, page = unconfigured.get("/metrics")
        assert (status, page.startswith("# HELP :tensorflow:serving:request_count")) == (200, True)
        assert unconfigured.get(METRICS_PATH)[0] == 404
    assert server.get("/metrics")[0] == server.get(METRICS_PATH)[0] == 200


def test_there_is_no_page_where_the_file_says_so(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    off = tmp_path / "off.config"
    off.write_text("prometheus_config { enable: false }")
    flags = [f"--monitoring_config_file={off}"]
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:
        assert server.get(METRICS_PATH)[0] == server.get("/metrics")[0] == 404


def test_another_path_and_the_default_one(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=1.0, intercept=0.0)
    config = tmp_path / "monitoring.config"
    for text, path in (
        ('prometheus_config { enable: true path: "/metrics" }', "/metrics"),
        ("prometheus_config { enable: true }", METRICS_PATH),
    ):
        config.write_text(text)
        flags = [f"--monitoring_config_file={config}"]
        with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=flags) as server:
            status, page = server.get(path)
            assert (status, page.startswith("# HELP :tensorflow:serving:request_count")) == (200, True)
