"""Calls that access or a quota refuses: metrics and the access log name the caller and the model, over every API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from modelyard.wire import PREDICTION_SERVICE, inference_pb2, serving_pb2
from tests.support.access import BODY, GRPC, bearer, call, entry, key_of, send
from tests.support.metrics import monitoring_flag, scrape, value
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

PREDICT, INFER = PREDICTION_SERVICE["Predict"].path, "/inference.GRPCInferenceService/ModelInfer"
#: By API, a prediction of it: over REST a route, over gRPC a method.
CALLS = ("POST /v1/models/affine:predict", "POST /v2/models/affine/infer", PREDICT, INFER)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("refused")
    publish_affine(folder / "affine", slope=2.0, intercept=1.0)
    file = folder / "access.toml"
    quotas = [entry(f"shop{index}", "predict", requests_per_second=0.001) for index in range(len(CALLS))]
    file.write_text("\n".join(['anonymous = ["metrics", "metadata"]\n', entry("other", "predict:other"), *quotas]))
    flags = [f"--access_file={file}", "--access_log=all", "--access_log_format=json", monitoring_flag(folder)]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags) as running:
        yield running


def refused(server: RunningServer, index: int, principal: str, request_id: str) -> bool:
    """Makes a call; whether it was refused for good."""
    headers = {**bearer(key_of(principal)), "x-request-id": request_id}
    if CALLS[index] not in GRPC:
        return send(server, CALLS[index], headers=headers, body=BODY)[0] in (403, 429)
    predict = serving_pb2.PredictRequest()
    predict.model_spec.name = "affine"
    message = predict if CALLS[index] == PREDICT else inference_pb2.ModelInferRequest(model_name="affine")
    with grpc.insecure_channel(server.grpc_address) as channel:
        code = call(channel, CALLS[index], message.SerializeToString(), headers)
    return code in ("DENIED", "RESOURCE_EXHAUSTED")


def logged(server: RunningServer, request_id: str) -> dict[str, Any]:
    def lines() -> list[dict[str, Any]]:
        return [line for line in server.log_objects() if line.get("request_id") == request_id]

    server.wait_until(lambda: len(lines()) == 1, 20, f"{request_id} in the log")
    return lines()[0]


@pytest.mark.parametrize("index", range(len(CALLS)))
def test_a_call_beyond_a_quota_is_counted_and_logged(server: RunningServer, index: int) -> None:
    shop = f"shop{index}"
    found = scrape(server)
    counters: dict[str, dict[str, str]] = {
        ":modelyard:serving:refused": {"model": "affine", "reason": "quota"},
        ":tensorflow:serving:request_count": {"model_name": "affine", "status": "RESOURCE_EXHAUSTED"},
        ":modelyard:serving:client_requests": {"client": shop, "model_name": "affine", "status": "RESOURCE_EXHAUSTED"},
    }
    before = {name: value(found, name, **labels) for name, labels in counters.items()}
    # Whatever becomes of it, the first one uses the quota up.
    assert [refused(server, index, shop, f"{shop}-{count}") for count in range(4)] == [False, True, True, True]
    found = scrape(server)
    assert {name: value(found, name, **labels) - before[name] for name, labels in counters.items()} == dict.fromkeys(
        counters, 3.0
    )
    line = logged(server, f"{shop}-3")
    assert (line["principal"], line["model"]) == (shop, "affine")
    assert line["status"] in ("429", "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("index", range(len(CALLS)))
def test_a_call_without_the_scope_is_logged_with_its_caller(server: RunningServer, index: int) -> None:
    assert refused(server, index, "other", f"other-{index}")
    line = logged(server, f"other-{index}")
    assert (line["principal"], line["model"]) == ("other", "affine")
    labels = {"client": "other", "model_name": "affine", "status": "PERMISSION_DENIED"}
    assert value(scrape(server), ":modelyard:serving:client_requests", **labels) >= 1
