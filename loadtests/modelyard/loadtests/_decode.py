"""Answers: from bytes to arrays, and whether they are right."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from modelyard.errors import LoadTestError, ModelyardError
from modelyard.loadtests._answers import check_answer
from modelyard.loadtests._requests import Request, strings
from modelyard.wire import PREDICTION_SERVICE, inference_pb2, serving_pb2, tensor_to_array

#: Recorded and fresh numbers may differ by this much: another machine rounds in another order.
_TOLERANCE = 1e-3
_REMEMBERED = 50_000

_NUMPY = {"FP32": "float32", "FP64": "float64", "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "BOOL": "bool"}
_CONTENTS = {
    "FP32": "fp32_contents", "FP64": "fp64_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "BOOL": "bool_contents", "BYTES": "bytes_contents",
}  # fmt: skip
#: Dtypes of a classifier's outputs, which JSON does not tell.
_CLASSIFIER = {"class_id": "int64", "probabilities": "float32"}


class Checker:
    """Decides about answers; the same answer to the same request is decided once.

    Args:
        class_names: Names of the classes of the model, in order.
    """

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self._class_names = class_names
        self._known: dict[tuple[int, bytes], int] = {}

    def hits(self, request: Request, body: bytes) -> int:
        """How many rows of an answer agree with what is expected.

        Args:
            request: What was asked.
            body: The answer.

        Raises:
            LoadTestError: The answer is wrong in itself: shapes, dtypes, sums,
                or no message at all.
        """
        key = (id(request), body)
        known = self._known.get(key)
        if known is not None:
            return known
        hits = self.judge(request, decode(request, body))
        if len(self._known) < _REMEMBERED and len(body) < 1 << 14:
            self._known[key] = hits
        return hits

    def judge(self, request: Request, outputs: Mapping[str, npt.NDArray[Any]]) -> int:
        """As :meth:`hits`, of an answer that is decoded already.

        Args:
            request: What was asked.
            outputs: The outputs.

        Raises:
            LoadTestError: The answer is wrong in itself.
        """
        if isinstance(request.expected, np.ndarray):
            check_answer(outputs, request.rows, self._class_names)
            return int(np.sum(outputs["class_id"] == request.expected))
        if request.expected is None:
            return request.rows
        return request.rows if _agree(outputs, request.expected) else 0


def decode(request: Request, body: bytes) -> dict[str, npt.NDArray[Any]]:
    """Reads an answer.

    Args:
        request: What was asked.
        body: The answer of that API.

    Raises:
        LoadTestError: The answer is no answer of that API.
    """
    try:
        return _DECODERS[request.api](request, body)
    except (DecodeError, KeyError, TypeError, ValueError, ModelyardError) as exc:
        raise LoadTestError(f"Wrong answer: not one of {request.kind}: {type(exc).__name__}: {exc}") from exc


def _grpc(request: Request, body: bytes) -> dict[str, npt.NDArray[Any]]:
    name = request.path.rpartition("/")[2]
    if name != "Predict":
        answer = PREDICTION_SERVICE[name].response.FromString(body)
        return _results(answer.results if name == "MultiInference" else [answer.result])
    outputs = serving_pb2.PredictResponse.FromString(body).outputs
    return {key: tensor_to_array(tensor) for key, tensor in outputs.items()}


def _results(results: Iterable[Any]) -> dict[str, npt.NDArray[Any]]:
    """Classes and values of Classify, Regress and MultiInference."""
    found: dict[str, npt.NDArray[Any]] = {}
    for index, result in enumerate(results):
        if isinstance(result, serving_pb2.InferenceResult):
            result = getattr(result, result.WhichOneof("result"))
        if isinstance(result, serving_pb2.ClassificationResult):
            scored = [each for row in result.classifications for each in row.classes]
            found[f"{index} label"] = strings([each.label.encode() for each in scored])
            found[f"{index} score"] = np.array([each.score for each in scored], dtype=np.float32)
        else:
            found[f"{index} value"] = np.array([row.value for row in result.regressions], dtype=np.float32)
    return found


def _rest(request: Request, body: bytes) -> dict[str, npt.NDArray[Any]]:
    outputs = json.loads(body)["outputs"]
    if not isinstance(outputs, dict):
        outputs = {"": outputs}
    return {name: _array(values, _CLASSIFIER.get(name)) for name, values in outputs.items()}


def _grpc_v2(request: Request, body: bytes) -> dict[str, npt.NDArray[Any]]:
    answer = inference_pb2.ModelInferResponse.FromString(body)
    found = {}
    for index, output in enumerate(answer.outputs):
        if answer.raw_output_contents:
            found[output.name] = _from_raw(answer.raw_output_contents[index], output.datatype, list(output.shape))
        else:
            values = list(getattr(output.contents, _CONTENTS[output.datatype]))
            found[output.name] = _array(values, _NUMPY.get(output.datatype)).reshape(list(output.shape))
    return found


def _rest_v2(request: Request, body: bytes) -> dict[str, npt.NDArray[Any]]:
    return {
        output["name"]: _array(output["data"], _NUMPY.get(output["datatype"])).reshape(output["shape"])
        for output in json.loads(body)["outputs"]
    }


_DECODERS: Mapping[str, Callable[[Request, bytes], dict[str, npt.NDArray[Any]]]] = {
    "grpc": _grpc,
    "rest": _rest,
    "grpc-v2": _grpc_v2,
    "rest-v2": _rest_v2,
}


def _array(values: Any, dtype: str | None) -> npt.NDArray[Any]:
    if dtype is not None:
        return np.array(values, dtype=dtype)
    found = np.array(values)
    if found.dtype.kind in "USO":
        return strings([_bytes(value) for value in values])
    return found


def _bytes(value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return value if isinstance(value, bytes) else str(value).encode()


def _from_raw(raw: bytes, datatype: str, shape: list[int]) -> npt.NDArray[Any]:
    if datatype != "BYTES":
        return np.frombuffer(raw, dtype=_NUMPY[datatype]).reshape(shape)
    values, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        values.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return strings(values).reshape(shape)


def _agree(outputs: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]]) -> bool:
    if set(outputs) != set(expected):
        return False
    for name, wanted in expected.items():
        got = outputs[name]
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return False
        if got.dtype.kind == "f":
            if not np.allclose(got, wanted, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
                return False
        elif not np.array_equal(got, wanted):
            return False
    return True
