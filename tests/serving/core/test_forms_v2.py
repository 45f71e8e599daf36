"""The core's readers and writers of the Open Inference Protocol say what the general path says, byte for byte."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError
from modelyard.serving import ModelSpec, Prediction
from modelyard.serving.handlers.oip import InferRequest, RequestedOutput
from modelyard.serving.handlers.oip._datatypes import datatype_of
from modelyard.serving.handlers.oip._grpc import infer_request, infer_response
from modelyard.serving.handlers.oip._rest_codec import answer_of, read_call
from modelyard.serving.handlers.oip._service import infer_result, predict_request
from modelyard.wire import array_to_raw, inference_pb2
from tests.support.forms import (
    DTYPES,
    OUTPUT_DTYPES,
    Arrays,
    cases,
    check_read,
    described,
    mutated,
    native,
    number_texts,
    outputs_of,
    some_array,
    some_shape,
    some_signature,
    with_other_numbers,
)

FORMS = native()
WORDS = [
    b"[", b"]", b"{", b"}", b",", b":", b'"', b" ", b"-", b"0", b"01", b"1.0", b"1e400", b"NaN", b"true", b"false",
    b"null",
    b'"id":"7",', b'"parameters":{},', b'"parameters":{"binary_data":true},', b'"parameters":{"classification":1},',
    b'"parameters":{"binary_data_size":4},', b'"data":[1],', b'"shape":[1],', b'"name":"x",', b"\\u0041", b"\xff",
]  # fmt: skip
#: The typed field of gRPC by kind and size of numbers.
FIELDS = {
    "bool": "bool_contents", "int8": "int_contents", "int16": "int_contents", "int32": "int_contents",
    "int64": "int64_contents", "uint8": "uint_contents", "uint16": "uint_contents", "uint32": "uint_contents",
    "uint64": "uint64_contents", "float32": "fp32_contents", "float64": "fp64_contents",
}  # fmt: skip


def check_rest(body: bytes, length: bytes | None, signature: Signature, *, max_depth: int = 100) -> bool:
    read = FORMS.read_v2_rest(body, length, described(signature), max_depth=max_depth)
    if read is None:
        return False
    request_id, named, outputs, binary, tensors = read
    call = read_call(body, None if length is None else length.decode(), "m", "", max_depth=max_depth)
    request = predict_request(call)
    assert (request_id, named or "", binary) == (call.id, request.spec.signature, call.binary)
    assert [(output.name, output.binary, 0) for output in call.outputs] == [(*output, 0) for output in outputs]
    assert not any(output.classification for output in call.outputs)
    return check_read(tensors, lambda: request.inputs(signature), signature)


def some_arrays(rng: random.Random, random_values: np.random.Generator) -> tuple[Arrays, dict[str, str]]:
    names = rng.sample(("x", "y", "images", "größe"), rng.choice((1, 1, 1, 2, 3)))
    dtypes = {name: rng.choice(DTYPES) for name in names}
    arrays = {name: some_array(random_values, dtype, some_shape(rng)) for name, dtype in dtypes.items()}
    return arrays, dtypes


def some_rest_request(rng: random.Random, random_values: np.random.Generator) -> tuple[bytes, bytes | None, Signature]:
    """A request as clients send it, and the signature that it fits."""
    arrays, dtypes = some_arrays(rng, random_values)
    some_binary = rng.random() < 0.5
    tail = b""
    inputs = []
    for name, array in arrays.items():
        members = {
            "name": json.dumps(name, ensure_ascii=False),
            "shape": json.dumps(list(array.shape)),
            "datatype": json.dumps(datatype_of(dtypes[name], tensor=name)),
        }
        if (some_binary and rng.random() < 0.8) or dtypes[name] in ("float16", "bfloat16"):
            data = array_to_raw(array)
            members["parameters"] = json.dumps({"binary_data_size": len(data)})
            tail += data
        else:
            finite = np.where(np.isfinite(array), array, 0).astype(array.dtype)
            arrays[name] = array = finite
            members["data"] = number_texts(rng, array if rng.random() < 0.5 else array.ravel())
        keys = list(members) if rng.random() < 0.7 else rng.sample(list(members), len(members))
        inputs.append("{" + ",".join(f'"{key}": {members[key]}' for key in keys) + "}")
    document = {"inputs": f"[{','.join(inputs)}]"}
    if rng.random() < 0.5:
        document["id"] = rng.choice(('"7"', '"ü"', '""'))
    if rng.random() < 0.5:
        document["parameters"] = rng.choice(
            ("{}", '{"binary_data_output":true}', '{"signature_name":"other","binary_data_output":false}')
        )
    if rng.random() < 0.5:
        document["outputs"] = rng.choice(
            ("[]", '[{"name":"y"}]', '[{"name":"y","parameters":{"binary_data":true}},{"name":"z","parameters":{}}]')
        )
    keys = rng.sample(list(document), len(document))
    text = ("{" + ", ".join(f'"{key}":{document[key]}' for key in keys) + "}").encode()
    signature = some_signature(rng, arrays, dtypes)
    return text + tail, str(len(text)).encode() if tail or rng.random() < 0.2 else None, signature


def test_rest_requests_of_the_usual_form_are_read() -> None:
    read = total = 0
    for rng, random_values in cases(1):
        read += check_rest(*some_rest_request(rng, random_values))
        total += 1
    # Integers of any bits and numbers with other texts are declined where the general path refuses them too.
    assert read > 0.8 * total


def test_mutated_rest_requests_are_read_as_by_the_general_path_or_not_at_all() -> None:
    read = 0
    for rng, random_values in cases(2):
        body, length, signature = some_rest_request(rng, random_values)
        if length is not None and rng.random() < 0.9:
            # Mostly the JSON part, which is the smaller one.
            size = int(length)
            text = mutated(rng, body[:size], WORDS)
            body, length = text + body[size:], str(len(text) + rng.choice((0, 0, 0, 0, 1, -1))).encode()
        else:
            body = mutated(rng, body, WORDS)
        read += check_rest(body, length, signature)
    assert read


def test_other_numbers_in_rest_requests_are_read_as_by_the_general_path_or_not_at_all() -> None:
    read = total = 0
    for rng, random_values in cases(7):
        body, length, signature = some_rest_request(rng, random_values)
        size = len(body) if length is None else int(length)
        text = with_other_numbers(rng, body[:size])
        read += check_rest(text + body[size:], None if length is None else str(len(text)).encode(), signature)
        total += 1
    # The rest has other shapes and sizes than its data, or numbers of another kind.
    assert read > 0.15 * total


IMAGE = Signature(inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, 2)),), outputs=(), compute="x")


@pytest.mark.parametrize(
    "text",
    [
        '{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}',
        '{"inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1,2.5],[-0.0,1e-3]]}],"id":"7"}',
        '{"id":"","inputs":[{"data":[1,2],"name":"x","shape":[1,2],"datatype":"FP32","parameters":{}}],'
        '"outputs":[{"name":"y"}],"parameters":{"signature_name":"other"}}',
    ],
)
def test_fixed_usual_json_is_not_declined(text: str) -> None:
    assert check_rest(text.encode(), None, IMAGE)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fixed_usual_binary_bodies_are_not_declined(dtype: str) -> None:
    array = np.arange(2).astype(some_array(np.random.default_rng(), dtype, ()).dtype).reshape(1, 2)
    item = {"name": "x", "shape": [1, 2], "datatype": datatype_of(dtype, tensor="x")}
    data = array_to_raw(array)
    # As tritonclient writes it.
    document = {
        "id": "1",
        "inputs": [{**item, "parameters": {"binary_data_size": len(data)}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
    text = json.dumps(document).encode()
    signature = Signature(inputs=(TensorSpec(name="x", dtype=dtype, shape=(-1, 2)),), outputs=(), compute="x")
    assert check_rest(text + data, str(len(text)).encode(), signature)


@pytest.mark.parametrize("length", [b"", b"-1", b"1e2", b"0", b"9" * 30, b" 5", b"100000"])
def test_odd_lengths_are_declined(length: bytes) -> None:
    text = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}'
    assert FORMS.read_v2_rest(text, length, described(IMAGE), max_depth=100) is None


@pytest.mark.parametrize("max_depth", range(2, 8))
def test_nesting_is_limited_as_on_the_general_path(max_depth: int) -> None:
    for rank in range(1, 5):
        shape = [1] * (rank - 1) + [2]
        text = json.dumps(
            {"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": np.ones(shape).tolist()}]}
        )
        signature = Signature(inputs=(TensorSpec(name="x", dtype="float32", shape=None),), outputs=(), compute="x")
        check_rest(text.encode(), None, signature, max_depth=max_depth)


def some_answer(
    rng: random.Random, random_values: np.random.Generator
) -> tuple[Arrays, dict[str, str], dict[str, Any]]:
    names = rng.sample(("y", "scores", "größe", 'a"b', "z" * 200), rng.choice((1, 1, 2, 3)))
    dtypes = {name: rng.choice(OUTPUT_DTYPES) for name in names}
    rows = rng.randint(1, 4)
    arrays = {
        name: some_array(random_values, dtype, (rows, *some_shape(rng, least=rng.choice((0, 1, 1)), ranks=(0, 3))))
        for name, dtype in dtypes.items()
    }
    echo: dict[str, Any] = {"id": rng.choice(("", "7", "ü\n")), "model": rng.choice(("m", "mödel"))}
    echo["parameters"] = rng.choice(({}, {"signature_name": "other"}, {"signature_name": ""}))
    return arrays, dtypes, echo


def cut(rng: random.Random, arrays: Arrays) -> tuple[tuple[int, int] | None, Arrays]:
    """A request's rows of a batch."""
    if rng.random() < 0.5:
        return None, arrays
    rows = len(next(iter(arrays.values())))
    start = rng.randint(0, rows - 1)
    end = rng.randint(start, rows)
    return (start, end), {name: array[start:end] for name, array in arrays.items()}


