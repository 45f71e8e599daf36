"""Requests as they go on the wire, read back by the official messages and by plain JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from modelyard.clients.protocols import (
    Target,
    make_target,
    metadata_message,
    model_path,
    predict_json,
    predict_message,
    status_message,
)
from modelyard.errors import InvalidInputError, InvalidModelSpecError, UnsupportedError


def test_predict_message_is_read_by_the_official_one() -> None:
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "s": np.array([b"a", b"\0"], dtype=object)}
    data = predict_message(Target(model="m", version=3), "sig", arrays, ("y",))
    request = predict_pb2.PredictRequest.FromString(data)
    assert (request.model_spec.name, request.model_spec.version.value) == ("m", 3)
    assert (request.model_spec.signature_name, list(request.output_filter)) == ("sig", ["y"])
    np.testing.assert_array_equal(tf.make_ndarray(request.inputs["x"]), arrays["x"])
    assert list(request.inputs["s"].string_val) == [b"a", b"\0"]


def test_newest_and_label_are_told_apart() -> None:
    from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2

    newest = get_model_status_pb2.GetModelStatusRequest.FromString(status_message(Target(model="m")))
    assert newest.model_spec.WhichOneof("version_choice") is None
    labelled = get_model_metadata_pb2.GetModelMetadataRequest.FromString(
        metadata_message(Target(model="m", label="stable"))
    )
    assert labelled.model_spec.version_label == "stable"
    assert list(labelled.metadata_field) == ["signature_def"]


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (Target(model="m"), "/v1/models/m"),
        (Target(model="m", version=0), "/v1/models/m/versions/0"),
        (Target(model="m", label="a b"), "/v1/models/m/labels/a%20b"),
        (Target(model="a/b:c?é"), "/v1/models/a%2Fb%3Ac%3F%C3%A9"),
    ],
)
def test_paths(target: Target, path: str) -> None:
    assert model_path(target) == path


@pytest.mark.parametrize(
    ("array", "value"),
    [
        (np.array([[1.5, 2]], dtype=np.float32), [[1.5, 2.0]]),
        (np.array(3, dtype=np.int64), 3),
        (np.array([(1 << 64) - 1], dtype=np.uint64), [(1 << 64) - 1]),
        (np.array([True]), [True]),
        (np.array([1.5], dtype=np.float16), [1.5]),
        (np.array([1.5], dtype=ml_dtypes.bfloat16), [1.5]),
        (np.array([[b"\xff"], [b""]], dtype=object), [[{"b64": "/w=="}], [{"b64": ""}]]),
        (np.array(b"a", dtype=object), {"b64": "YQ=="}),
        (np.zeros(0, np.float32), []),
    ],
)
def test_json_values(array: np.ndarray, value: Any) -> None:
    assert json.loads(predict_json("", {"x": array})) == {"inputs": {"x": value}}


def test_json_has_the_signature_and_bare_words_for_what_is_not_finite() -> None:
    array = np.array([np.nan, np.inf, -np.inf], dtype=np.float32)
    text = predict_json("s", {"x": array}).decode()
    assert text == '{"signature_name":"s","inputs":{"x":[NaN,Infinity,-Infinity]}}'


def test_json_keeps_every_bit_of_floats() -> None:
    array = np.nextafter(np.float64(0.1), 1, dtype=np.float64) * np.ones(1)
    (value,) = json.loads(predict_json("", {"x": array}))["inputs"]["x"]
    assert math.frexp(value) == math.frexp(float(array[0]))


def test_json_refuses_what_it_cannot_carry() -> None:
    with pytest.raises(UnsupportedError, match="complex64"):
        predict_json("", {"x": np.zeros(1, np.complex64)})
    with pytest.raises(InvalidInputError, match=r"shape \[0, 3\]"):
        predict_json("", {"x": np.zeros((0, 3), np.float32)})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("",), "name of a model"),
        ((None,), "name of a model"),
        (("m", 1, "l"), "received both"),
        (("m", -1), "received -1"),
        (("m", 1 << 63), "from 0 to"),
        (("m", "1"), "integer version"),
        (("m", True), "received True"),
        (("m", None, ""), "a version label; received ''"),
        (("m", None, 5), "a version label; received 5"),
        (("m", None, ".."), r"a version label; received '\.\.'"),
        (("..",), r"name of a model; received '\.\.'"),
        ((".",), "name of a model"),
        (("\ud800",), "name of a model, in Unicode"),
    ],
)
def test_targets_that_are_none(arguments: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(InvalidModelSpecError, match=reason):
        make_target(*arguments)


def test_numpy_integers_are_versions() -> None:
    version: Any = np.int32(3)
    assert make_target("m", version) == Target(model="m", version=3)
