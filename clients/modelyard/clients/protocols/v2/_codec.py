"""The Open Inference Protocol's messages and JSON: pure functions.

Names and forms: kserve/open-inference-protocol, and Triton's binary tensor extension for REST. Raw tensors are
little-endian in row-major order; an element of BYTES is its length (uint32) and its bytes.
"""

from __future__ import annotations

import json
import math
import reprlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.clients.protocols import (
    DEFAULT_SIGNATURE,
    Answer,
    PredictCall,
    Target,
    numbers_of_json,
    parse,
    parse_json,
    quote_bytes,
    strings_of_json,
)
from modelyard.clients.values import ModelMetadata, Prediction, SignatureInfo, TensorInfo, array_json
from modelyard.errors import InvalidInputError, ProtocolError, RequestTooLargeError, UnsupportedError
from modelyard.wire import (
    MAX_MESSAGE,
    MAX_RANK,
    OIP_CONTENTS,
    OIP_DATATYPES,
    OIP_DTYPES,
    array_to_raw,
    decimal,
    dtype_by_name,
    dtype_by_numpy,
    has_room,
    inference_pb2,
    object_array,
    varint,
)

Arrays = Mapping[str, npt.NDArray[Any]]

JSON_LENGTH = "inference-header-content-length"
#: Name of the request parameter by which modelyard's server takes another signature than the default one.
SIGNATURE_PARAMETER = "signature_name"
_BINARY_SIZE = "binary_data_size"
_LENGTH = struct.Struct("<I")
#: Field 7 of ``ModelInferRequest``, length-delimited.
_RAW_TAG = b"\x3a"


def infer_message(call: PredictCall, arrays: Arrays) -> bytes:
    """The body of a gRPC ModelInfer."""
    request = inference_pb2.ModelInferRequest(model_name=call.target.model, model_version=version_text(call.target))
    if call.signature not in ("", DEFAULT_SIGNATURE):
        request.parameters[SIGNATURE_PARAMETER].string_param = call.signature
    for name, array in arrays.items():
        request.inputs.add(name=name, datatype=_datatype(name, array), shape=array.shape)
    for name in call.outputs:
        request.outputs.add(name=name)
    parts = [request.SerializeToString()]
    for array in arrays.values():
        raw = array_to_raw(array)
        parts += (_RAW_TAG, varint(len(raw)), raw)
    size = sum(map(len, parts))
    if size > MAX_MESSAGE:
        raise RequestTooLargeError(
            f"Inputs of {size} bytes do not fit into one message, which holds less than 2 GiB; send fewer rows."
        )
    return b"".join(parts)


def prediction_from_message(data: bytes, call: PredictCall) -> Prediction:
    response = parse(inference_pb2.ModelInferResponse, data)
    raw = response.raw_output_contents
    if raw and len(raw) != len(response.outputs):
        raise ProtocolError(f"Expected {len(response.outputs)} raw outputs; received {len(raw)}.")
    outputs = {}
    for index, output in enumerate(response.outputs):
        shape = _shape(output.shape, output.name)
        if raw:
            outputs[output.name] = raw_to_array(raw[index], output.datatype, shape, output.name)
        else:
            name = OIP_DTYPES.get(output.datatype, "")
            values = list(getattr(output.contents, OIP_CONTENTS.get(name, ""), ()))
            outputs[output.name] = _values_to_array(values, output.datatype, shape, output.name)
    return _prediction(outputs, response.model_name, response.model_version, call)


def infer_json(call: PredictCall, arrays: Arrays, *, binary: bool) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """The body of a REST infer, and its headers."""
    parameters: dict[str, object] = {}
    if call.signature not in ("", DEFAULT_SIGNATURE):
        parameters[SIGNATURE_PARAMETER] = call.signature
    if binary:
        parameters["binary_data_output"] = True
    inputs, tail = [], []
    for name, array in arrays.items():
        shape = ",".join(map(str, array.shape))
        start = f'{{"name":{json.dumps(name)},"datatype":"{_datatype(name, array)}","shape":[{shape}],'
        if binary:
            raw = array_to_raw(array)
            tail.append(raw)
            inputs.append(f'{start}"parameters":{{"{_BINARY_SIZE}":{len(raw)}}}}}')
        else:
            inputs.append(f'{start}"data":{_flat_json(name, array)}}}')
    head = f'"parameters":{json.dumps(parameters)},' if parameters else ""
    wanted: list[dict[str, object]] = [{"name": name} for name in call.outputs]
    for item in wanted if binary else ():
        item["parameters"] = {"binary_data": True}
    outputs = f',"outputs":{json.dumps(wanted)}' if wanted else ""
    text = f'{{{head}"inputs":[{",".join(inputs)}]{outputs}}}'.encode()
    if not binary:
        return text, ()
    headers = (("content-type", "application/octet-stream"), (JSON_LENGTH, str(len(text))))
    return b"".join([text, *tail]), headers


