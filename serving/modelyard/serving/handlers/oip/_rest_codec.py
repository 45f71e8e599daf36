"""REST bodies of inference requests and answers: JSON, alone or followed by binary tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy.typing as npt

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError, InvalidRequestError
from modelyard.serving.handlers.oip._arrays import array_to_json, check_shape, json_to_array, raw_to_array
from modelyard.serving.handlers.oip._compression import LEAST_BYTES, compress, preferred_encoding
from modelyard.serving.handlers.oip._datatypes import datatype_of
from modelyard.serving.handlers.oip._parameters import (
    BINARY_DEFAULT_PARAMETER,
    classification_of,
    flag_of,
    refuse_shared_memory,
)
from modelyard.serving.handlers.oip._service import collect_inputs
from modelyard.serving.handlers.oip._types import InferOutput, InferRequest, InferResult, Parameter, RequestedOutput
from modelyard.serving.handlers.rest import parse_object, quote
from modelyard.serving.requests import Arrays, format_shape, whole_number
from modelyard.serving.transports.http import Answer
from modelyard.wire import array_to_raw, dtype_by_name, object_array

_BINARY_SIZE = "binary_data_size"
_BINARY = "binary_data"
JSON = (b"content-type", b"application/json")
_OCTETS = (b"content-type", b"application/octet-stream")
#: Also the header's name in a mapping of headers.
LENGTH_KEY = b"inference-header-content-length"


def read_call(body: bytes, json_length: str | None, model: str, version: str, *, max_depth: int) -> InferRequest:
    length = len(body) if json_length is None else whole_number(json_length, len(body))
    if length is None:
        raise InvalidRequestError(
            f"Inference-Header-Content-Length is {json_length!r}; expected the length of the JSON part, 0 to "
            f"{len(body)}."
        )
    if length == 0 and json_length is not None:
        return raw_request(body, model=model, version=version)
    tail = memoryview(body)[length:]
    document = parse_object(body[:length], max_depth=max_depth, strict_text=True)
    return infer_request(document, tail, model=model, version=version)


def infer_request(document: Mapping[str, object], tail: memoryview, *, model: str, version: str) -> InferRequest:
    """Reads a request; its tensors are decoded later, on a worker thread.

    What may be left out may also be null, as KServe's server has it.
    """
    request_id = document.get("id")
    if request_id is None:
        request_id = ""
    if not isinstance(request_id, str):
        raise InvalidRequestError(f"'id' is {quote(request_id)}; expected a string.")
    parameters = _parameters(document, "the request")
    binary = flag_of(parameters, BINARY_DEFAULT_PARAMETER, default=False)
    tensors: list[tuple[str, Callable[[], npt.NDArray[Any]]]] = []
    position = 0
    for item in _objects(document, "inputs", required=True):
        name, decode, size = _input(item, tail[position:])
        tensors.append((name, decode))
        position += size
    if position != len(tail):
        raise InvalidInputError(
            f"The body has {len(tail)} bytes after its JSON part; the inputs' parameters {_BINARY_SIZE} "
            f"take {position}."
        )
    return InferRequest(
        model=model,
        version=version,
        id=request_id,
        parameters=parameters,
        inputs=lambda _: collect_inputs(tensors),
        outputs=tuple(_output(item, binary) for item in _objects(document, "outputs", required=False)),
        binary=binary,
    )


def raw_request(body: bytes, *, model: str, version: str) -> InferRequest:
    """A request whose body is the bytes of the model's one input, and nothing else; all outputs are binary."""

    def inputs(signature: Signature) -> Arrays:
        if len(signature.inputs) != 1:
            raise InvalidRequestError(
                f"A raw binary request needs a model with exactly one input; {model!r} has {len(signature.inputs)}. "
                "Send JSON, optionally followed by binary tensors."
            )
        (spec,) = signature.inputs
        return {spec.name: _raw_input(body, spec)}

    return InferRequest(model=model, version=version, inputs=inputs, binary=True)


def infer_response(result: InferResult, *, strict: bool = False) -> tuple[bytes, bytes]:
    fields = [f'"model_name":{json.dumps(result.model)}', f'"model_version":{json.dumps(result.version)}']
    if result.id:
        fields.append(f'"id":{json.dumps(result.id)}')
    if result.parameters:
        fields.append(f'"parameters":{json.dumps(dict(result.parameters))}')
    outputs, parts = [], []
    for output in result.outputs:
        text, data = _output_parts(output, strict)
        outputs.append(text)
        parts.append(data)
    fields.append(f'"outputs":[{",".join(outputs)}]')
    return f"{{{','.join(fields)}}}".encode(), b"".join(parts)


def compressed(answer: Answer, accepted: str) -> Answer:
    """An answer in the encoding that the caller likes best."""
    encoding = preferred_encoding(accepted)
    if encoding is None or len(answer.body) < LEAST_BYTES:
        return answer
    headers = [*answer.headers, (b"content-encoding", encoding.encode())]
    return Answer(status=answer.status, body=compress(answer.body, encoding), headers=headers)


