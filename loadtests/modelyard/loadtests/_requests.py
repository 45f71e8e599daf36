"""Requests ready for the wire: encoded once before the run, so that the generator has little to do within it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError
from modelyard.wire import (
    INFERENCE_SERVICE,
    PREDICTION_SERVICE,
    array_to_tensor,
    inference_pb2,
    serving_pb2,
    tensorflow_pb2,
)

Arrays = Mapping[str, npt.NDArray[Any]]
DEFAULT_SIGNATURE = "serving_default"
IMAGE_BYTES = "image_bytes"
EXAMPLE = "example"

_DATATYPES = {
    "float32": "FP32",
    "float64": "FP64",
    "int32": "INT32",
    "int64": "INT64",
    "uint8": "UINT8",
    "bool": "BOOL",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One request, and what its answer must be.

    Attributes:
        kind: API and payload, such as ``grpc image``; statistics are kept by kind.
        api: One of :data:`APIS`.
        path: Of the HTTP request; for gRPC the method's.
        body: What is sent, without gRPC's five bytes of framing; None for a GET.
        headers: Header fields besides the usual ones.
        rows: Examples in it.
        expected: Class of each row, int64 ``[rows]``, or every output as it
            was recorded; None where nothing is known.
        target: Name of the model, and of the signature.
        inputs: The inputs before they were encoded; empty where they are not known.
    """

    kind: str
    api: str
    path: str
    body: bytes | None
    headers: tuple[tuple[str, str], ...] = ()
    rows: int = 1
    expected: npt.NDArray[np.int64] | Arrays | None = None
    target: tuple[str, str] = ("", "")
    inputs: Arrays = field(default_factory=dict)


def encode(
    api: str,
    payload: str,
    *,
    model: str,
    signature: str,
    inputs: Arrays,
    expected: npt.NDArray[np.int64] | None,
) -> Request:
    """Encodes one prediction.

    Args:
        api: One of :data:`APIS`.
        payload: Name of the payload, for the statistics.
        model: Name of the model.
        signature: Name of the signature.
        inputs: Inputs by name; the first dimension counts rows.
        expected: Class of each row, int64 ``[rows]``; None where it is not known.

    Raises:
        ConfigurationError: There is no such API, or it cannot carry an input.
    """
    if api not in APIS:
        raise ConfigurationError(f"Unknown API {api!r}; expected one of {', '.join(APIS)}.")
    path, body, headers = APIS[api](model, signature, inputs)
    return Request(
        kind=f"{api} {payload}",
        api=api,
        path=path,
        body=body,
        headers=headers,
        rows=len(next(iter(inputs.values()))),
        expected=expected,
        target=(model, signature),
        inputs=inputs,
    )


_Encoded = tuple[str, bytes, tuple[tuple[str, str], ...]]


def _grpc(model: str, signature: str, inputs: Arrays) -> _Encoded:
    request = serving_pb2.PredictRequest(
        model_spec=serving_pb2.ModelSpec(name=model, signature_name=signature),
        inputs={name: array_to_tensor(array, as_content=array.dtype != object) for name, array in inputs.items()},
    )
    return PREDICTION_SERVICE["Predict"].path, request.SerializeToString(), ()


def _rest(model: str, signature: str, inputs: Arrays) -> _Encoded:
    body = {"signature_name": signature, "inputs": {name: _json_value(array) for name, array in inputs.items()}}
    path = f"/v1/models/{quote(model, safe='')}:predict"
    return path, json.dumps(body, separators=(",", ":")).encode(), (("content-type", "application/json"),)


def _grpc_v2(model: str, signature: str, inputs: Arrays) -> _Encoded:
    request = inference_pb2.ModelInferRequest(model_name=model, raw_input_contents=map(_raw, inputs.values()))
    if signature != DEFAULT_SIGNATURE:
        request.parameters["signature_name"].string_param = signature
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=_datatype(array), shape=array.shape)
    return INFERENCE_SERVICE["ModelInfer"].path, request.SerializeToString(), ()


def _rest_v2(model: str, signature: str, inputs: Arrays) -> _Encoded:
    """Tensors as bytes behind the JSON: the protocol's binary extension."""
    tails = [_raw(array) for array in inputs.values()]
    head: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "datatype": _datatype(array),
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(tail)},
            }
            for (name, array), tail in zip(inputs.items(), tails, strict=True)
        ]
    }
    if signature != DEFAULT_SIGNATURE:
        head["parameters"] = {"signature_name": signature}
    text = json.dumps(head, separators=(",", ":")).encode()
    headers = (("content-type", "application/octet-stream"), ("inference-header-content-length", str(len(text))))
    return f"/v2/models/{quote(model, safe='')}/infer", text + b"".join(tails), headers


#: How a prediction is written for each API.
APIS: Mapping[str, Callable[[str, str, Arrays], _Encoded]] = {
    "grpc": _grpc,
    "rest": _rest,
    "grpc-v2": _grpc_v2,
    "rest-v2": _rest_v2,
}


def examples(images: npt.NDArray[np.float32]) -> npt.NDArray[np.object_]:
    """Images as serialized ``tf.Example`` messages with the feature ``image``.

    Args:
        images: float32 ``[n, 28, 28, 1]``.

    Returns:
        bytes ``[n]``.
    """
    found = np.empty(len(images), dtype=object)
    for index, image in enumerate(images):
        message = tensorflow_pb2.Example()
        message.features.feature["image"].float_list.value.extend(image.ravel().tolist())
        found[index] = message.SerializeToString()
    return found


def strings(values: Sequence[bytes]) -> npt.NDArray[np.object_]:
    """Bytes as an array, which numpy would not make of them by itself.

    Args:
        values: The bytes.
    """
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _json_value(array: npt.NDArray[Any]) -> Any:
    if array.dtype == np.float32:
        # The shortest digits that are read back as the same float32, as thrifty clients send them.
        return np.array([float(str(value)) for value in array.ravel()]).reshape(array.shape).tolist()
    if array.dtype != object:
        return array.tolist()
    return [{"b64": base64.b64encode(value).decode()} for value in array.ravel()]


def _datatype(array: npt.NDArray[Any]) -> str:
    if array.dtype == object:
        return "BYTES"
    try:
        return _DATATYPES[array.dtype.name]
    except KeyError:
        raise ConfigurationError(
            f"Cannot send {array.dtype} to a v2 API here; expected {', '.join(_DATATYPES)}."
        ) from None


def _raw(array: npt.NDArray[Any]) -> bytes:
    if array.dtype == object:
        return b"".join(len(value).to_bytes(4, "little") + value for value in array.ravel())
    return array.tobytes()