def prediction_from_answer(answer: Answer, call: PredictCall) -> Prediction:
    """Decodes the answer of a REST infer, with or without binary tensors."""
    length = answer.headers.get(JSON_LENGTH, str(len(answer.body)))
    end = decimal(length)
    if end is None or end > len(answer.body):
        raise ProtocolError(f"The header {JSON_LENGTH} is {length!r}, of a body of {len(answer.body)} bytes.")
    text, tail = answer.body[:end], memoryview(answer.body)[end:]
    document = parse_json(text)
    try:
        outputs = {}
        for item in document["outputs"]:
            name, datatype = str(item["name"]), str(item["datatype"])
            shape = _shape(item["shape"], name)
            size = (item.get("parameters") or {}).get(_BINARY_SIZE)
            if size is None:
                outputs[name] = _json_to_array(item["data"], datatype, shape, name)
            else:
                outputs[name] = raw_to_array(tail[:size], datatype, shape, name)
                tail = tail[size:]
        version = str(document.get("model_version") or "")
        return _prediction(outputs, str(document.get("model_name") or ""), version, call)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise ProtocolError(f"Expected an inference answer as JSON; received {quote_bytes(text)}.") from exc


def metadata_from_message(data: bytes, target: Target, signature: str) -> tuple[ModelMetadata, tuple[str, ...]]:
    """Decodes the answer of a gRPC ModelMetadata: the description, and the versions that answer."""
    response = parse(inference_pb2.ModelMetadataResponse, data)
    inputs = [(item.name, item.datatype, tuple(item.shape)) for item in response.inputs]
    outputs = [(item.name, item.datatype, tuple(item.shape)) for item in response.outputs]
    versions = tuple(response.versions)
    return _metadata(response.name, versions, inputs, outputs, target, signature), versions


def metadata_from_json(data: bytes, target: Target, signature: str) -> tuple[ModelMetadata, tuple[str, ...]]:
    """Decodes the answer of a REST metadata request: the description, and the versions that answer."""
    document = parse_json(data)
    try:
        inputs, outputs = (
            [(str(item["name"]), str(item["datatype"]), tuple(map(int, item["shape"]))) for item in document[key]]
            for key in ("inputs", "outputs")
        )
        versions = tuple(map(str, document.get("versions") or ()))
        return _metadata(str(document["name"]), versions, inputs, outputs, target, signature), versions
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
        raise ProtocolError(f"Expected a model's metadata as JSON; received {quote_bytes(data)}.") from exc


def version_text(target: Target) -> str:
    """A version as the protocol writes it; empty for the newest."""
    if target.label is not None:
        raise UnsupportedError(
            f"The Open Inference Protocol has no version labels; received {target.label!r}. Name a version."
        )
    return "" if target.version is None else str(target.version)


def raw_to_array(data: bytes | memoryview, datatype: str, shape: Sequence[int], name: str) -> npt.NDArray[Any]:
    """Decodes raw bytes; numbers are a read-only view of them."""
    kind = _numpy(datatype, name)
    count = math.prod(shape)
    if kind.kind == "O":
        values: list[bytes] = []
        position = 0
        while position + _LENGTH.size <= len(data) and len(values) < count:
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size + length
            values.append(bytes(data[position - length : position]))
        if len(values) != count or position != len(data):
            raise ProtocolError(f"Output {name!r} has {len(data)} bytes that are not {count} elements of BYTES.")
        return object_array(values).reshape(shape)
    if len(data) != count * kind.itemsize:
        raise ProtocolError(
            f"Output {name!r} has {len(data)} bytes; {datatype} {list(shape)} takes {count * kind.itemsize}."
        )
    if kind.kind == "b":
        return np.not_equal(np.frombuffer(data, np.uint8), 0).reshape(shape)
    view: npt.NDArray[Any] = np.frombuffer(data, kind if kind.kind == "V" else kind.newbyteorder("<"))
    return view.reshape(shape)