def described_answer(echo: dict[str, Any], version: int) -> tuple[str, int, str, str | None]:
    return echo["model"], version, echo["id"], echo["parameters"].get("signature_name")


def test_rest_answers_are_written_byte_for_byte() -> None:
    refused = 0
    for rng, random_values in cases(3):
        arrays, dtypes, echo = some_answer(rng, random_values)
        rows, part = cut(rng, arrays)
        binary = [rng.random() < 0.5 for _ in arrays]
        strict = rng.random() < 0.3
        wanted = tuple(RequestedOutput(name=name, binary=flag) for name, flag in zip(arrays, binary, strict=True))
        request = InferRequest(inputs=lambda _: {}, outputs=wanted, **echo)
        version = rng.choice((1, 1 << 40))
        spec = ModelSpec(name=echo["model"], version=version)
        written = FORMS.write_v2_rest(
            described_answer(echo, version), outputs_of(arrays, dtypes), binary, rows=rows, strict=strict
        )
        try:
            expected = answer_of(infer_result(request, Prediction(spec=spec, outputs=part)), strict=strict)
        except InvalidInputError:
            assert written is None
            refused += 1
            continue
        body, length = written
        assert body == expected.body
        headers = dict(expected.headers)
        assert headers.get(b"inference-header-content-length") == (None if length is None else str(length).encode())
    assert refused


