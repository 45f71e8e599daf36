"""Answers as TensorFlow Serving writes them, and answers that are none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import Model, SignatureInfo, TensorInfo, VersionState
from modelyard.clients.protocols import (
    Target,
    error_from_body,
    metadata_from_json,
    metadata_from_message,
    prediction_from_json,
    prediction_from_message,
    status_from_json,
    status_from_message,
)
from modelyard.errors import ProtocolError

TARGET = Target(model="m", version=2)
#: As printed by TensorFlow Serving (protobuf JSON with one space of indent).
STATUS = """{
 "model_version_status": [
  {"version": "1", "state": "END", "status": {"error_code": "DATA_LOSS", "error_message": "broken"}},
  {"version": "2", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
 ]
}"""
METADATA = """{
"model_spec":{ "name": "m", "signature_name": "", "version": "123" },
"metadata": {"signature_def": { "signature_def": {
  "serving_default": {
   "inputs": {"x": {"dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1", "name": ""}], "unknown_rank": false},
     "name": "x:0"}},
   "outputs": {"y": {"dtype": "DT_STRING", "tensor_shape": {"dim": [], "unknown_rank": true}, "name": "y:0"}},
   "method_name": "tensorflow/serving/predict", "defaults": {}
  },
  "__saved_model_init_op": {
   "inputs": {},
   "outputs": {"__saved_model_init_op": {"dtype": "DT_INVALID", "tensor_shape": {"dim": [], "unknown_rank": true},
     "name": "NoOp"}},
   "method_name": ""
  }
}}}
}"""


def signature(**dtypes: tuple[str, tuple[int, ...] | None]) -> SignatureInfo:
    infos = {name: TensorInfo(name=name, dtype=dtype, shape=shape) for name, (dtype, shape) in dtypes.items()}
    return SignatureInfo(name="s", method="", inputs={}, outputs=infos)


def decode(value: Any, dtype: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
    text = json.dumps({"outputs": value}).encode()
    return prediction_from_json(text, TARGET, signature(y=(dtype, shape)), ())["y"]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        ([1.5, 2], "float32", [1.5, 2.0]),
        ([1, 2], "float64", [1.0, 2.0]),
        ([[1], [2]], "int64", [[1], [2]]),
        ([(1 << 64) - 1, 0], "uint64", [(1 << 64) - 1, 0]),
        ([-(1 << 63)], "int64", [-(1 << 63)]),
        ([255], "uint8", [255]),
        ([True, False], "bool", [True, False]),
        (2.5, "float32", 2.5),
        (["é", "a\0"], "string", ["é".encode(), b"a\0"]),
        ([[{"b64": "/w=="}]], "string", [[b"\xff"]]),
        ("a", "string", b"a"),
    ],
)
def test_values_get_the_dtype_of_the_signature(value: Any, dtype: str, expected: Any) -> None:
    array = decode(value, dtype)
    assert array.dtype == (object if dtype == "string" else dtype)
    assert array.tolist() == expected


def test_bare_words() -> None:
    prediction = prediction_from_json(
        b'{"outputs": [NaN, Infinity, -Infinity]}', TARGET, signature(y=("float32", None)), ()
    )
    np.testing.assert_array_equal(prediction["y"], np.array([np.nan, np.inf, -np.inf], dtype=np.float32))


def test_an_answer_without_rows_has_the_shape_of_the_signature() -> None:
    assert decode([], "float32", (-1, 10)).shape == (0, 10)
    assert decode([], "string", (-1,)).shape == (0,)


def test_several_outputs_and_a_filter() -> None:
    both = signature(a=("int64", None), b=("float32", None))
    text = b'{"outputs": {"a": [1], "b": [2.0]}}'
    everything = prediction_from_json(text, TARGET, both, ())
    assert {name: (array.dtype.name, array.tolist()) for name, array in everything.items()} == {
        "a": ("int64", [1]),
        "b": ("float32", [2.0]),
    }
    assert list(prediction_from_json(text, TARGET, both, ("b",))) == ["b"]
    assert (everything.model, everything.version, everything.signature) == ("m", 2, "s")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1.5], "int64"),
        (["a"], "float32"),
        ([1], "bool"),
        ([True], "float32"),
        ([256], "uint8"),
        ([-1], "uint32"),
        ([-1], "uint64"),
        ([1 << 40], "int32"),
        ([1 << 63], "int64"),
        ([-1, 1 << 63], "uint64"),
        ([[1], [1, 2]], "int64"),
        ([[1], [1, 2]], "float32"),
        ([None], "float32"),
        ([1], "string"),
        ([["a"], ["b", "c"]], "string"),
        ([["a"], "b"], "string"),
        ([["a", "b"], ["c"], ["d", "e", "f"]], "string"),
        ([[["a"], ["b"]], [["c", "d"]]], "string"),
        ([{"b64": "?"}], "string"),
        ([1 << 65], "int64"),
    ],
)
def test_values_that_do_not_fit_are_protocol_errors(value: Any, dtype: str) -> None:
    with pytest.raises(ProtocolError, match="'y'"):
        decode(value, dtype)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"predictions": [1]}', b'{"outputs": {"a": 1}}', b'{"outputs": [1]}', b"[" * 100_000],
)
def test_bodies_that_are_no_answer(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="received"):
        prediction_from_json(body, TARGET, signature(a=("int64", None), b=("int64", None)), ())


def test_status_over_both_transports() -> None:
    from tensorflow_serving.apis import get_model_status_pb2

    official = get_model_status_pb2.GetModelStatusResponse()
    for version, state, code, text in ((1, 50, 15, "broken"), (2, 30, 0, "")):
        row = official.model_version_status.add(version=version, state=state)
        row.status.error_code, row.status.error_message = code, text
    status = status_from_message(official.SerializeToString(), TARGET)
    assert status == status_from_json(STATUS.encode(), TARGET)
    assert status.available == (2,)
    assert [(row.version, row.state, row.error_code, row.error_message) for row in status.versions] == [
        (2, VersionState.AVAILABLE, "OK", ""),
        (1, VersionState.END, "DATA_LOSS", "broken"),
    ]


def test_metadata_from_json() -> None:
    metadata = metadata_from_json(METADATA.encode(), TARGET)
    assert (metadata.model, metadata.version) == ("m", 123)
    default = metadata.signatures["serving_default"]
    assert default.inputs == {"x": TensorInfo(name="x", dtype="float32", shape=(-1,))}
    assert default.outputs == {"y": TensorInfo(name="y", dtype="string", shape=None)}
    assert default.method == "tensorflow/serving/predict"
    pseudo = metadata.signatures["__saved_model_init_op"]
    assert pseudo.outputs["__saved_model_init_op"].dtype == "invalid"
    # It cannot be called: a model does not offer it.
    model = Model(prediction_from_json, "m", metadata, version=None, label=None)
    assert set(model.signatures) == set(metadata.callable_signatures) == {"serving_default"}
    assert "init_op" not in repr(model)


def test_metadata_from_the_official_message() -> None:
    from tensorflow_serving.apis import get_model_metadata_pb2

    definitions = get_model_metadata_pb2.SignatureDefMap()
    definitions.signature_def["s"].inputs["x"].dtype = 20
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name = "m"
    response.metadata["signature_def"].Pack(definitions)
    metadata = metadata_from_message(response.SerializeToString(), TARGET)
    assert metadata.signatures["s"].inputs["x"] == TensorInfo(name="x", dtype="resource", shape=())
    assert metadata.version == 2


@pytest.mark.parametrize(
    "decoder", [prediction_from_message, metadata_from_message, status_from_message], ids=lambda f: f.__name__
)
def test_bytes_that_are_no_message(decoder: Any) -> None:
    with pytest.raises(ProtocolError, match="that are none"):
        decoder(b"\xff\xff", TARGET, *(["s"] if decoder is prediction_from_message else []))


def test_metadata_without_signatures_is_no_answer() -> None:
    with pytest.raises(ProtocolError, match="lacks 'signature_def'"):
        metadata_from_message(b"", TARGET)


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"model_spec": 1, "metadata": {"signature_def": {}}}', b"3"])
def test_json_that_is_no_metadata(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="[Ee]xpected"):
        metadata_from_json(body, TARGET)


@pytest.mark.parametrize(
    "body", [b'{"model_version_status": 3}', b"[]", b'{"model_version_status": [{"version": "x"}]}']
)
def test_json_that_is_no_status(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="GetModelStatusResponse"):
        status_from_json(body, TARGET)


def test_a_tensor_that_cannot_be_decoded_is_a_protocol_error() -> None:
    from tensorflow_serving.apis import predict_pb2

    response = predict_pb2.PredictResponse()
    response.outputs["y"].dtype = 20
    with pytest.raises(ProtocolError, match="DT_RESOURCE"):
        prediction_from_message(response.SerializeToString(), TARGET, "")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, b'{"error": "Servable not found"}', errors.ModelNotFoundError),
        (400, b'{"error": "Unrecognized servable version label: x"}', errors.InvalidModelSpecError),
        (503, b"<html>upstream</html>", errors.UnavailableError),
        (401, b"", errors.UnauthenticatedError),
        (404, b"<html>Not Found</html>", errors.ProtocolError),
        (500, b"Internal Server Error", errors.ProtocolError),
        (302, b"", errors.ProtocolError),
        (200, b'{"error": 3}', errors.ProtocolError),
    ],
)
def test_error_bodies(status: int, body: bytes, kind: type[errors.ModelyardError]) -> None:
    assert type(error_from_body(status, body, "http://host/v1/models/m")) is kind