def _prediction(outputs: dict[str, npt.NDArray[Any]], model: str, version: str, call: PredictCall) -> Prediction:
    number = decimal(version)
    return Prediction(
        outputs=outputs,
        model=model or call.target.model,
        version=call.target.version if number is None else number,
        signature=call.signature or DEFAULT_SIGNATURE,
    )


def _metadata(
    name: str,
    versions: Sequence[str],
    inputs: Sequence[tuple[str, str, tuple[int, ...]]],
    outputs: Sequence[tuple[str, str, tuple[int, ...]]],
    target: Target,
    signature: str,
) -> ModelMetadata:
    signature = signature or DEFAULT_SIGNATURE
    numbers = [number for version in versions if (number := decimal(version)) is not None]
    info = SignatureInfo(name=signature, method="", inputs=_tensors(inputs), outputs=_tensors(outputs))
    return ModelMetadata(
        model=name or target.model,
        version=target.version if target.version is not None else max(numbers, default=None),
        signatures=MappingProxyType({signature: info}),
    )


def _tensors(rows: Sequence[tuple[str, str, tuple[int, ...]]]) -> Mapping[str, TensorInfo]:
    return MappingProxyType(
        {
            name: TensorInfo(name=name, dtype=OIP_DTYPES.get(datatype, datatype.lower()), shape=shape)
            for name, datatype, shape in sorted(rows)
        }
    )


def _datatype(name: str, array: npt.NDArray[Any]) -> str:
    dtype = dtype_by_numpy(array.dtype).name
    if dtype not in OIP_DATATYPES:
        raise UnsupportedError(f"Input {name!r} is {dtype}, which the Open Inference Protocol has no datatype for.")
    return OIP_DATATYPES[dtype]


def _numpy(datatype: str, name: str) -> np.dtype[Any]:
    if datatype not in OIP_DTYPES:
        raise ProtocolError(f"Output {name!r} has the unknown datatype {datatype!r}.")
    kind = dtype_by_name(OIP_DTYPES[datatype]).numpy
    if kind is None:
        raise UnsupportedError(f"Output {name!r} is {datatype}, which numpy lacks. Install ml_dtypes.")
    return kind


def _flat_json(name: str, array: npt.NDArray[Any]) -> str:
    if array.dtype.kind != "O":
        return array_json(array.ravel())
    try:
        return json.dumps([value.decode() for value in array.ravel().tolist()])
    except UnicodeDecodeError as exc:
        raise InvalidInputError(
            f"Input {name!r} holds bytes that are no UTF-8 text, which JSON cannot carry, and the server does not "
            "offer binary tensors. Use gRPC."
        ) from exc


def _json_to_array(value: Any, datatype: str, shape: Sequence[int], name: str) -> npt.NDArray[Any]:
    if _numpy(datatype, name).kind == "O":
        value = strings_of_json(value).ravel().tolist()
    return _values_to_array(value, datatype, shape, name)


def _values_to_array(values: list[Any], datatype: str, shape: Sequence[int], name: str) -> npt.NDArray[Any]:
    kind = _numpy(datatype, name)
    try:
        array = object_array(values) if kind.kind == "O" else numbers_of_json(values, kind)
    except (ValueError, OverflowError) as exc:
        raise ProtocolError(f"Output {name!r} is not {datatype}: {exc}.") from exc
    if array.size != math.prod(shape):
        raise ProtocolError(f"Output {name!r} has {array.size} values; {list(shape)} takes {math.prod(shape)}.")
    return array.reshape(shape)


def _shape(sizes: Iterable[Any], name: str) -> tuple[int, ...]:
    shape = tuple(sizes)
    if len(shape) > MAX_RANK or not all(type(size) is int and size >= 0 for size in shape) or not has_room(shape):
        raise ProtocolError(f"Output {name!r} has the shape {reprlib.repr(shape)}, which no array has.")
    return shape
