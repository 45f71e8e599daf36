"""Bodies of inference requests over REST, above all the raw ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError, InvalidRequestError
from modelyard.serving.handlers.oip import InferOutput, InferResult
from modelyard.serving.handlers.oip._rest_codec import infer_request, infer_response, raw_request


def signature(dtype: str, shape: tuple[int, ...] | None, *, inputs: int = 1) -> Signature:
    specs = tuple(TensorSpec(name=f"x{index}", dtype=dtype, shape=shape) for index in range(inputs))
    return Signature(inputs=specs, outputs=specs, compute="serving_default")


@pytest.mark.parametrize(
    ("shape", "values", "expected"),
    [
        ((-1,), 3, (3,)),
        ((-1, 2), 2, (1, 2)),
        ((-1, 2), 6, (3, 2)),
        ((-1, -1), 3, (1, 3)),
        ((2, 2), 4, (2, 2)),
        (None, 2, (2,)),
    ],
)
def test_a_raw_body_takes_the_shape_that_its_length_allows(
    shape: tuple[int, ...] | None, values: int, expected: tuple[int, ...]
) -> None:
    body = np.arange(values, dtype="<f4").tobytes()
    request = raw_request(body, model="m", version="")
    array = request.inputs(signature("float32", shape))["x0"]
    assert array.shape == expected
    assert array.ravel().tolist() == list(range(values))
    assert request.binary


def test_a_raw_body_of_bytes_is_one_element() -> None:
    array = raw_request(b"\x00png", model="m", version="").inputs(signature("string", (-1,)))["x0"]
    assert array.tolist() == [b"\x00png"]


@pytest.mark.parametrize(
    ("spec", "size", "fragment"),
    [
        (signature("float32", (-1,), inputs=2), 4, "exactly one input; 'm' has 2"),
        (signature("float32", (2, -1, -1)), 4, "at most one dimension of unknown size"),
        (signature("string", (2,)), 4, "holds one BYTES element"),
        (signature("float32", (-1, 2)), 12, "takes 8"),
    ],
)
def test_raw_bodies_that_do_not_fit(spec: Signature, size: int, fragment: str) -> None:
    with pytest.raises((InvalidRequestError, InvalidInputError)) as caught:
        raw_request(b"\0" * size, model="m", version="").inputs(spec)
    assert fragment in caught.value.message


def test_binary_defaults_and_exceptions() -> None:
    document = {
        "parameters": {"binary_data_output": True},
        "inputs": [],
        "outputs": [{"name": "a"}, {"name": "b", "parameters": {"binary_data": False}}],
    }
    request = infer_request(document, memoryview(b""), model="m", version="1")
    assert [output.binary for output in request.outputs] == [True, False]
    with pytest.raises(InvalidRequestError, match="'binary_data_output' is 1; expected true or false"):
        infer_request({**document, "parameters": {"binary_data_output": 1}}, memoryview(b""), model="m", version="")


def test_binary_parts_follow_in_the_order_of_the_outputs() -> None:
    outputs = tuple(
        InferOutput(name=name, datatype="INT8", array=np.array(values, np.int8), binary=binary)
        for name, values, binary in (("a", [1, 2], True), ("b", [3], False), ("c", [], True), ("d", [4], True))
    )
    text, data = infer_response(InferResult(model="m", version="2", id="", parameters={}, outputs=outputs))
    document = json.loads(text)
    assert "id" not in document
    assert [item.get("parameters", {}).get("binary_data_size") for item in document["outputs"]] == [2, None, 0, 1]
    assert data == b"\x01\x02\x04"
