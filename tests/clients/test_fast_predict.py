"""The quick way of messages agrees with the official ones, and steps aside where it cannot."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from modelyard.clients.protocols import Target, predict_message, prediction_from_message
from modelyard.clients.protocols._fast_predict import response_of
from modelyard.wire import array_to_tensor, serving_pb2, tensor_to_array, tensorflow_pb2, varint

ARRAYS: dict[str, Any] = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "float64": np.array([0.1, np.nan]),
    "bool": np.array([[True], [False]]),
    "int64": np.array([-1, 1 << 62]),
    "int8": np.array([-1, 3], np.int8),
    "string": np.array([b"a", b""], object),
    "float16": np.array([1.5], np.float16),
    "complex64": np.array([1j], np.complex64),
    "scalar": np.float32(3).reshape(()),
    "empty": np.zeros((0, 4), np.float32),
    "empty strings": np.zeros((0,), object),
    "big endian": np.arange(3, dtype=">i4"),
    "strided": np.arange(10, dtype=np.float32)[::3],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_requests_are_what_the_general_codec_reads(name: str) -> None:
    data = predict_message(Target(model="m", label="l"), "s", {"é": ARRAYS[name]}, ("a", "b"))
    request = serving_pb2.PredictRequest.FromString(data)
    assert (request.model_spec.name, request.model_spec.version_label) == ("m", "l")
    assert list(request.output_filter) == ["a", "b"]
    np.testing.assert_array_equal(tensor_to_array(request.inputs["é"]), ARRAYS[name])


@pytest.mark.parametrize("as_content", [True, False])
@pytest.mark.parametrize("name", ARRAYS)
def test_answers_are_what_was_sent(name: str, as_content: bool) -> None:
    response = serving_pb2.PredictResponse()
    response.outputs["y"].CopyFrom(array_to_tensor(ARRAYS[name], as_content=as_content))
    response.model_spec.name = "m"
    response.model_spec.version.value = 4
    prediction = prediction_from_message(response.SerializeToString(), Target(model="m"), "")
    np.testing.assert_array_equal(prediction["y"], ARRAYS[name])
    assert prediction["y"].dtype == ARRAYS[name].dtype.newbyteorder("=")
    assert prediction.version == 4


def test_floats_are_views_of_the_answer() -> None:
    response = serving_pb2.PredictResponse()
    response.outputs["y"].CopyFrom(array_to_tensor(ARRAYS["float32"]))
    fast = response_of(response.SerializeToString())
    assert fast is not None
    assert not fast[0]["y"].flags.owndata


@pytest.mark.parametrize(
    "tensor",
    [
        tensorflow_pb2.TensorProto(
            dtype=tensorflow_pb2.DT_FLOAT, float_val=[7],
            tensor_shape=tensorflow_pb2.TensorShapeProto(dim=[tensorflow_pb2.TensorShapeProto.Dim(size=3)]),
        ),
        tensorflow_pb2.TensorProto(
            dtype=tensorflow_pb2.DT_INT32, int_val=[7, 7, 7],
            tensor_shape=tensorflow_pb2.TensorShapeProto(dim=[tensorflow_pb2.TensorShapeProto.Dim(size=3)]),
        ),
    ],
    ids=["the last value repeated", "a dtype without packed bytes"],
)  # fmt: skip
def test_the_general_codec_takes_over(tensor: tensorflow_pb2.TensorProto) -> None:
    data = serving_pb2.PredictResponse(outputs={"y": tensor}).SerializeToString()
    assert response_of(data) is None
    assert prediction_from_message(data, Target(model="m"), "")["y"].tolist() == [7, 7, 7]


def test_floats_that_are_not_packed() -> None:
    # Field 5 three times with wire type 5, as proto2 would write it, in a tensor of three floats.
    floats = b"".join(b"\x2d" + np.float32(value).tobytes() for value in (1, 2, 3))
    tensor = b"\x08\x01" + b"\x12\x04\x12\x02\x08\x03" + floats
    entry = b"\x0a\x01y\x12" + bytes([len(tensor)]) + tensor
    data = b"\x0a" + bytes([len(entry)]) + entry
    assert response_of(data) is None
    assert prediction_from_message(data, Target(model="m"), "")["y"].tolist() == [1, 2, 3]


def test_an_answer_that_is_none() -> None:
    assert response_of(b"\xff\xff") is None


SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (2, 3), (1, 1, 4), (300,)]


def check(data: bytes) -> None:
    """That both codecs read the same."""
    official = serving_pb2.PredictResponse.FromString(data)
    fast = response_of(data)
    assert fast is not None
    outputs, echo = fast
    assert outputs.keys() == official.outputs.keys()
    for name, tensor in official.outputs.items():
        expected = tensor_to_array(tensor)
        np.testing.assert_array_equal(outputs[name], expected)
        assert (outputs[name].dtype, outputs[name].shape) == (expected.dtype, expected.shape)
        assert outputs[name].flags.aligned
        assert outputs[name].dtype.kind != "f" or not outputs[name].flags.writeable
    spec = official.model_spec
    assert echo == (spec.name, spec.version.value if spec.HasField("version") else None, spec.signature_name)


def test_generated_answers() -> None:
    rng, choose = np.random.default_rng(0), random.Random(0)
    for _ in range(500):
        response = serving_pb2.PredictResponse()
        for name in choose.sample(["y", "é", "", "scores", "a" * 200], choose.randint(1, 3)):
            array = rng.standard_normal(choose.choice(SHAPES)).astype(choose.choice([np.float32, np.float64]))
            response.outputs[name].CopyFrom(array_to_tensor(array, as_content=choose.random() < 0.5))
        response.model_spec.name, response.model_spec.signature_name = "m", "s"
        version = choose.choice([None, 0, 1, 1 << 40])
        if version is not None:
            response.model_spec.version.value = version
        check(response.SerializeToString())


def field(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + varint(len(data)) + data


def entry(*fields: bytes) -> bytes:
    return field(0x0A, b"".join(fields))


HEAD = b"\x08\x01" + b"\x12\x04\x12\x02\x08\x02"
VALUES = field(0x2A, np.array([1, 2], "<f4").tobytes())
NAME = field(0x0A, b"y")


@pytest.mark.parametrize(
    "data",
    [
        entry(NAME, field(0x12, HEAD + VALUES)),
        entry(field(0x12, HEAD + VALUES), NAME),
        entry(field(0x0A, b"x"), NAME, field(0x12, VALUES + HEAD)),
        entry(NAME, field(0x12, HEAD), field(0x12, VALUES)),
        entry(NAME, field(0x12, HEAD + VALUES + b"\x18\x00")),
        entry(NAME, field(0x12, HEAD + VALUES)) + b"\x78\x01",
        entry(NAME, field(0x12, HEAD + VALUES)) * 2,
        entry(NAME, field(0x12, HEAD + VALUES + field(0x32, bytes(8)))),
        entry(NAME, field(0x12, HEAD + VALUES)) + b"\x7d" + bytes(4),
        entry(NAME, field(0x12, HEAD + VALUES)) + b"\xfa\x01\x01a",
        entry(NAME, field(0x12, HEAD + VALUES)) + b"\x7b\x7c",
    ],
    ids=[
        "usual", "the name last", "two names", "a tensor in two parts", "an unknown number in the tensor",
        "an unknown number", "an entry twice", "values of two kinds", "an unknown fixed field",
        "an unknown field with a large number", "an unknown group",
    ],
)  # fmt: skip
def test_odd_answers(data: bytes) -> None:
    check(data)
