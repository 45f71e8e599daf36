"""The Open Inference Protocol, over all implementations, against a real server and scripted ones."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import Client, connect
from modelyard.clients.protocols import Answer, PredictCall, Target
from modelyard.clients.protocols.v2._codec import infer_json, prediction_from_answer, raw_to_array
from modelyard.wire import array_to_raw
from tests.clients.conftest import KINDS, connected, peer
from tests.support.server import RunningServer


def v2_url(server: RunningServer, kind: str) -> str:
    return (
        f"grpc+v2://{server.grpc_address}" if kind.startswith("grpc") else server.rest_url.replace("http", "http+v2", 1)
    )


@pytest.fixture(params=KINDS)
def v2(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Client]:
    with connected(v2_url(server, request.param), request.param) as client:
        yield client


def test_predict(v2: Client) -> None:
    answer = v2.predict("half", {"x": [1, 2.5]})
    assert answer["y"].tolist() == [2.5, 3.25]
    assert answer["y"].dtype == np.float32
    assert (answer.model, answer.version, answer.signature) == ("half", 7, "serving_default")
    special = np.array([np.nan, np.inf, -1e-45], np.float32)
    np.testing.assert_array_equal(v2.predict("half", {"x": special}, version=7)["y"], special * np.float32(0.5) + 2)


def test_another_signature(v2: Client) -> None:
    inputs = {"text": np.array([b"a", "é".encode(), b""], object)}
    answer = v2.predict("half", inputs, signature="strings", outputs=["upper", "length"])
    assert {name: array.tolist() for name, array in answer.items()} == {
        "upper": [b"A", "é".encode(), b""],
        "length": [1, 2, 0],
    }


def test_metadata_status_and_a_model(v2: Client) -> None:
    metadata = v2.metadata("half")
    assert metadata.version == 7
    signature = metadata.signatures["serving_default"]
    assert (signature.inputs["x"].dtype, signature.inputs["x"].shape) == ("float32", (-1,))
    assert v2.wait_ready("half", 10).available == (7,)
    assert v2.status("half", version=7).available == (7,)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (errors.ModelNotFoundError, {"model": "nope"}),
        (errors.ModelNotFoundError, {"version": 99}),
        (errors.UnsupportedError, {"label": "stable"}),
        (errors.SignatureNotFoundError, {"signature": "nope"}),
        (errors.InvalidInputError, {"inputs": {"x": np.zeros(1)}}),
        (errors.InvalidInputError, {"inputs": {"z": np.zeros(1, np.float32)}}),
    ],
)
def test_the_same_failure_is_the_same_class(
    v2: Client, kind: type[errors.ModelyardError], arguments: dict[str, Any]
) -> None:
    with pytest.raises(errors.ModelyardError) as caught:
        v2.predict(**{"model": "half", "inputs": {"x": np.zeros(1, np.float32)}, **arguments})
    assert type(caught.value) is kind


def test_what_the_protocol_lacks(v2: Client) -> None:
    for call in (v2.classify, v2.regress):
        with pytest.raises(errors.UnsupportedError, match="Open Inference Protocol has no"):
            call("half", [{"x": 1.0}])
    with pytest.raises(errors.UnsupportedError, match="reload_config"):
        v2.reload_config([])


@contextmanager
def mlserver(metadata: dict[str, Any], outputs: list[dict[str, Any]]) -> Iterator[tuple[Client, list[dict[str, Any]]]]:
    """A client of a server with one model and without binary tensors, and the requests that this gets."""
    received: list[dict[str, Any]] = []
    documents = {
        b"/v2/models/m": {"name": "m", "platform": "", **metadata},
        b"/v2/models/m/infer": {"model_name": "m", "id": "1", "outputs": outputs},
    }

    def answer(connection: socket.socket) -> None:
        data = b""
        while part := connection.recv(1 << 16):
            data += part
            head, blank, body = data.partition(b"\r\n\r\n")
            lengths = [int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
            if not blank or (lengths and len(body) < lengths[0]):
                continue
            path = head.split(b" ")[1]
            if path.endswith(b"/infer"):
                received.append(json.loads(body))
            text = json.dumps(documents.get(path, {"name": "mlserver", "extensions": []})).encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text))
            data = b""

    with peer(answer) as port, connect(f"http+v2://127.0.0.1:{port}") as client:
        yield client, received


def test_a_server_without_binary_tensors() -> None:
    metadata = {
        "versions": None,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [{"name": "y", "datatype": "INT64", "shape": [-1, 2]}],
    }
    outputs = [
        {"name": "y", "datatype": "INT64", "shape": [1, 2], "data": [[1, 1 << 62]]},
        {"name": "s", "datatype": "BYTES", "shape": [1], "data": ["é"]},
        {"name": "b", "datatype": "BOOL", "shape": [2], "data": [True, False]},
    ]
    with mlserver(metadata, outputs) as (client, received):
        result = client.predict("m", {"x": [[1, 2]]})
        assert set(client.predict("m", {"x": [[1, 2]]}, outputs=["y"])) == {"y"}
        with pytest.raises(errors.InvalidInputError, match="float64 is provided"):
            client.predict("m", {"x": np.zeros((1, 2))})
    assert received[0]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}]
    assert result["y"].tolist() == [[1, 1 << 62]]
    assert (result["s"].tolist(), result["b"].tolist()) == (["é".encode()], [True, False])


def test_a_server_that_describes_no_tensors() -> None:
    """MLServer, of a model whose settings name none: what it takes, it must know itself."""
    outputs = [{"name": name, "datatype": "INT64", "shape": [1], "data": [3]} for name in "yz"]
    with mlserver({"versions": [], "inputs": [], "outputs": []}, outputs) as (client, received):
        assert set(client.predict("m", {"x": np.ones((1, 2), np.float32)}, outputs=["y"])) == {"y"}
        assert client.model("m").predict({"x": np.ones((1, 2))})["z"].tolist() == [3]
        with pytest.raises(errors.InvalidInputError, match="expected a mapping"):
            client.model("m").predict(np.ones((1, 2)))
        # Python numbers are the same on both ways.
        client.predict("m", {"x": [[1.0]]})
        client.model("m").predict({"x": [[1.0]]})
    assert [each["inputs"][0]["datatype"] for each in received] == ["FP32", "FP64", "FP32", "FP32"]


CALL = PredictCall(target=Target(model="m"), inputs={}, signature="", outputs=())


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint64", "float16", "float64", "bfloat16"])
def test_raw_tensors_make_the_round_trip(dtype: str) -> None:
    import ml_dtypes

    names = {
        "bool": "BOOL", "uint8": "UINT8", "int16": "INT16", "uint64": "UINT64",
        "float16": "FP16", "float64": "FP64", "bfloat16": "BF16",
    }  # fmt: skip
    array = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    back = raw_to_array(array_to_raw(array), names[dtype], (2, 3), "x")
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("data", "datatype", "shape"),
    [(b"abc", "FP32", (1,)), (b"\1\0\0\0", "BYTES", (1,)), (b"\0\0\0\0x", "BYTES", (1,)), (b"", "FP99", (0,))],
)
def test_raw_tensors_of_another_length_are_a_protocol_error(data: bytes, datatype: str, shape: tuple[int]) -> None:
    with pytest.raises(errors.ProtocolError):
        raw_to_array(data, datatype, shape, "x")


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{}", {}),
        (b"[]", {}),
        (b"nope", {}),
        (b"{}", {"inference-header-content-length": "9"}),
        (b"{}", {"inference-header-content-length": "9" * 5000}),
        (b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1]}]}', {}),
        (b'{"outputs": [{"name": "y", "datatype": "INT8", "shape": [1], "data": [1000]}]}', {}),
        (b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": ["a"], "data": [1]}]}', {}),
    ],
)
def test_answers_that_are_none(body: bytes, headers: dict[str, str]) -> None:
    with pytest.raises(errors.ProtocolError):
        prediction_from_answer(Answer(body, headers), CALL)


def test_integers_of_64_bits_in_json() -> None:
    values = [2**63 + 1, 1]
    output = {"name": "y", "datatype": "UINT64", "shape": [2], "data": values}
    answer = Answer(json.dumps({"outputs": [output]}).encode(), {})
    assert prediction_from_answer(answer, CALL)["y"].tolist() == values


def test_what_json_cannot_carry() -> None:
    with pytest.raises(errors.InvalidInputError, match="no UTF-8 text"):
        infer_json(CALL, {"x": np.array([b"\xff"], object)}, binary=False)
    with pytest.raises(errors.UnsupportedError, match="complex64"):
        infer_json(CALL, {"x": np.zeros(1, np.complex64)}, binary=True)