def answer_of(result: InferResult, *, strict: bool) -> Answer:
    text, tail = infer_response(result, strict=strict)
    if not any(output.binary for output in result.outputs):
        return Answer(status=200, body=text, headers=[JSON])
    return Answer(status=200, body=text + tail, headers=[_OCTETS, (LENGTH_KEY, str(len(text)).encode())])


def _input(item: Mapping[str, object], rest: memoryview) -> tuple[str, Callable[[], npt.NDArray[Any]], int]:
    """Name, decoder and number of binary bytes of one input; ``rest`` begins with these."""
    name = _text(item, "name", "an input")
    datatype = _text(item, "datatype", f"input {name!r}")
    shape = item.get("shape")
    if not isinstance(shape, list):
        raise InvalidRequestError(f"'shape' of input {name!r} is {quote(shape)}; expected a list of sizes.")
    sizes = check_shape(shape, tensor=name)
    parameters = _parameters(item, f"input {name!r}")
    refuse_shared_memory(parameters, f"input {name!r}")
    if _BINARY_SIZE not in parameters:
        if item.get("data") is None:
            raise InvalidRequestError(f"Input {name!r} has neither 'data' nor the parameter {_BINARY_SIZE!r}.")
        return name, partial(json_to_array, item["data"], datatype, sizes, tensor=name), 0
    if item.get("data") is not None:
        raise InvalidRequestError(f"Input {name!r} has both 'data' and the parameter {_BINARY_SIZE!r}; expected one.")
    size = parameters[_BINARY_SIZE]
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidRequestError(f"{_BINARY_SIZE!r} of input {name!r} is {size!r}; expected a number of bytes.")
    if size > len(rest):
        raise InvalidInputError(
            f"Input {name!r} has {_BINARY_SIZE} {size}, but only {len(rest)} bytes are left of the body."
        )
    return name, partial(raw_to_array, rest[:size], datatype, sizes, tensor=name), size


def _output(item: Mapping[str, object], binary: bool) -> RequestedOutput:
    name = _text(item, "name", "an output")
    parameters = _parameters(item, f"output {name!r}")
    refuse_shared_memory(parameters, f"output {name!r}")
    return RequestedOutput(
        name=name,
        binary=flag_of(parameters, _BINARY, default=binary),
        classification=classification_of(parameters, name),
    )


def _output_parts(output: InferOutput, strict: bool) -> tuple[str, bytes]:
    shape = ",".join(map(str, output.array.shape))
    start = f'{{"name":{json.dumps(output.name)},"datatype":"{output.datatype}","shape":[{shape}],'
    if not output.binary:
        return f'{start}"data":{array_to_json(output.array, tensor=output.name, strict=strict)}}}', b""
    data = array_to_raw(output.array)
    return f'{start}"parameters":{{"{_BINARY_SIZE}":{len(data)}}}}}', data


def _raw_input(body: bytes, spec: TensorSpec) -> npt.NDArray[Any]:
    datatype = datatype_of(spec.dtype, tensor=spec.name)
    shape = [-1] if spec.shape is None else list(spec.shape)
    if datatype == "BYTES":
        # The body is the one element, without its length.
        if math.prod(abs(size) for size in shape) != 1:
            raise InvalidRequestError(
                f"A raw binary request holds one BYTES element; input {spec.name!r} is {format_shape(spec.shape)}."
            )
        return object_array([body]).reshape([abs(size) for size in shape])
    if shape.count(-1) > 1 and shape[0] == -1:
        shape[0] = 1
    if shape.count(-1) > 1:
        raise InvalidRequestError(
            f"A raw binary request needs at most one dimension of unknown size besides the batch; input {spec.name!r} "
            f"is {format_shape(spec.shape)}."
        )
    if -1 in shape:
        kind = dtype_by_name(spec.dtype).numpy
        step = math.prod(abs(size) for size in shape) * (kind.itemsize if kind is not None else 2)
        shape[shape.index(-1)] = len(body) // step if step else 0
    return raw_to_array(body, datatype, shape, tensor=spec.name)


def _objects(document: Mapping[str, object], key: str, *, required: bool) -> list[dict[str, object]]:
    value = document.get(key)
    if value is None and not required:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidRequestError(f"Unable to parse {key!r}: received {quote(value)}; expected a list of objects.")
    return value


def _text(item: Mapping[str, object], key: str, owner: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidRequestError(f"{key!r} of {owner} is {quote(value)}; expected a string.")
    return value


def _parameters(item: Mapping[str, object], owner: str) -> dict[str, Parameter]:
    value = item.get("parameters")
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(entry, bool | int | float | str) for entry in value.values()):
        raise InvalidRequestError(
            f"'parameters' of {owner} is {quote(value)}; expected an object of strings, numbers and booleans."
        )
    return value
