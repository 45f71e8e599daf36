"""Choosing a signature in each protocol, and being told of it where an input belongs to another one."""

from __future__ import annotations

import json
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from modelyard.clients import connect
from modelyard.errors import InvalidInputError
from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2
from tests.support.server import RunningServer

HINT = "Input 'text' belongs to signature 'strings'; select it with signature_name: \"strings\""
TEXT = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}


@pytest.mark.parametrize("padding", [0, 1 << 17], ids=["small", "large"])
@pytest.mark.parametrize("body", [{"instances": [{"text": "a"}]}, {"inputs": {"text": ["a"]}}], ids=["row", "column"])
def test_rest(half_server: RunningServer, body: dict[str, Any], padding: int) -> None:
    body["padding"] = " " * padding
    status, text = half_server.post("/v1/models/half:predict", json.dumps(body).encode())
    assert (status, HINT in json.loads(text)["error"]) == (400, True), text
    status, text = half_server.post(
        "/v1/models/half:predict", json.dumps({**body, "signature_name": "strings"}).encode()
    )
    assert status == 200, text


def test_rest_says_nothing_of_an_input_that_nobody_has(half_server: RunningServer) -> None:
    status, text = half_server.post("/v1/models/half:predict", b'{"inputs": {"zzz": [1]}}')
    assert (status, json.loads(text)["error"]) == (400, "Missing named input: x in 'inputs' object.")


def test_grpc(half_channel: grpc.Channel) -> None:
    request = serving_pb2.PredictRequest()
    request.model_spec.name = "half"
    request.inputs["text"].CopyFrom(array_to_tensor(np.array([b"a"], object)))
    call = half_channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)
    with pytest.raises(grpc.RpcError) as caught:
        call(request.SerializeToString(), timeout=30)
    details = str(caught.value.details())
    # Upstream's words come first.
    assert details.startswith("Signature input alias: x(feed name: serving_default_x:0) not found in request")
    assert HINT in details
    request.model_spec.signature_name = "strings"
    assert call(request.SerializeToString(), timeout=30)


def test_v2_over_rest(half_server: RunningServer) -> None:
    status, text = half_server.post("/v2/models/half/infer", json.dumps({"inputs": [TEXT]}).encode())
    assert (status, HINT in json.loads(text)["error"]) == (400, True), text
    body = {"inputs": [TEXT], "parameters": {"signature_name": "strings"}}
    status, text = half_server.post("/v2/models/half/infer", json.dumps(body).encode())
    assert status == 200, text
    assert {output["name"]: output["data"] for output in json.loads(text)["outputs"]}["upper"] == ["A"]


def test_v2_over_grpc(half_server: RunningServer) -> None:
    tensor = triton.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"a"], object))
    with triton.InferenceServerClient(half_server.grpc_address) as client:
        with pytest.raises(triton.InferenceServerException, match="belongs to signature 'strings'"):
            client.infer("half", [tensor])
        answer = client.infer("half", [tensor], parameters={"signature_name": "strings"})
    assert answer.as_numpy("upper").tolist() == [b"A"]


@pytest.mark.parametrize("scheme", ["grpc", "http", "grpc+v2", "http+v2"])
def test_the_client(half_server: RunningServer, scheme: str) -> None:
    port = half_server.grpc_port if scheme.startswith("grpc") else half_server.rest_port
    with connect(f"{scheme}://127.0.0.1:{port}") as client:
        text = np.array([b"a"], object)
        with pytest.raises(InvalidInputError, match="belongs to signature 'strings'"):
            client.predict("half", {"text": text})
        assert client.predict("half", {"text": text}, signature="strings")["upper"].tolist() == [b"A"]
