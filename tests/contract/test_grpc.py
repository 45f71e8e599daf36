"""Every gRPC method that is served, through the official tensorflow-serving-api stubs."""

from __future__ import annotations

from collections.abc import Callable

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from tests.support.server import RunningServer


def request(name: str = "half", signature: str = "", **inputs: object) -> predict_pb2.PredictRequest:
    message = predict_pb2.PredictRequest()
    message.model_spec.name = name
    message.model_spec.signature_name = signature
    for alias, value in inputs.items():
        message.inputs[alias].CopyFrom(tf.make_tensor_proto(value))
    return message


@pytest.fixture
def stub(half_channel: grpc.Channel) -> prediction_service_pb2_grpc.PredictionServiceStub:
    return prediction_service_pb2_grpc.PredictionServiceStub(half_channel)


@pytest.fixture
def model_stub(half_channel: grpc.Channel) -> model_service_pb2_grpc.ModelServiceStub:
    return model_service_pb2_grpc.ModelServiceStub(half_channel)


def test_predict_answers_with_typed_fields_and_the_resolved_spec(stub) -> None:
    response = stub.Predict(request(x=np.array([2.0, 3.0, 4.0], np.float32)), timeout=30)
    assert list(response.outputs["y"].float_val) == [3.0, 3.5, 4.0]
    assert tf.make_ndarray(response.outputs["y"]).tolist() == [3.0, 3.5, 4.0]
    assert response.model_spec.name == "half"
    assert response.model_spec.version.value == 7
    assert response.model_spec.signature_name == "serving_default"


def test_predict_takes_a_version_and_an_output_filter(stub) -> None:
    message = request(signature="two_inputs", x=np.array([2.0], np.float32), count=np.array([41], np.int64))
    message.model_spec.version.value = 7
    message.output_filter.append("next")
    response = stub.Predict(message, timeout=30)
    assert {name: tf.make_ndarray(tensor).tolist() for name, tensor in response.outputs.items()} == {"next": [42]}


def test_predict_exchanges_strings(stub) -> None:
    response = stub.Predict(request(signature="strings", text=[b"ab", b"\xff\x00"]), timeout=30)
    assert list(response.outputs["upper"].string_val) == [b"AB", b"\xff\x00"]
    assert tf.make_ndarray(response.outputs["length"]).tolist() == [2, 2]


def test_predict_repeats_the_last_value_of_a_short_field(stub) -> None:
    message = request()
    message.inputs["x"].dtype = tf.float32.as_datatype_enum
    message.inputs["x"].tensor_shape.dim.add().size = 3
    message.inputs["x"].float_val.extend([2.0, 4.0])
    assert tf.make_ndarray(stub.Predict(message, timeout=30).outputs["y"]).tolist() == [3.0, 4.0, 4.0]


def test_metadata_holds_the_signature_map(stub) -> None:
    message = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    message.model_spec.name = "half"
    response = stub.GetModelMetadata(message, timeout=30)
    definitions = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(definitions)
    assert {"serving_default", "two_inputs", "strings", "total"} <= set(definitions.signature_def)
    info = definitions.signature_def["serving_default"].inputs["x"]
    assert (info.dtype, [dim.size for dim in info.tensor_shape.dim]) == (tf.float32.as_datatype_enum, [-1])
    assert (response.model_spec.name, response.model_spec.version.value) == ("half", 7)


def test_status_reports_the_version(model_stub) -> None:
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = "half"
    (row,) = model_stub.GetModelStatus(message, timeout=30).model_version_status
    assert (row.version, row.state, row.status.error_code) == (7, get_model_status_pb2.ModelVersionStatus.AVAILABLE, 0)


def _missing_spec(message: predict_pb2.PredictRequest) -> None:
    message.ClearField("model_spec")


def _truncated_content(message: predict_pb2.PredictRequest) -> None:
    message.inputs["x"].tensor_content = b"\0\0\0"
    message.inputs["x"].ClearField("float_val")


