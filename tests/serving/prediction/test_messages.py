"""Predict's messages: what is wrong with a request is said, and answers read back as what was computed."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from modelyard.artifact import Signature
from modelyard.errors import InvalidInputError, InvalidModelSpecError
from modelyard.serving import ModelSpec, Prediction
from modelyard.serving.prediction import predict_writer, read_predict
from modelyard.wire import array_to_tensor, serving_pb2, tensor_to_array

SIGNATURE = Signature(inputs=(), outputs=(), compute="x")
KINDS = [np.float32, np.float64, np.int32, np.int64, np.uint8, np.float16, np.uint16, np.complex64, np.bool_]
arrays = st.sampled_from(KINDS).flatmap(
    lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
strings = st.lists(st.binary(max_size=200), max_size=4).map(lambda values: np.array([*values, None], dtype=object)[:-1])


def message_of(array: np.ndarray) -> serving_pb2.PredictRequest:
    message = serving_pb2.PredictRequest(model_spec={"name": "m"})
    message.inputs["x"].CopyFrom(array_to_tensor(array, as_content=True))
    return message


def test_a_request_knows_its_size_and_its_arrays() -> None:
    data = message_of(np.arange(6, dtype=np.float32).reshape(2, 3)).SerializeToString()
    request = read_predict(data)
    assert (request.spec, request.size) == (ModelSpec(name="m"), len(data))
    np.testing.assert_array_equal(request.inputs(SIGNATURE)["x"], [[0, 1, 2], [3, 4, 5]])


def test_errors() -> None:
    with pytest.raises(InvalidModelSpecError, match="Missing ModelSpec"):
        read_predict(b"")
    with pytest.raises(DecodeError):
        read_predict(b"\xff\xff")
    message = message_of(np.zeros(3, np.float32))
    message.inputs["x"].tensor_content = b"12345"
    with pytest.raises(InvalidInputError, match="tensor_content has 5 bytes"):
        read_predict(message.SerializeToString()).inputs(SIGNATURE)


@settings(max_examples=100, deadline=None)
@given(outputs=st.dictionaries(st.text(max_size=5), st.one_of(arrays, strings), max_size=3), as_content=st.booleans())
def test_answers_hold_what_was_computed(outputs, as_content: bool) -> None:
    prediction = Prediction(spec=ModelSpec(name="m", version=3, signature="s"), outputs=outputs)
    data = predict_writer(as_content=as_content)(prediction)
    message = serving_pb2.PredictResponse.FromString(data)
    spec = message.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("m", 3, "s")
    assert message.outputs.keys() == outputs.keys()
    for name, array in outputs.items():
        read = tensor_to_array(message.outputs[name])
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tolist() == array.tolist() if array.dtype == object else read.tobytes() == array.tobytes()


def test_outputs_keep_their_order() -> None:
    names = [f"output {index:02}" for index in range(20)]
    outputs = {name: np.zeros(1, np.float32) for name in names}
    data = predict_writer(as_content=False)(Prediction(spec=ModelSpec(name="m", version=1), outputs=outputs))
    places = [data.index(name.encode()) for name in names]
    assert places == sorted(places)
