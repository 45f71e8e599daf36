"""What goes beyond TensorFlow Serving: behind flags or on new URLs, so that v1 stays as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from modelyard.wire import array_to_tensor, tensorflow_pb2
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve


def save_sum(directory: Path) -> None:
    """``total = x + bias`` in several dtypes; ``bias`` has a default in the SignatureDef."""

    def add(kind: tf.DType) -> tf.types.experimental.GenericFunction:
        @tf.function(input_signature=[tf.TensorSpec([None], kind, name="x"), tf.TensorSpec([], kind, name="bias")])
        def function(x: tf.Tensor, bias: tf.Tensor) -> dict[str, tf.Tensor]:
            # Not every dtype has a kernel for addition.
            return {"total": tf.cast(tf.cast(x, tf.float32) + tf.cast(bias, tf.float32), kind)}

        return function

    module = tf.Module()
    kinds = {"serving_default": tf.float32, "half": tf.float16, "bfloat16": tf.bfloat16, "uint16": tf.uint16}
    module.functions = {name: add(kind) for name, kind in kinds.items()}
    tf.saved_model.save(module, str(directory), signatures=dict(module.functions))
    file = directory / "saved_model.pb"
    model = tensorflow_pb2.SavedModel.FromString(file.read_bytes())
    definition = model.meta_graphs[0].signature_def["serving_default"]
    definition.defaults["bias"].CopyFrom(array_to_tensor(np.array(10, np.float32)))
    file.write_bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def model_dir(session_dir: Path) -> Path:
    save_sum(session_dir / "sum" / "1")
    return session_dir / "sum"


@pytest.fixture(scope="module")
def plain(model_dir: Path, session_dir: Path) -> Iterator[RunningServer]:
    with serve(model_dir, model="sum", log_dir=session_dir) as server:
        yield server


@pytest.fixture(scope="module")
def extended(model_dir: Path, session_dir: Path) -> Iterator[RunningServer]:
    flags = ["--rest_api_extensions", "--rest_api_strict_json"]
    with serve(model_dir, model="sum", log_dir=session_dir, flags=flags) as server:
        yield server


def predict(server: RunningServer, body: Any) -> tuple[int, Any]:
    status, text = server.post("/v1/models/sum:predict", json.dumps(body).encode())
    return status, json.loads(text)


def grpc_predict(server: RunningServer, **inputs: float | list[float]) -> list[float]:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "sum"
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value, dtype=tf.float32))
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        return list(stub.Predict(request, timeout=30).outputs["total"].float_val)


def test_an_input_with_a_default_may_be_left_out_over_grpc(plain: RunningServer) -> None:
    assert grpc_predict(plain, x=[1.0]) == [11.0]
    assert grpc_predict(plain, x=[1.0], bias=2.0) == [3.0]


BAD = [
    ({"bias": 1.0}, "Signature input alias: x(feed name: serving_default_x:0) not found in request and no default"),
    ({"x": [1.0], "z": 1.0}, "Inputs contains invalid name. Used request inputs: {x,z}"),
    ({"x": [1.0], "bias": 1.0, "z": 1.0}, "Sent extra: {z}. Missing but required: {}."),
]


@pytest.mark.parametrize(("inputs", "fragment"), BAD)
def test_defaults_do_not_excuse_everything(plain: RunningServer, inputs: dict[str, Any], fragment: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        grpc_predict(plain, **inputs)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fragment in str(caught.value.details())


def test_over_rest_defaults_need_the_flag(plain: RunningServer, extended: RunningServer) -> None:
    rows, columns = {"instances": [{"x": 1}, {"x": 2}]}, {"inputs": {"x": [1, 2]}}
    assert predict(plain, rows)[0] == 400
    assert predict(plain, columns)[0] == 400
    assert predict(extended, rows) == (200, {"predictions": [11.0, 12.0]})
    assert predict(extended, columns) == (200, {"outputs": [11.0, 12.0]})
    status, answer = predict(extended, {"instances": [{"x": 1}, {"x": 2, "bias": 3}]})
    assert (status, "keys must be equal to: x" in answer["error"] or "does not" in answer["error"]) == (400, True)


@pytest.mark.parametrize(("signature", "expected"), [("half", 4.5), ("bfloat16", 4.5), ("uint16", 4)])
def test_more_dtypes_over_rest(plain: RunningServer, extended: RunningServer, signature: str, expected: float) -> None:
    value = 1.5 if signature != "uint16" else 1
    body = {"signature_name": signature, "inputs": {"x": [value], "bias": 3}}
    status, answer = predict(plain, body)
    assert (status, "Conversion of JSON Value: " in answer["error"]) == (501, True)
    assert predict(extended, body) == (200, {"outputs": [expected]})


def test_strict_json_refuses_what_json_cannot_say(plain: RunningServer, extended: RunningServer) -> None:
    body = b'{"inputs": {"x": [Infinity], "bias": 1}}'
    assert plain.post("/v1/models/sum:predict", body)[0] == 200
    status, text = extended.post("/v1/models/sum:predict", body)
    assert (status, "strict JSON cannot say" in text) == (400, True)


def test_the_list_of_models(tmp_path: Path) -> None:
    publish_affine(tmp_path / "one", slope=1.0, intercept=0.0)
    (tmp_path / "two").mkdir()
    config = tmp_path / "models.config"
    config.write_text(
        "model_config_list {\n"
        f'  config {{ name: "one" base_path: "{tmp_path / "one"}" model_platform: "tensorflow"\n'
        '    version_labels { key: "stable" value: 1 } }\n'
        f'  config {{ name: "two" base_path: "{tmp_path / "two"}" model_platform: "tensorflow" }}\n'
        "}\n"
    )
    flags = [f"--model_config_file={config}", "--allow_version_labels_for_unavailable_models"]
    with serve(tmp_path / "one", model="one", log_dir=tmp_path, flags=flags) as server:
        one, two = json.loads(server.get("/v1/models")[1])["models"]
        assert (one["name"], one["ready"], one["labels"]) == ("one", True, {"stable": 1})
        assert one["versions"] == [{"version": "1", "state": "AVAILABLE", "error": ""}]
        assert one["signatures"]["serving_default"]["inputs"] == {"x": "float32 [-1]"}
        assert (two["name"], two["ready"], two["versions"], two["signatures"]) == ("two", False, [], {})
        document = json.loads(server.get("/v2/config")[1])
        assert document["rest_api_port"] == server.rest_port
        assert document["models"][0]["labels"] == {"stable": 1}


def test_the_configuration_shows_no_secrets(tmp_path: Path) -> None:
    from modelyard.serving import ModelManager, ServerOptions, WatchOptions
    from modelyard.serving.config import TlsConfig
    from modelyard.serving.handlers.rest import config_json

    options = ServerOptions(
        port=1, rest_api_port=0, models=(), tls=TlsConfig(key="the key", certificate="the certificate")
    )
    text = config_json(options, ModelManager((), lambda *_: pytest.fail("nothing to load"), WatchOptions()))
    assert "the key" not in text
    assert json.loads(text)["tls"]["key"] == "****"