def test_bytes_that_are_no_text_are_declined_in_json_alone() -> None:
    outputs = outputs_of({"y": np.array([b"text", b"\xff\0"], object)}, {"y": "string"})
    answer = ("m", 1, "", None)
    assert FORMS.write_v2_rest(answer, outputs, [False], rows=None, strict=False) is None
    body, length = FORMS.write_v2_rest(answer, outputs, [True], rows=None, strict=False)
    assert body[length:] == b"\4\0\0\0text\2\0\0\0\xff\0"


def check_grpc(body: bytes, signature: Signature) -> bool:
    read = FORMS.read_v2_grpc(body, described(signature))
    if read is None:
        return False
    model, version, request_id, named, outputs, tensors = read
    message = inference_pb2.ModelInferRequest.FromString(body)
    call = infer_request(message)
    request = predict_request(call)
    spec = request.spec
    assert (model, version, named or "", request_id) == (spec.name, spec.version, spec.signature, call.id)
    assert (tuple(outputs), named is not None) == (request.output_filter, "signature_name" in call.parameters)
    assert not any(output.classification for output in call.outputs)
    return check_read(tensors, lambda: request.inputs(signature), signature)


def some_grpc_request(rng: random.Random, random_values: np.random.Generator) -> tuple[bytes, Signature]:
    """A request as clients send it, and the signature that it fits."""
    arrays, dtypes = some_arrays(rng, random_values)
    message = inference_pb2.ModelInferRequest(
        model_name=rng.choice(("m", "mödel")), model_version=rng.choice(("", "1", "007")), id=rng.choice(("", "7"))
    )
    if rng.random() < 0.3:
        message.parameters["signature_name"].string_param = rng.choice(("", "other"))
    if rng.random() < 0.3:
        message.parameters["triton_enable_empty_final_response"].bool_param = rng.random() < 0.5
    raw = rng.random() < 0.5 or any(dtype not in FIELDS for dtype in dtypes.values())
    for name, array in arrays.items():
        item = message.inputs.add(name=name, datatype=datatype_of(dtypes[name], tensor=name), shape=array.shape)
        if raw:
            message.raw_input_contents.append(array_to_raw(array))
        else:
            getattr(item.contents, FIELDS[dtypes[name]]).extend(array.ravel().tolist())
    for name in rng.choice(((), ("y",), ("y", "z"))):
        output = message.outputs.add(name=name)
        if rng.random() < 0.3:
            output.parameters["binary_data"].bool_param = True
    return message.SerializeToString(), some_signature(rng, arrays, dtypes)


