"""Every answer has an x-request-id, over every API: the caller's where it is one, else one of the server's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.contract.test_headers import ask
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

V2 = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}).encode()
#: Answered without a task, with one, and with an error.
CALLS = [
    ("POST", "/v1/models/affine:predict", b'{"instances": [1]}', 200),
    ("POST", "/v1/models/affine:predict", b"nonsense", 400),
    ("GET", "/v1/models/affine", None, 200),
    ("GET", "/v1/models/nobody", None, 404),
    ("POST", "/v2/models/affine/infer", V2, 200),
    ("GET", "/v2/health/ready", None, 200),
]
#: What the server makes: a part of its process, and a counter.
MADE = re.compile(r"[0-9a-f]{16}-[0-9a-f]{12}")
#: Too long, with a blank, not ASCII, empty.
BAD = ["a" * 129, "a b", "\xe4", ""]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("ids")
    publish_affine(folder / "affine", slope=1.0, intercept=0.0)
    with serve(folder / "affine", model="affine", log_dir=folder) as running:
        yield running


@pytest.mark.parametrize(("method", "path", "body", "status"), CALLS)
def test_rest_repeats_it(server: RunningServer, method: str, path: str, body: bytes | None, status: int) -> None:
    for number in range(3):
        received, headers, _ = ask(server, method, path, body, {"X-Request-ID": f"call-{number}"})
        assert (received, headers["x-request-id"]) == (status, f"call-{number}")
    made = {ask(server, method, path, body)[1]["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    assert all(MADE.fullmatch(each) for each in made)


@pytest.mark.parametrize("value", BAD, ids=["long", "blank", "not ASCII", "empty"])
def test_rest_does_not_repeat_what_is_no_id(server: RunningServer, value: str) -> None:
    received, headers, _ = ask(server, "GET", "/v1/models/affine", None, {"X-Request-ID": value})
    assert (received, MADE.fullmatch(headers["x-request-id"]) is not None) == (200, True)


def predict(server: RunningServer, model: str, metadata: Any) -> dict[str, str]:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(array_to_tensor(np.array([2.0], np.float32)))
    with grpc.insecure_channel(server.grpc_address) as channel:
        method = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
        call: Any
        try:
            _, call = method.with_call(request.SerializeToString(), timeout=30, metadata=metadata)
        except grpc.RpcError as exc:
            call = exc
    return dict(call.trailing_metadata() or ())


@pytest.mark.parametrize("model", ["affine", "nobody"])
def test_grpc_repeats_it_in_its_trailers(server: RunningServer, model: str) -> None:
    for number in range(3):
        assert predict(server, model, (("x-request-id", f"call-{number}"),)) == {"x-request-id": f"call-{number}"}
    made = [predict(server, model, metadata)["x-request-id"] for metadata in ((), (("x-request-id", "a" * 129),))]
    assert len(set(made)) == 2
    assert all(MADE.fullmatch(each) for each in made)


def test_grpc_repeats_it_where_a_call_takes_a_task(server: RunningServer) -> None:
    request = service_pb2.ModelMetadataRequest(name="affine")
    with grpc.insecure_channel(server.grpc_address) as channel:
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelMetadata", bytes, bytes)
        _, call = method.with_call(request.SerializeToString(), timeout=30, metadata=(("x-request-id", "mine"),))
        assert tuple(call.trailing_metadata() or ()) == (("x-request-id", "mine"),)
