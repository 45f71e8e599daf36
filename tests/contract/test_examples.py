"""Classify, Regress and MultiInference over gRPC and REST, on a TF1-format model; and a model with a state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.support.metrics import monitoring_flag, scrape, value
from tests.support.saved_models import save_counter, save_tf1_half_plus_three, save_tf1_half_plus_two
from tests.support.server import RunningServer, serve

REGRESS, CLASSIFY = "tensorflow/serving/regress", "tensorflow/serving/classify"


@pytest.fixture(scope="module")
def server(session_dir: Path) -> Iterator[RunningServer]:
    """``tf1``, and TensorFlow Serving's own ``three`` and ``counter``."""
    models = session_dir / "contract-examples"
    save_tf1_half_plus_two(models / "tf1" / "123")
    save_tf1_half_plus_three(models / "three" / "123")
    save_counter(models / "counter" / "1")
    traffic = session_dir / "examples-traffic.config"
    traffic.write_text('model { name: "tf1" split { version: 123 } version_header: "x-version" }')
    flags = (f"--model_repository={models}", f"--version_traffic_file={traffic}", monitoring_flag(session_dir))
    with serve(None, model="tf1", log_dir=session_dir, flags=flags, poll_s=60) as running:
        for name in ("three", "counter"):
            replace(running, model=name).wait_available()
        yield running


@pytest.fixture(scope="module")
def stub(server: RunningServer) -> Iterator[prediction_service_pb2_grpc.PredictionServiceStub]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def example(**features: float) -> tf.train.Example:
    message = tf.train.Example()
    for name, number in features.items():
        message.features.feature[name].float_list.value.append(number)
    return message


def fill(request: Any, signature: str, *examples: tf.train.Example, context: tf.train.Example | None = None) -> Any:
    request.model_spec.name = "tf1"
    request.model_spec.signature_name = signature
    return fill_input(request, *examples, context=context)


def fill_input(request: Any, *examples: tf.train.Example, context: tf.train.Example | None = None) -> Any:
    if context is None:
        request.input.example_list.examples.extend(examples)
    else:
        request.input.example_list_with_context.examples.extend(examples)
        request.input.example_list_with_context.context.CopyFrom(context)
    return request


def test_regress(stub) -> None:
    request = fill(regression_pb2.RegressionRequest(), "regress_x_to_y", example(x=2.0), example(x=80.0))
    response = stub.Regress(request, timeout=30)
    assert [item.value for item in response.result.regressions] == [3.0, 42.0]
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("tf1", 123, "regress_x_to_y")


def test_traffic_rules_hold_for_examples(server: RunningServer, stub) -> None:
    def counted(status: str) -> float:
        return value(scrape(server), ":modelyard:serving:traffic_requests", model="tf1", target="123", status=status)

    before, named = counted("OK"), (("x-version", "123"),)
    regress = fill(regression_pb2.RegressionRequest(), "regress_x_to_y", example(x=2.0))
    classify = fill(classification_pb2.ClassificationRequest(), "classify_x_to_y", example(x=2.0))
    both = multi(("tf1", "regress_x_to_y", REGRESS), ("tf1", "classify_x_to_y", CLASSIFY))
    for call, request in ((stub.Regress, regress), (stub.Classify, classify), (stub.MultiInference, both)):
        call(request, timeout=30, metadata=named)
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=30, metadata=(("x-version", "9"),))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "expected one of 123" in (caught.value.details() or "")
    assert counted("OK") == before + 3
    failed = counted("INVALID_ARGUMENT")
    regress.input.Clear()
    with pytest.raises(grpc.RpcError, match="Input is empty"):
        stub.Regress(regress, timeout=30)
    assert counted("INVALID_ARGUMENT") == failed + 1


