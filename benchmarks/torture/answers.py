"""Malformed answers to the clients' readers, in this process: messages, JSON, HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from benchmarks.torture.cases import Result, Scratch, case
from benchmarks.torture.readers import broken
from modelyard.clients.http import Http1Reader, Http2Connection
from modelyard.clients.protocols import (
    Answer,
    ExamplesCall,
    PredictCall,
    error_from_body,
    make_target,
    metadata_from_json,
    metadata_from_message,
    prediction_from_json,
    prediction_from_message,
    status_from_json,
    status_from_message,
)
from modelyard.clients.protocols.tfs import _example_messages as tfs
from modelyard.clients.protocols.v2 import _codec as v2
from modelyard.clients.values import SignatureInfo, TensorInfo
from modelyard.errors import ModelyardError
from modelyard.wire import inference_pb2, serving_pb2, tensorflow_pb2
from tests.clients.http2_script import GOOD as HTTP2_ANSWERS
from tests.clients.test_lean_rest import GOOD as HTTP1_ANSWERS

_TARGET = make_target("m", None, None)
_CALL = PredictCall(target=_TARGET, inputs={}, signature="", outputs=())
_EXAMPLES = ExamplesCall(target=_TARGET, examples=(), context=None)
_OUTPUTS = {"f": ("float32", (-1, 2)), "i": ("int64", (-1,)), "s": ("string", None), "b": ("bool", (-1,))}
_SIGNATURE = SignatureInfo(
    name="serving_default",
    method="",
    inputs={},
    outputs={name: TensorInfo(name=name, dtype=dtype, shape=shape) for name, (dtype, shape) in _OUTPUTS.items()},
)


@case("malformed", "answers of Predict to clients, in process", own=True)
def predictions(scratch: Scratch) -> Result:
    """Views, lists and repeated values; and the descriptions of models and versions."""
    response = serving_pb2.PredictResponse()
    response.model_spec.name = "m"
    for dtype, values in ((1, "float_val"), (2, "double_val"), (7, "string_val"), (9, "int64_val"), (10, "bool_val")):
        tensor = response.outputs[values]
        tensor.MergeFromString(bytes([8, dtype]))
        tensor.tensor_shape.dim.add(size=2)
        getattr(tensor, values).extend([b"ab", b""] if dtype == 7 else [1, 0])
    tensor = response.outputs["content"]
    tensor.MergeFrom(tensorflow_pb2.TensorProto(dtype=tensorflow_pb2.DT_FLOAT, tensor_content=b"\1" * 24))
    tensor.tensor_shape.dim.add(size=3)
    tensor.tensor_shape.dim.add(size=2)
    status = serving_pb2.GetModelStatusResponse()
    status.model_version_status.add(version=3, state=30).status.error_message = "x"
    metadata = serving_pb2.GetModelMetadataResponse()
    definitions = serving_pb2.SignatureDefMap()
    definitions.signature_def["serving_default"].inputs["x"].dtype = tensorflow_pb2.DT_FLOAT
    metadata.metadata["signature_def"].Pack(definitions)
    readers = (
        lambda data: prediction_from_message(data, _TARGET, ""),
        lambda data: status_from_message(data, _TARGET),
        lambda data: metadata_from_message(data, _TARGET),
        lambda data: tfs.classification_from_message(data, _EXAMPLES),
    )
    seeds = [message.SerializeToString() for message in (response, status, metadata)]
    return broken(scratch, seeds, _each(*readers))


@case("malformed", "answers of ModelInfer to clients, in process", own=True)
def inferences(scratch: Scratch) -> Result:
    """With raw contents, and without."""
    response = inference_pb2.ModelInferResponse(model_name="m", model_version="3")
    for datatype, raw in (("FP32", bytes(8)), ("BYTES", b"\1\0\0\0a\0\0\0\0"), ("BOOL", b"\0\1")):
        response.outputs.add(name=datatype, datatype=datatype, shape=[2])
        response.raw_output_contents.append(raw)
    listed = inference_pb2.ModelInferResponse()
    listed.outputs.add(name="y", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1, 2])
    listed.outputs.add(name="z", datatype="INT8", shape=[1]).contents.int_contents.append(5)
    seeds = [response.SerializeToString(), listed.SerializeToString()]
    return broken(scratch, seeds, lambda data: v2.prediction_from_message(data, _CALL))


@case("malformed", "JSON for clients, in process", own=True)
def documents(scratch: Scratch) -> Result:
    """Of both protocols, with binary tensors and without; descriptions; errors."""
    columns = {"outputs": {"f": [[1.5, -2e9]], "i": [3], "s": ["ab", {"b64": "AA=="}], "b": [True]}}
    described = {"signature_def": {"serving_default": {"inputs": {"x": {"dtype": "DT_FLOAT", "tensor_shape": {}}}}}}
    open_json = {
        "model_name": "m",
        "model_version": "3",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [2], "data": [1.5, 2]},
            {"name": "s", "datatype": "BYTES", "shape": [1], "data": ["ab"]},
            {"name": "r", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}},
        ],
    }
    seeds = [
        json.dumps(each).encode()
        for each in (
            columns,
            {"model_spec": {"name": "m"}, "metadata": {"signature_def": described}},
            {"model_version_status": [{"version": "3", "state": "AVAILABLE", "status": {"error_code": "OK"}}]},
            {"results": [[["a", 0.5], ["b", 1]]]},
            {"results": [1.5, 2]},
            {"error": "it failed"},
            open_json,
            {
                "name": "m",
                "versions": ["3"],
                "inputs": [],
                "outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}],
            },
        )
    ]
    readers = (
        lambda data: prediction_from_json(data, _TARGET, _SIGNATURE, ()),
        lambda data: metadata_from_json(data, _TARGET),
        lambda data: status_from_json(data, _TARGET),
        lambda data: tfs.classification_from_json(data, _EXAMPLES),
        lambda data: tfs.regression_from_json(data, _EXAMPLES),
        lambda data: v2.prediction_from_answer(Answer(data + bytes(8), {v2.JSON_LENGTH: str(len(data))}), _CALL),
        lambda data: v2.metadata_from_json(data, _TARGET, ""),
        lambda data: error_from_body(400, data, "http://x"),
    )
    return broken(scratch, seeds, _each(*readers))


@case("malformed", "HTTP/1.1 and HTTP/2 for clients, in process", own=True)
def connections(scratch: Scratch) -> Result:
    """Every framing of a body, and every kind of frame."""

    def read(data: bytes) -> None:
        answer = Http1Reader().answer("http://x", 1 << 20)
        with contextlib.suppress(StopIteration, EOFError):
            next(answer)
            answer.send(data)
            answer.send(b"")

    def frames(data: bytes) -> None:
        core = Http2Connection()
        core.start(b"", b"request")
        for at in range(0, len(data), 50):
            core.feed(data[at : at + 50])

    seeds = [*HTTP1_ANSWERS.values(), *HTTP2_ANSWERS.values()]
    return broken(scratch, seeds, _each(read, frames))


def _each(*readers: Callable[[bytes], object]) -> Callable[[bytes], None]:
    """All of these readers: most content is refused by most of them."""

    def read(data: bytes) -> None:
        for each in readers:
            with contextlib.suppress(ModelyardError):
                each(data)

    return read
