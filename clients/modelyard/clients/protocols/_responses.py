"""Response decoding: pure functions from the bytes on the wire to results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from modelyard.clients.protocols._fast_predict import echo_of, response_of
from modelyard.clients.protocols._json_arrays import numbers_of_json, strings_of_json
from modelyard.clients.protocols._requests import DEFAULT_SIGNATURE, SIGNATURE_DEF_FIELD, Target
from modelyard.clients.values import (
    ModelMetadata,
    ModelStatus,
    Prediction,
    SignatureInfo,
    TensorInfo,
    VersionState,
    VersionStatus,
)
from modelyard.errors import InvalidInputError, ModelyardError, ProtocolError, RequestTooLargeError, UnsupportedError
from modelyard.wire import (
    dtype_by_enum,
    dtype_by_name,
    error_from_grpc,
    error_from_http,
    error_pb2,
    serving_pb2,
    shape_from_proto,
    tensorflow_pb2,
    tensors_to_arrays,
)

_M = TypeVar("_M", bound=Message)

#: HTTP statuses that proxies answer by themselves, with a body of their own.
_OF_PROXIES = (401, 403, 413, 429, 502, 503, 504)
_MAX_QUOTE = 200
#: Characters of a server's error that are kept: errors get into logs.
_MAX_ERROR = 1 << 16


def parse(kind: type[_M], data: bytes) -> _M:
    try:
        return kind.FromString(data)
    except DecodeError as exc:
        raise ProtocolError(
            f"Expected a {kind.DESCRIPTOR.full_name}; received {len(data)} bytes that are none: {exc}"
        ) from exc


def prediction_from_message(data: bytes, target: Target, signature: str) -> Prediction:
    fast = response_of(data)
    if fast is not None:
        outputs, echo = fast
    else:
        response = parse(serving_pb2.PredictResponse, data)
        try:
            outputs = tensors_to_arrays(response.outputs)
        except (InvalidInputError, RequestTooLargeError, UnsupportedError) as exc:
            raise ProtocolError(f"The server's answer cannot be decoded: {exc.message}") from exc
        echo = echo_of(response.model_spec)
    return Prediction(
        outputs=outputs,
        model=echo.model or target.model,
        version=target.version if echo.version is None else echo.version,
        signature=echo.signature or signature or DEFAULT_SIGNATURE,
    )


def chosen(prediction: Prediction, outputs: tuple[str, ...]) -> Prediction:
    """The outputs that were asked for: some servers, MLServer among them, send all whatever the request says."""
    wanted = set(outputs) or prediction.keys()
    if not prediction or not prediction.keys() >= wanted:
        expected = f"the outputs {sorted(outputs)}" if outputs else "at least one output"
        raise ProtocolError(f"Expected {expected}; received {sorted(prediction)}.")
    if prediction.keys() == wanted:
        return prediction
    return replace(prediction, outputs={name: prediction[name] for name in outputs})


def metadata_from_message(data: bytes, target: Target) -> ModelMetadata:
    response = parse(serving_pb2.GetModelMetadataResponse, data)
    definitions = serving_pb2.SignatureDefMap()
    if SIGNATURE_DEF_FIELD not in response.metadata:
        raise ProtocolError(f"The server's metadata lacks {SIGNATURE_DEF_FIELD!r}; it has {sorted(response.metadata)}.")
    definitions = parse(serving_pb2.SignatureDefMap, response.metadata[SIGNATURE_DEF_FIELD].value)
    return _metadata(response.model_spec, definitions, target)


def status_from_message(data: bytes, target: Target) -> ModelStatus:
    return _status(parse(serving_pb2.GetModelStatusResponse, data), target)


def check_reload(data: bytes) -> None:
    status = parse(serving_pb2.ReloadConfigResponse, data).status
    if status.error_code:
        raise error_from_grpc(_code_name(status.error_code), status.error_message)


def prediction_from_json(data: bytes, target: Target, signature: SignatureInfo, outputs: tuple[str, ...]) -> Prediction:
    """Decodes the answer of a REST predict in column form.

    TensorFlow Serving's REST API drops dtypes, and the name of the output where
    there is one only: both come from the signature.
    """
    document = parse_json(data)
    if not isinstance(document, dict) or "outputs" not in document:
        raise ProtocolError(f"Expected JSON with the key 'outputs'; received {quote_bytes(data)}.")
    values = document["outputs"]
    if len(signature.outputs) == 1:
        values = {next(iter(signature.outputs)): values}
    if not isinstance(values, dict) or values.keys() != signature.outputs.keys():
        found = sorted(values) if isinstance(values, dict) else "no object"
        raise ProtocolError(f"Expected the outputs {sorted(signature.outputs)}; received {found}.")
    names = outputs or tuple(values)
    return Prediction(
        outputs={name: _array(values[name], signature.outputs[name]) for name in names},
        model=target.model,
        version=target.version,
        signature=signature.name,
    )


def metadata_from_json(data: bytes, target: Target) -> ModelMetadata:
    document = parse_json(data)
    try:
        spec, definitions = document["model_spec"], document["metadata"][SIGNATURE_DEF_FIELD]
    except (KeyError, TypeError) as exc:
        raise ProtocolError(f"Expected a model's metadata as JSON; received {quote_bytes(data)}.") from exc
    return _metadata(_message(serving_pb2.ModelSpec, spec), _message(serving_pb2.SignatureDefMap, definitions), target)


def status_from_json(data: bytes, target: Target) -> ModelStatus:
    return _status(_message(serving_pb2.GetModelStatusResponse, parse_json(data)), target)


def error_from_body(status: int, data: bytes, url: str) -> ModelyardError:
    """The error that a REST answer stands for."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and isinstance(document.get("error"), str) and status >= 400:
        text = document["error"][:_MAX_ERROR]
        error = error_from_http(status, text)
        error.server_message = text
        return error
    if status in _OF_PROXIES:
        return error_from_http(status, f"{url} answered with HTTP {status}: {quote_bytes(data)}")
    return ProtocolError(
        f"{url} answered with HTTP {status} and a body that is none of TensorFlow Serving's: {quote_bytes(data)}. "
        "Is this the address of its REST API?"
    )


