"""The core's reader and writer of Predict over gRPC say what the general path says, byte for byte."""

from __future__ import annotations

import random

import numpy as np
import pytest

from modelyard.artifact import Signature
from modelyard.serving import ModelSpec, Prediction, PredictRequest
from modelyard.serving.prediction import predict_writer, read_predict
from modelyard.wire import array_to_tensor, serving_pb2, tensorflow_pb2
from tests.support.forms import (
    DTYPES,
    OUTPUT_DTYPES,
    cases,
    check_read,
    described,
    mutated,
    native,
    outputs_of,
    some_array,
    some_shape,
    some_signature,
)

FORMS = native()


def general(body: bytes) -> PredictRequest:
    return read_predict(body)


def check(body: bytes, signature: Signature) -> bool:
    read = FORMS.read_predict(body, described(signature))
    if not check_read(read, lambda: general(body).inputs(signature), signature):
        return False
    request = general(body)
    spec = request.spec
    head = (spec.name, spec.version, spec.label, spec.signature, list(request.output_filter))
    assert FORMS.predict_head(body) == head
    return True


def some_request(rng: random.Random, random_values: np.random.Generator) -> tuple[bytes, Signature]:
    """A request as clients send it, and the signature that it fits."""
    message = serving_pb2.PredictRequest(output_filter=rng.choice(([], [], ["a"], ["a", "übrig"])))
    message.model_spec.name = rng.choice(("m", "fashion", "mödel"))
    message.model_spec.signature_name = rng.choice(("", "serving_default", "other"))
    choice = rng.randrange(4)
    if choice == 0:
        message.model_spec.version.value = rng.choice((0, 1, 7, 300, 1 << 40))
    elif choice == 1:
        message.model_spec.version_label = rng.choice(("stable", ""))
    names = rng.sample(("x", "y", "images", "größe"), rng.choice((1, 1, 1, 2, 3)))
    dtypes = {name: rng.choice(DTYPES) for name in names}
    arrays = {name: some_array(random_values, dtype, some_shape(rng)) for name, dtype in dtypes.items()}
    for name, array in arrays.items():
        message.inputs[name].CopyFrom(array_to_tensor(array, as_content=rng.random() < 0.6))
    return message.SerializeToString(), some_signature(rng, arrays, dtypes)


def test_requests_of_the_usual_form_are_read() -> None:
    read = sum(check(*some_request(*sources)) for sources in cases(1))
    # What is left are the signaling NaNs among any bits.
    assert read >= 0.95 * sum(1 for _ in cases(1))


def test_mutated_requests_are_read_as_by_the_general_path_or_not_at_all() -> None:
    read = 0
    for rng, random_values in cases(2):
        body, signature = some_request(rng, random_values)
        read += check(mutated(rng, body), signature)
    assert read


@pytest.mark.parametrize("as_content", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fixed_usual_bodies_are_not_declined(dtype: str, as_content: bool) -> None:
    array = np.arange(6).reshape(2, 3).astype(some_array(np.random.default_rng(), dtype, ()).dtype)
    signature = some_signature(random.Random(1), {"x": array}, {"x": dtype})
    message = serving_pb2.PredictRequest()
    message.model_spec.name = "m"
    message.inputs["x"].CopyFrom(array_to_tensor(array, as_content=as_content))
    assert check(message.SerializeToString(), signature)


def test_what_does_not_fit_is_declined() -> None:
    array = np.ones((2, 3), np.float32)
    message = serving_pb2.PredictRequest()
    message.model_spec.name = "m"
    message.inputs["x"].CopyFrom(array_to_tensor(array, as_content=True))
    body = message.SerializeToString()
    assert FORMS.read_predict(body, [("x", "float32", [-1, 3])]) is not None
    for inputs in (
        [("y", "float32", [-1, 3])],
        [("x", "int32", [-1, 3])],
        [("x", "float32", [-1, 4])],
        [("x", "float32", [-1])],
        [("x", "float32", [-1, 3]), ("y", "float32", None)],
        [],
    ):
        assert FORMS.read_predict(body, inputs) is None


def test_nothing_is_allocated_by_a_size_that_is_merely_claimed() -> None:
    message = serving_pb2.PredictRequest()
    message.model_spec.name = "m"
    tensor = message.inputs["x"]
    tensor.dtype = tensorflow_pb2.DT_FLOAT
    tensor.float_val.append(1.0)
    for _ in range(4):
        tensor.tensor_shape.dim.add().size = (1 << 31) - 1
    assert FORMS.read_predict(message.SerializeToString(), [("x", "float32", None)]) is None


def test_answers_are_written_byte_for_byte() -> None:
    writers = {as_content: predict_writer(as_content=as_content) for as_content in (True, False)}
    for rng, random_values in cases(3):
        rows = rng.randint(1, 5)
        names = rng.sample(("y", "scores", "größe", "z" * 200), rng.choice((1, 1, 2, 3)))
        dtypes = {name: rng.choice(OUTPUT_DTYPES) for name in names}
        inner = {name: some_shape(rng, least=0, ranks=(0, 3), largest=rng.choice((3, 9))) for name in names}
        arrays = {name: some_array(random_values, dtypes[name], (rows, *inner[name])) for name in names}
        spec = ModelSpec(
            name=rng.choice(("m", "mödel", "")), version=rng.choice((0, 1, 1 << 40)), signature="s" * rng.randint(0, 3)
        )
        start = rng.randint(0, rows - 1)
        end = rng.randint(start, rows)
        for as_content, write in writers.items():
            for part in (None, (start, end)):
                outputs = {name: array if part is None else array[start:end] for name, array in arrays.items()}
                expected = write(Prediction(spec=spec, outputs=outputs))
                described_spec = (spec.name, spec.version, spec.signature)
                written = FORMS.write_predict(
                    described_spec, outputs_of(arrays, dtypes), rows=part, as_content=as_content
                )
                assert written == expected


def test_scalars_are_written_whole_and_have_no_rows() -> None:
    scalar = {"y": np.array(2.5, np.float32)}
    expected = predict_writer(as_content=False)(Prediction(spec=ModelSpec(name="m", version=1), outputs=scalar))
    outputs = outputs_of(scalar, {"y": "float32"})
    assert FORMS.write_predict(("m", 1, ""), outputs, rows=None, as_content=False) == expected
    assert FORMS.write_predict(("m", 1, ""), outputs, rows=(0, 1), as_content=False) is None


def test_what_many_things_in_few_bytes_ask_for_is_declined() -> None:
    message = serving_pb2.PredictRequest()
    message.model_spec.name = "m"
    message.inputs["x"].CopyFrom(array_to_tensor(np.ones([1] * 40, np.float32), as_content=True))
    assert FORMS.read_predict(message.SerializeToString(), [("x", "float32", None)]) is None
    message.output_filter.extend([""] * 300)
    assert FORMS.predict_head(message.SerializeToString()) is None


def test_a_version_and_a_label_at_once_are_declined() -> None:
    version, label = serving_pb2.ModelSpec(), serving_pb2.ModelSpec(version_label="stable")
    version.version.value = 3
    heads = []
    for parts in ([version], [label], [version, label], [label, version], [label, label]):
        spec = b"".join(part.SerializeToString() for part in parts)
        heads.append(FORMS.predict_head(b"\x0a" + bytes([len(spec)]) + spec))
    # Of a oneof the last counts; the general path knows that.
    assert heads == [("", 3, None, "", []), ("", None, "stable", "", []), None, None, ("", None, "stable", "", [])]