def test_a_signature_that_says_the_wrong_dtype_of_its_examples(server: RunningServer, stub) -> None:
    """TensorFlow Serving's own documentation calls its model half_plus_three so, and has these answers."""
    body = {"signature_name": REGRESS, "examples": [{"x": 1.0}, {"x": 2.0}]}
    status, text = server.post("/v1/models/three:regress", json.dumps(body).encode())
    assert (status, json.loads(text)) == (200, {"results": [3.5, 4.0]})
    status, text = server.post("/v1/models/three:predict", b'{"instances": [1.0, 2.0, 5.0]}')
    assert (status, json.loads(text)) == (200, {"predictions": [3.5, 4.0, 5.5]})
    request = fill(regression_pb2.RegressionRequest(), REGRESS, example(x=2.0))
    request.model_spec.name = "three"
    assert stub.Regress(request, timeout=30).result.regressions[0].value == 4.0
    (result,) = stub.MultiInference(multi(("three", REGRESS, REGRESS)), timeout=30).results
    assert result.regression_result.regressions[0].value == 4.0
    predict = predict_pb2.PredictRequest()
    predict.model_spec.name, predict.model_spec.signature_name = "three", REGRESS
    predict.inputs["inputs"].CopyFrom(tf.make_tensor_proto([example(x=2.0).SerializeToString()]))
    assert list(stub.Predict(predict, timeout=30).outputs["outputs"].float_val) == [4.0]
    predict.inputs["inputs"].CopyFrom(tf.make_tensor_proto([2.0]))
    with pytest.raises(grpc.RpcError, match=r"Expects arg\[0\] to be string but float is provided"):
        stub.Predict(predict, timeout=30)
    # What the model says of itself is what is passed on.
    definition = json.loads(server.get("/v1/models/three/metadata")[1])["metadata"]["signature_def"]["signature_def"]
    assert definition[REGRESS]["inputs"]["inputs"]["dtype"] == "DT_FLOAT"


def test_an_example_overrides_its_context(stub) -> None:
    request = regression_pb2.RegressionRequest()
    fill(request, "regress_x2_to_y3", example(x=1.0), example(x=1.0, x2=8.0), context=example(x2=4.0))
    response = stub.Regress(request, timeout=30)
    assert [item.value for item in response.result.regressions] == [5.0, 7.0]


def test_classify_with_and_without_labels(stub) -> None:
    request = fill(classification_pb2.ClassificationRequest(), "classify_x_to_y", example(x=20.0))
    response = stub.Classify(request, timeout=30)
    assert [(c.label, c.score) for row in response.result.classifications for c in row.classes] == [("", 12.0)]
    request.model_spec.signature_name = "classify_with_labels"
    response = stub.Classify(request, timeout=30)
    assert [(c.label, c.score) for row in response.result.classifications for c in row.classes] == [("half", 12.0)]


def multi(*tasks: tuple[str, str, str]) -> inference_pb2.MultiInferenceRequest:
    request = inference_pb2.MultiInferenceRequest()
    for name, signature, method in tasks:
        task = request.tasks.add(method_name=method)
        task.model_spec.name = name
        task.model_spec.signature_name = signature
    fill_input(request, example(x=2.0))
    return request


def test_multi_inference_mixes_methods(stub) -> None:
    request = multi(("tf1", "regress_x_to_y", REGRESS), ("tf1", "classify_x_to_y", CLASSIFY))
    first, second = stub.MultiInference(request, timeout=30).results
    assert first.regression_result.regressions[0].value == 3.0
    assert second.classification_result.classifications[0].classes[0].score == 3.0
    assert (first.model_spec.signature_name, second.model_spec.version.value) == ("regress_x_to_y", 123)


MULTI_BAD = [
    (
        "two models",
        [("tf1", "regress_x_to_y", REGRESS), ("x", "classify_x_to_y", CLASSIFY)],
        "must access the same model",
    ),
    ("same twice", [("tf1", "regress_x_to_y", REGRESS)] * 2, "Duplicate evaluation of signature: regress_x_to_y"),
    ("no name", [("", "regress_x_to_y", REGRESS)], "Found ModelSpec with an empty model name."),
    ("unknown signature", [("tf1", "nope", REGRESS)], "Requested signature not found in model graph: nope"),
]