def _metadata(spec: serving_pb2.ModelSpec, definitions: serving_pb2.SignatureDefMap, target: Target) -> ModelMetadata:
    signatures = {
        name: SignatureInfo(
            name=name,
            method=definition.method_name,
            inputs=_tensors(definition.inputs),
            outputs=_tensors(definition.outputs),
        )
        for name, definition in definitions.signature_def.items()
    }
    return ModelMetadata(
        model=spec.name or target.model,
        version=spec.version.value if spec.HasField("version") else target.version,
        signatures=MappingProxyType(signatures),
    )


def _tensors(infos: Mapping[str, tensorflow_pb2.TensorInfo]) -> Mapping[str, TensorInfo]:
    return MappingProxyType(
        {
            name: TensorInfo(name=name, dtype=_dtype_name(info.dtype), shape=shape_from_proto(info.tensor_shape))
            for name, info in sorted(infos.items())
        }
    )


def _dtype_name(number: int) -> str:
    try:
        return dtype_by_enum(number).name
    except (InvalidInputError, UnsupportedError):
        # Signatures may mention dtypes that no tensor on the wire has, such as DT_INVALID or DT_RESOURCE.
        names = tensorflow_pb2.DataType
        return names.Name(number).removeprefix("DT_").lower() if number in names.values() else f"dtype{number}"


def _status(response: serving_pb2.GetModelStatusResponse, target: Target) -> ModelStatus:
    states = serving_pb2.ModelVersionStatus.State
    rows = [
        VersionStatus(
            version=row.version,
            state=VersionState(states.Name(row.state)) if row.state in states.values() else VersionState.UNKNOWN,
            error_code=_code_name(row.status.error_code),
            error_message=row.status.error_message,
        )
        for row in response.model_version_status
    ]
    return ModelStatus(model=target.model, versions=tuple(sorted(rows, key=lambda row: row.version, reverse=True)))


def _code_name(number: int) -> str:
    return error_pb2.Code.Name(number) if number in error_pb2.Code.values() else str(number)


def parse_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ProtocolError(f"Expected JSON; received {quote_bytes(data)}: {exc}") from exc


def _message(kind: type[_M], document: object) -> _M:
    # Not needed for predictions, and not free to import.
    from google.protobuf import json_format

    message = kind()
    if not isinstance(document, dict):
        raise ProtocolError(f"Expected a {kind.DESCRIPTOR.full_name} as JSON; received a {type(document).__name__}.")
    try:
        # Halves of surrogate pairs, which JSON can write, end protobuf's reader with an error of the interpreter.
        json.dumps(document, ensure_ascii=False).encode()
        json_format.ParseDict(document, message, ignore_unknown_fields=True)
    except (json_format.ParseError, AttributeError, TypeError, OverflowError, UnicodeEncodeError) as exc:
        raise ProtocolError(f"Expected a {kind.DESCRIPTOR.full_name} as JSON: {exc}") from exc
    return message


def _array(value: object, info: TensorInfo) -> npt.NDArray[Any]:
    dtype = dtype_by_name(info.dtype)
    if dtype.numpy is None:
        raise UnsupportedError(f"Output {info.name!r} has dtype {info.dtype}, which numpy lacks. Install ml_dtypes.")
    try:
        array = strings_of_json(value) if dtype.name == "string" else numbers_of_json(value, dtype.numpy)
        if array.size == 0 and info.shape is not None and array.ndim < len(info.shape):
            # JSON writes an array without rows as [], whatever the shape of a row.
            array = array.reshape(array.shape + tuple(max(size, 0) for size in info.shape[array.ndim :]))
    except (ValueError, OverflowError) as exc:
        raise ProtocolError(f"Output {info.name!r} is not {info.dtype}: {exc}.") from exc
    return array


def quote_bytes(data: bytes) -> str:
    """The start of an answer, for a message."""
    text = data[: _MAX_QUOTE + 1].decode("utf-8", "replace")
    return repr(text if len(data) <= _MAX_QUOTE else text[:_MAX_QUOTE] + "...")