BAD: list[tuple[str, Callable[[predict_pb2.PredictRequest], object], grpc.StatusCode, str]] = [
    ("no spec", _missing_spec, grpc.StatusCode.INVALID_ARGUMENT, "Missing ModelSpec"),
    ("no name", lambda m: m.model_spec.ClearField("name"), grpc.StatusCode.INVALID_ARGUMENT, "has no name specified"),
    (
        "unknown model",
        lambda m: setattr(m.model_spec, "name", "nobody"),
        grpc.StatusCode.NOT_FOUND,
        "Servable not found for request: Latest(nobody)",
    ),
    (
        "unknown version",
        lambda m: setattr(m.model_spec.version, "value", 99),
        grpc.StatusCode.NOT_FOUND,
        "Servable not found for request: Specific(half, 99)",
    ),
    (
        "unknown label",
        lambda m: setattr(m.model_spec, "version_label", "stable"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "Unrecognized servable version label: stable",
    ),
    (
        "unknown signature",
        lambda m: setattr(m.model_spec, "signature_name", "nope"),
        grpc.StatusCode.FAILED_PRECONDITION,
        'Serving signature key "nope" not found.',
    ),
    (
        "missing input",
        lambda m: m.inputs.pop("x"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. Missing but required: {x}.",
    ),
    (
        "extra input",
        lambda m: m.inputs["z"].CopyFrom(m.inputs["x"]),
        grpc.StatusCode.INVALID_ARGUMENT,
        "Sent extra: {z}. Missing but required: {}.",
    ),
    (
        "wrong alias",
        lambda m: (m.inputs["z"].CopyFrom(m.inputs["x"]), m.inputs.pop("x")),
        grpc.StatusCode.INVALID_ARGUMENT,
        "Signature input alias: x(feed name: ",
    ),
    (
        "wrong dtype",
        lambda m: m.inputs["x"].CopyFrom(tf.make_tensor_proto(["a"])),
        grpc.StatusCode.INVALID_ARGUMENT,
        "Expects arg[0] to be float but string is provided",
    ),
    (
        "unknown output",
        lambda m: m.output_filter.append("zz"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "output tensor alias not found in signature: zz Outputs expected to be in the set {y}.",
    ),
    (
        "output twice",
        lambda m: m.output_filter.extend(["y", "y"]),
        grpc.StatusCode.INVALID_ARGUMENT,
        "duplicate output tensor alias: y",
    ),
    (
        "no dtype",
        lambda m: m.inputs["x"].ClearField("dtype"),
        grpc.StatusCode.INVALID_ARGUMENT,
        "tensor parsing error: x",
    ),
    ("truncated", _truncated_content, grpc.StatusCode.INVALID_ARGUMENT, "tensor parsing error: x"),
]


@pytest.mark.parametrize(("change", "code", "fragment"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_requests_cost_only_the_sender(stub, change, code: grpc.StatusCode, fragment: str) -> None:
    message = request(x=np.array([2.0], np.float32))
    change(message)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(message, timeout=30)
    assert (caught.value.code(), fragment in str(caught.value.details())) == (code, True), str(caught.value.details())
    good = stub.Predict(request(x=np.array([2.0], np.float32)), timeout=30)
    assert tf.make_ndarray(good.outputs["y"]).tolist() == [3.0]


def test_long_messages_are_cut(stub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Predict(request(name="n" * 5000, x=[1.0]), timeout=30)
    assert len(str(caught.value.details())) == 1024
    assert str(caught.value.details()).endswith("...TRUNCATED")


def test_a_body_that_is_no_message_is_refused(half_server: RunningServer, half_channel: grpc.Channel) -> None:
    call = half_channel.unary_unary("/tensorflow.serving.PredictionService/Predict", bytes, bytes)
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\xff\xff\xff", timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("fields", [[], ["weights"]])
def test_metadata_fields_are_checked(stub, fields: list[str]) -> None:
    message = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=fields)
    message.model_spec.name = "half"
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModelMetadata(message, timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "metadata_field" in str(caught.value.details()) or "Metadata field weights is not supported" in str(
        caught.value.details()
    )


@pytest.mark.parametrize(
    ("name", "version", "fragment"),
    [
        ("nobody", None, "Could not find any versions of model nobody"),
        ("half", 99, "Could not find version 99 of model half"),
    ],
)
def test_status_of_what_is_not_there(model_stub, name: str, version: int | None, fragment: str) -> None:
    message = get_model_status_pb2.GetModelStatusRequest()
    message.model_spec.name = name
    if version is not None:
        message.model_spec.version.value = version
    with pytest.raises(grpc.RpcError) as caught:
        model_stub.GetModelStatus(message, timeout=30)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert fragment in str(caught.value.details())


def test_session_service_is_not_there(half_channel: grpc.Channel) -> None:
    call = half_channel.unary_unary("/tensorflow.serving.SessionService/SessionRun", bytes, bytes)
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=30)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
