"""Predict's messages by hand say what protobuf says, for every form and for odd ones too."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from modelyard.artifact import Signature
from modelyard.errors import InvalidInputError, InvalidModelSpecError, ModelyardError
from modelyard.serving import _messages, _predict_codec
from modelyard.serving._predict_codec import predict_writer, read_predict
from modelyard.serving._requests import Caller, ModelSpec, Prediction
from modelyard.wire import array_to_tensor, serving_pb2, tensor_to_array

SIGNATURE = Signature(inputs=(), outputs=(), compute="x")
KINDS = [np.float32, np.float64, np.int32, np.int64, np.uint8, np.float16, np.uint16, np.complex64, np.bool_]
arrays = st.sampled_from(KINDS).flatmap(
    lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


def outcome(read, data: bytes):
    """What a request means, or the error that it is."""
    try:
        request = read(data)
        inputs = request.inputs(SIGNATURE)
    except (ModelyardError, DecodeError) as exc:
        return type(exc), str(exc)
    values = {
        name: (array.dtype.str, array.shape, array.tolist() if array.dtype == object else array.tobytes())
        for name, array in inputs.items()
    }
    return request.spec, request.output_filter, values


def by_protobuf(data: bytes):
    return _messages.predict_request(serving_pb2.PredictRequest.FromString(data))


@settings(max_examples=150, deadline=None)
@given(
    tensors=st.dictionaries(st.text(max_size=5), arrays, max_size=3),
    as_content=st.booleans(),
    version=st.one_of(st.none(), st.integers(-5, 1 << 40)),
    label=st.one_of(st.none(), st.text(max_size=3)),
    outputs=st.lists(st.text(max_size=4), max_size=2),
    cut=st.one_of(st.none(), st.integers(0, 60)),
    extra=st.binary(max_size=3),
)
def test_requests_mean_what_protobuf_says(tensors, as_content, version, label, outputs, cut, extra) -> None:
    message = serving_pb2.PredictRequest(output_filter=outputs)
    message.model_spec.name = "m"
    message.model_spec.signature_name = "s"
    if version is not None:
        message.model_spec.version.value = version
    elif label is not None:
        message.model_spec.version_label = label
    for name, array in tensors.items():
        message.inputs[name].CopyFrom(array_to_tensor(array, as_content=as_content))
    data = (message.SerializeToString() + extra)[:cut]
    # Twice: the second time, what was learned from the first may be used.
    for _ in range(2):
        assert outcome(lambda body: read_predict(body, None), data) == outcome(by_protobuf, data)


def request_bytes(array: np.ndarray, name: str = "x", model: str = "m") -> bytes:
    message = serving_pb2.PredictRequest()
    message.model_spec.name = model
    message.inputs[name].CopyFrom(array_to_tensor(array, as_content=True))
    return message.SerializeToString()


def test_a_tensor_is_viewed_where_it_arrived() -> None:
    data = memoryview(request_bytes(np.arange(6, dtype=np.float32).reshape(2, 3)))
    for _ in range(2):
        array = read_predict(data, None).inputs(SIGNATURE)["x"]
        assert np.shares_memory(array, np.frombuffer(data, np.uint8))
        np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])


def test_messages_of_one_length_are_told_apart() -> None:
    for array, name, model in (
        (np.zeros((2, 3), np.float32), "x", "m"), (np.zeros((3, 2), np.float32), "x", "m"),
        (np.ones((2, 3), np.int32), "x", "m"), (np.ones((2, 3), np.float32), "y", "n"),
    ):  # fmt: skip
        request = read_predict(request_bytes(array, name, model), None)
        assert request.spec == ModelSpec(name=model)
        ((received, values),) = request.inputs(SIGNATURE).items()
        assert (received, values.dtype, values.shape) == (name, array.dtype, array.shape)


def test_strings_are_protobuf_s_also_when_they_were_seen_before() -> None:
    """What is remembered of a signature that takes strings decides who reads a message, and not what it says."""
    files = np.array([b"one", b"two"], dtype=object)
    more = serving_pb2.PredictRequest(model_spec={"signature_name": "s"})
    for data in (
        request_bytes(files, "files"),
        request_bytes(files[:1], "files"),
        # Numbers for the same signature, and a second model spec that is merged with the first.
        request_bytes(np.zeros(3, np.float32), "files"),
        request_bytes(files, "files") + more.SerializeToString(),
        request_bytes(files, "files")[:-1],
        b"",
        b"\n",
    ):  # fmt: skip
        assert outcome(lambda data: read_predict(data, None), data) == outcome(by_protobuf, data)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_predict_codec, "_MAX_HEADS", 4)
    for size in range(1, 20):
        read_predict(request_bytes(np.zeros(size, np.float32)), None)
        read_predict(request_bytes(np.array([b"x"], dtype=object), model=f"m{size}"), None)
    assert len(_predict_codec._heads) <= 4
    assert len(_predict_codec._strings) <= 4


def test_errors_are_protobuf_s() -> None:
    with pytest.raises(InvalidModelSpecError, match="Missing ModelSpec"):
        read_predict(b"", None)
    with pytest.raises(DecodeError):
        read_predict(b"\xff\xff", None)
    message = serving_pb2.PredictRequest.FromString(request_bytes(np.zeros(3, np.float32)))
    message.inputs["x"].tensor_content = b"12345"
    with pytest.raises(InvalidInputError, match="tensor_content has 5 bytes"):
        read_predict(message.SerializeToString(), None).inputs(SIGNATURE)


def test_the_caller_goes_with_the_request() -> None:
    caller = Caller()
    for array in (np.zeros(3, np.float32), np.zeros(3, np.bool_)):
        assert read_predict(request_bytes(array), caller).caller is caller


strings = st.lists(st.binary(max_size=200), max_size=4).map(lambda values: np.array([*values, None], dtype=object)[:-1])


@settings(max_examples=100, deadline=None)
@given(outputs=st.dictionaries(st.text(max_size=5), st.one_of(arrays, strings), max_size=3), as_content=st.booleans())
def test_answers_are_protobuf_s(outputs, as_content: bool) -> None:
    prediction = Prediction(spec=ModelSpec(name="m", version=3, signature="s"), outputs=outputs)
    mine = serving_pb2.PredictResponse.FromString(predict_writer(as_content=as_content)(prediction))
    theirs = _messages.predict_response(prediction, as_content=as_content)
    assert mine.model_spec == theirs.model_spec
    assert mine.outputs.keys() == theirs.outputs.keys()
    for name, array in outputs.items():
        # NaN is not equal to itself, but its bytes are.
        assert mine.outputs[name].SerializeToString() == theirs.outputs[name].SerializeToString()
        assert tensor_to_array(mine.outputs[name]).tobytes() == array.tobytes() or array.dtype == object


def test_int64_beyond_one_byte() -> None:
    array = np.array([-1, 0, 127, 128, 1 << 62, -(1 << 63)], np.int64)
    prediction = Prediction(spec=ModelSpec(name="m", version=1, signature="s"), outputs={"n": array})
    mine = serving_pb2.PredictResponse.FromString(predict_writer(as_content=False)(prediction))
    assert list(mine.outputs["n"].int64_val) == array.tolist()
