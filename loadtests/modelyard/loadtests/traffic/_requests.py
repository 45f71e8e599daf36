"""Requests ready for the wire: encoded once before the run, so that the generator has little to do within it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from modelyard.clients import TensorInfo
from modelyard.clients.protocols import DEFAULT_SIGNATURE, Target, model_path, predict_json, predict_message
from modelyard.errors import ConfigurationError
from modelyard.wire import (
    INFERENCE_SERVICE,
    OIP_DATATYPES,
    PREDICTION_SERVICE,
    array_to_raw,
    dtype_by_numpy,
    inference_pb2,
)

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One request, and what its answer must be."""

    #: API and payload, such as ``grpc image``; statistics are kept by kind.
    kind: str
    #: One of :data:`APIS`.
    api: str
    #: Of the HTTP request; for gRPC the method's.
    path: str
    #: What is sent, without gRPC's five bytes of framing; None for a GET.
    body: bytes | None
    #: Header fields besides the usual ones.
    headers: tuple[tuple[str, str], ...] = ()
    #: Examples in it.
    rows: int = 1
    #: Class of each row, int64 ``[rows]``, or every output as it was recorded; None where nothing is known.
    expected: npt.NDArray[np.int64] | Arrays | None = None
    #: Name of the model, and of the signature.
    target: tuple[str, str] = ("", "")
    #: The inputs before they were encoded; empty where they are not known.
    inputs: Arrays = field(default_factory=dict)
    #: What the signature says of its outputs; empty where that is not known.
    outputs: Mapping[str, TensorInfo] = field(default_factory=dict)
    #: Whether an output of any length has a row for each row of the request.
    per_row: bool = False
    #: Classes of the image classifier that answers; empty for any other model.
    class_names: tuple[str, ...] = ()

    @property
    def known_rows(self) -> int:
        """Rows of which it is known how they must be answered."""
        return 0 if self.expected is None else self.rows


def encode(
    api: str,
    payload: str,
    *,
    model: str,
    signature: str,
    inputs: Arrays,
    expected: npt.NDArray[np.int64] | Arrays | None = None,
    outputs: Mapping[str, TensorInfo] | None = None,
    per_row: bool = False,
    class_names: tuple[str, ...] = (),
) -> Request:
    """Encode one prediction; the first dimension of its inputs counts rows."""
    if api not in APIS:
        raise ConfigurationError(f"Unknown API {api!r}; expected one of {', '.join(APIS)}.")
    path, body, headers = APIS[api](model, signature, inputs)
    return Request(
        kind=f"{api} {payload}",
        api=api,
        path=path,
        body=body,
        headers=headers,
        rows=next((len(array) for array in inputs.values() if array.ndim), 1),
        expected=expected,
        target=(model, signature),
        inputs=inputs,
        outputs=outputs or {},
        per_row=per_row,
        class_names=class_names,
    )


_Encoded = tuple[str, bytes, tuple[tuple[str, str], ...]]


def _grpc(model: str, signature: str, inputs: Arrays) -> _Encoded:
    return PREDICTION_SERVICE["Predict"].path, predict_message(Target(model), signature, inputs, ()), ()


def _rest(model: str, signature: str, inputs: Arrays) -> _Encoded:
    path = f"{model_path(Target(model))}:predict"
    return path, predict_json(signature, inputs), (("content-type", "application/json"),)


def _grpc_v2(model: str, signature: str, inputs: Arrays) -> _Encoded:
    request = inference_pb2.ModelInferRequest(model_name=model, raw_input_contents=map(array_to_raw, inputs.values()))
    if signature != DEFAULT_SIGNATURE:
        request.parameters["signature_name"].string_param = signature
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=_datatype(array), shape=array.shape)
    return INFERENCE_SERVICE["ModelInfer"].path, request.SerializeToString(), ()


def _rest_v2(model: str, signature: str, inputs: Arrays) -> _Encoded:
    """Tensors as bytes behind the JSON: the protocol's binary extension."""
    tails = [array_to_raw(array) for array in inputs.values()]
    head: dict[str, object] = {
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


def _datatype(array: Array) -> str:
    dtype = dtype_by_numpy(array.dtype).name
    if dtype not in OIP_DATATYPES:
        raise ConfigurationError(f"The Open Inference Protocol has no datatype for {dtype}: give --kind grpc or rest.")
    return OIP_DATATYPES[dtype]