def test_grpc_requests_of_the_usual_form_are_read() -> None:
    read = sum(check_grpc(*some_grpc_request(*sources)) for sources in cases(4))
    assert read >= 0.95 * sum(1 for _ in cases(4))


def test_mutated_grpc_requests_are_read_as_by_the_general_path_or_not_at_all() -> None:
    read = 0
    for rng, random_values in cases(5):
        body, signature = some_grpc_request(rng, random_values)
        read += check_grpc(mutated(rng, body), signature)
    assert read


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fixed_usual_grpc_bodies_are_not_declined(dtype: str, raw: bool) -> None:
    if not raw and dtype not in FIELDS:
        pytest.skip("the protocol has no typed field for it")
    array = np.arange(2).astype(some_array(np.random.default_rng(), dtype, ()).dtype).reshape(1, 2)
    message = inference_pb2.ModelInferRequest(model_name="m")
    item = message.inputs.add(name="x", datatype=datatype_of(dtype, tensor="x"), shape=array.shape)
    if raw:
        message.raw_input_contents.append(array_to_raw(array))
    else:
        getattr(item.contents, FIELDS[dtype]).extend(array.ravel().tolist())
    signature = Signature(inputs=(TensorSpec(name="x", dtype=dtype, shape=(-1, 2)),), outputs=(), compute="x")
    assert check_grpc(message.SerializeToString(), signature)


def test_integers_that_do_not_fit_are_declined() -> None:
    for dtype, value in (("INT8", 128), ("INT8", -129), ("INT16", 1 << 15), ("UINT8", 256), ("UINT16", 1 << 16)):
        message = inference_pb2.ModelInferRequest(model_name="m")
        item = message.inputs.add(name="x", datatype=dtype, shape=[1])
        getattr(item.contents, FIELDS[dtype.lower()]).append(value)
        assert FORMS.read_v2_grpc(message.SerializeToString(), [("x", dtype.lower(), [-1])]) is None


def test_grpc_answers_are_written_byte_for_byte() -> None:
    for rng, random_values in cases(6):
        arrays, dtypes, echo = some_answer(rng, random_values)
        rows, part = cut(rng, arrays)
        version = rng.choice((1, 1 << 40))
        spec = ModelSpec(name=echo["model"], version=version)
        request = InferRequest(inputs=lambda _: {}, **echo)
        expected = infer_response(infer_result(request, Prediction(spec=spec, outputs=part)))
        answer, outputs = described_answer(echo, version), outputs_of(arrays, dtypes)
        assert FORMS.write_v2_grpc(answer, outputs, rows=rows) == expected.SerializeToString()