@pytest.mark.parametrize(("tasks", "fragment"), [row[1:] for row in MULTI_BAD], ids=[row[0] for row in MULTI_BAD])
def test_multi_inference_refuses(stub, tasks: list[tuple[str, str, str]], fragment: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.MultiInference(multi(*tasks), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fragment in str(caught.value.details())


def test_multi_inference_knows_two_methods(stub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.MultiInference(multi(("tf1", "regress_x_to_y", "tensorflow/serving/predict")), timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "Unsupported signature method_name" in str(caught.value.details())


CLASSIFY_BAD = [
    ("no examples", "classify_x_to_y", [], "Input is empty."),
    ("unknown signature", "nope", [example(x=1.0)], "No signature was found with the name: nope"),
    ("no classify signature", "serving_default", [example(x=1.0)], "No classification inputs found in SignatureDef"),
    ("wrong outputs", "regress_x_to_y", [example(x=1.0)], "at least one of"),
    ("missing feature", "classify_x_to_y", [example(x2=1.0)], "x"),
]


@pytest.mark.parametrize(
    ("signature", "examples", "fragment"), [row[1:] for row in CLASSIFY_BAD], ids=[str(row[0]) for row in CLASSIFY_BAD]
)
def test_classify_refuses(stub, signature: str, examples: list[Any], fragment: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Classify(fill(classification_pb2.ClassificationRequest(), signature, *examples), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fragment in str(caught.value.details())


def test_predict_on_a_regress_signature_takes_serialized_examples(stub) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "tf1", "regress_x_to_y"
    request.inputs["inputs"].CopyFrom(tf.make_tensor_proto([example(x=2.0).SerializeToString()]))
    assert tf.make_ndarray(stub.Predict(request, timeout=30).outputs["outputs"]).tolist() == [[3.0]]


def rest(server: RunningServer, verb: str, body: Any) -> tuple[int, Any]:
    status, text = server.post(f"/v1/models/tf1:{verb}", json.dumps(body).encode())
    return status, json.loads(text)


def test_rest_regress_and_classify(server: RunningServer) -> None:
    body: dict[str, Any] = {"signature_name": "regress_x_to_y", "examples": [{"x": 80.0}, {"x": [2.0]}]}
    assert rest(server, "regress", body) == (200, {"results": [42.0, 3.0]})
    body = {"signature_name": "classify_x_to_y", "examples": [{"x": 20.0}]}
    assert rest(server, "classify", body) == (200, {"results": [[["", 12.0]]]})
    body = {"signature_name": "regress_x2_to_y3", "context": {"x2": 4.0}, "examples": [{"x": 1.0}]}
    assert rest(server, "regress", body) == (200, {"results": [5.0]})


REST_BAD: list[tuple[str, Any, str]] = [
    ("no examples", {}, "key 'examples' is expected and was not found"),
    ("no list", {"examples": 1}, "Expecting 'examples' value to be an list/array"),
    ("empty", {"examples": []}, "'examples' value is an empty array"),
    ("no object", {"examples": [[1]]}, "Example must be JSON object but got JSON Array"),
    ("null", {"examples": [{"x": None}]}, "Feature: x has element with unexpected JSON type: Null"),
    ("nested", {"examples": [{"x": [[1]]}]}, "Feature: x has element with unexpected JSON type: Array"),
    ("object", {"examples": [{"x": {"a": 1}}]}, "Feature: x has element with unexpected JSON type: Object"),
    ("mixed", {"examples": [{"x": [1, 1.5]}]}, "Unexpected element type in feature: x expecting type: int64"),
    ("too large", {"examples": [{"x": 2**64 - 1}]}, "Only int64_t is supported"),
]


@pytest.mark.parametrize(("body", "fragment"), [row[1:] for row in REST_BAD], ids=[row[0] for row in REST_BAD])
def test_rest_refuses(server: RunningServer, body: Any, fragment: str) -> None:
    for verb in ("classify", "regress"):
        status, answer = rest(server, verb, body)
        assert (status, fragment in answer["error"]) == (400, True), answer


def test_an_integer_is_not_a_float_feature(server: RunningServer) -> None:
    body = {"signature_name": "regress_x_to_y", "examples": [{"x": 2}]}
    assert rest(server, "regress", body)[0] == 400


def test_a_model_with_a_state(server: RunningServer) -> None:
    def call(signature: str, inputs: Any) -> float:
        body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
        status, text = server.post("/v1/models/counter:predict", body)
        assert status == 200, text
        return float(json.loads(text)["outputs"])

    assert call("get_counter", {}) == 0.0
    assert call("incr_counter", {}) == 1.0
    assert call("incr_counter_by", {"delta": 3.5}) == 4.5
    assert call("get_counter", {}) == 4.5
    assert call("reset_counter", {}) == 0.0
