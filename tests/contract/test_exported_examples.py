"""An exported model over tf.Example: Classify, Regress, MultiInference and Predict, in each runtime, over the wire."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

from tests.support.example_models import make_examples, publish_examples
from tests.support.server import RunningServer, serve, without

REGRESS, CLASSIFY = "tensorflow/serving/regress", "tensorflow/serving/classify"


@pytest.fixture(scope="module")
def model_dir(session_dir: Path) -> Path:
    folder = session_dir / "exported_examples"
    publish_examples(folder)
    return folder


@pytest.fixture(scope="module")
def messages() -> list[bytes]:
    values: list[bytes] = make_examples(9).tolist()
    return values


@pytest.fixture(scope="module")
def expected(model_dir: Path, messages: list[bytes]) -> dict[str, dict[str, Any]]:
    """From TensorFlow's own reading of the SavedModel, in this process."""
    loaded = tf.saved_model.load(str(model_dir / "1"))
    keys = {"serving_default": "examples", "classify": "inputs", "regress": "inputs"}
    answers = {name: loaded.signatures[name](**{key: tf.constant(messages)}) for name, key in keys.items()}
    return {name: {key: value.numpy() for key, value in answer.items()} for name, answer in answers.items()}


@pytest.fixture(scope="module", params=["onnxruntime", "litert", "tensorflow"])
def server(request: pytest.FixtureRequest, model_dir: Path, session_dir: Path) -> Iterator[RunningServer]:
    flags = [f"--runtime={request.param}", "--enable_signature_method_name_check=true"]
    env = {}
    if request.param != "tensorflow":
        env = without(session_dir / "without_tensorflow", "tensorflow", "keras")
    with serve(model_dir, model="examples", log_dir=session_dir, flags=flags, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def stub(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def fill(request: Any, signature: str, messages: list[bytes]) -> Any:
    request.model_spec.name, request.model_spec.signature_name = "examples", signature
    request.input.example_list.examples.extend(tf.train.Example.FromString(data) for data in messages)
    return request


def check_classes(rows: Any, expected: dict[str, Any]) -> None:
    labels = [[item.label.encode() for item in row.classes] for row in rows]
    np.testing.assert_array_equal(np.array(labels, dtype=object), expected["classes"])
    np.testing.assert_allclose([[item.score for item in row.classes] for row in rows], expected["scores"], atol=1e-5)


def test_classify(stub, messages, expected) -> None:
    answer = stub.Classify(fill(classification_pb2.ClassificationRequest(), "classify", messages), timeout=30)
    check_classes(answer.result.classifications, expected["classify"])


def test_regress(stub, messages, expected) -> None:
    answer = stub.Regress(fill(regression_pb2.RegressionRequest(), "regress", messages), timeout=30)
    received = [item.value for item in answer.result.regressions]
    np.testing.assert_allclose(received, expected["regress"]["outputs"].ravel(), atol=1e-5)


def test_multi_inference(stub, messages, expected) -> None:
    request = inference_pb2.MultiInferenceRequest()
    for name, method in (("classify", CLASSIFY), ("regress", REGRESS)):
        task = request.tasks.add(method_name=method)
        task.model_spec.name, task.model_spec.signature_name = "examples", name
    request.input.example_list.examples.extend(tf.train.Example.FromString(data) for data in messages)
    first, second = stub.MultiInference(request, timeout=30).results
    check_classes(first.classification_result.classifications, expected["classify"])
    received = [item.value for item in second.regression_result.regressions]
    np.testing.assert_allclose(received, expected["regress"]["outputs"].ravel(), atol=1e-5)


def test_predict_takes_serialized_examples(stub, messages, expected) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "examples"
    request.inputs["examples"].CopyFrom(tf.make_tensor_proto(messages))
    answer = tf.make_ndarray(stub.Predict(request, timeout=30).outputs["logits"])
    np.testing.assert_allclose(answer, expected["serving_default"]["logits"], atol=1e-5)


def test_rest(server: RunningServer, messages, expected) -> None:
    rows = []
    for data in messages:
        features = tf.train.Example.FromString(data).features.feature
        row: dict[str, Any] = {"x": list(features["x"].float_list.value)}
        if "kind" in features:
            row |= {"bias/value": features["bias/value"].float_list.value[0]}
            row |= {"kind": features["kind"].int64_list.value[0]}
        rows.append(row)
    for verb in ("classify", "regress"):
        body = json.dumps({"signature_name": verb, "examples": rows}).encode()
        status, text = server.post(f"/v1/models/examples:{verb}", body)
        assert status == 200, text
        results = json.loads(text)["results"]
        if verb == "regress":
            np.testing.assert_allclose(results, expected["regress"]["outputs"].ravel(), atol=1e-5)
        else:
            labels = [[label.encode() for label, _ in row] for row in results]
            np.testing.assert_array_equal(np.array(labels, dtype=object), expected["classify"]["classes"])


def bad(**features: Any) -> bytes:
    message = tf.train.Example()
    for name, (kind, values) in features.items():
        getattr(message.features.feature[name], kind).value.extend(values)
    return message.SerializeToString()


BAD = [
    ("missing", bad(kind=("int64_list", [1])), "x"),
    ("kind", bad(x=("int64_list", [1, 2, 3, 4])), "x"),
    ("size", bad(x=("float_list", [1.0])), "x"),
    ("kind of one with a default", bad(x=("float_list", [0.0] * 4), kind=("float_list", [1.0])), "kind"),
]


@pytest.mark.parametrize(("message", "feature"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_example_is_the_senders_fault(stub, messages, message: bytes, feature: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Classify(fill(classification_pb2.ClassificationRequest(), "classify", [messages[0], message]), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f": {feature}" in str(caught.value.details()), caught.value.details()


def test_the_methods_are_checked(stub, messages) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Classify(fill(classification_pb2.ClassificationRequest(), "regress", messages), timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"Expected signature method_name to be {CLASSIFY}. Was: {REGRESS}" in str(caught.value.details())
