"""Answers: from bytes to arrays, and whether they are right."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from modelyard.clients.protocols import PredictCall, Target, numbers_of_json, strings_of_json
from modelyard.clients.protocols.v2 import prediction_from_message
from modelyard.errors import LoadTestError, UnsupportedError
from modelyard.loadtests.traffic._answers import check_answer, check_outputs, classes_of
from modelyard.loadtests.traffic._requests import Array, Arrays, Request
from modelyard.wire import (
    OIP_DTYPES,
    PREDICTION_SERVICE,
    dtype_by_name,
    object_array,
    serving_pb2,
    tensors_to_arrays,
)

#: Recorded and fresh numbers may differ by this much: another machine rounds in another order.
_TOLERANCE = 1e-3
_REMEMBERED = 50_000

_Result = serving_pb2.InferenceResult | serving_pb2.ClassificationResult | serving_pb2.RegressionResult


class Checker:
    """Decides about answers; the same answer to the same request is decided once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], int] = {}

    def matches(self, request: Request, body: bytes) -> int:
        """How many rows of an answer agree with what is expected; 0 where nothing is."""
        key = (id(request), body)
        known = self._known.get(key)
        if known is not None:
            return known
        matches = self.judge(request, decode(request, body))
        if len(self._known) < _REMEMBERED and len(body) < 1 << 14:
            self._known[key] = matches
        return matches

    def judge(self, request: Request, outputs: Arrays) -> int:
        """As :meth:`matches`, of an answer that is decoded already."""
        if request.class_names:
            check_answer(outputs, request.rows, request.class_names)
        elif request.outputs:
            recorded = request.expected if isinstance(request.expected, Mapping) else None
            check_outputs(outputs, request.outputs, request.rows if request.per_row else None, recorded)
        if isinstance(request.expected, np.ndarray):
            return int(np.sum(classes_of(outputs, request.outputs) == request.expected))
        if request.expected is None:
            return 0
        return _agreeing(outputs, request.expected, request)


def decode(request: Request, body: bytes) -> dict[str, Array]:
    """Read the body of an answer; an error where it is none of that API."""
    try:
        return _DECODERS[request.api](request, body)
    except Exception as exc:
        # Whatever a strange answer makes of the readers: it is a wrong answer, and the run goes on.
        raise LoadTestError(f"Wrong answer: not one of {request.kind}: {type(exc).__name__}: {exc}") from exc


def _grpc(request: Request, body: bytes) -> dict[str, Array]:
    name = request.path.rpartition("/")[2]
    if name != "Predict":
        answer = PREDICTION_SERVICE[name].response.FromString(body)
        return _results(answer.results if name == "MultiInference" else [answer.result])
    return tensors_to_arrays(serving_pb2.PredictResponse.FromString(body).outputs)


def _results(results: Iterable[_Result]) -> dict[str, Array]:
    """Classes and values of Classify, Regress and MultiInference."""
    found: dict[str, Array] = {}
    for index, result in enumerate(results):
        if isinstance(result, serving_pb2.InferenceResult):
            result = getattr(result, result.WhichOneof("result"))
        if isinstance(result, serving_pb2.ClassificationResult):
            scored = [each for row in result.classifications for each in row.classes]
            found[f"{index} label"] = object_array([each.label.encode() for each in scored])
            found[f"{index} score"] = np.array([each.score for each in scored], dtype=np.float32)
        else:
            found[f"{index} value"] = np.array([row.value for row in result.regressions], dtype=np.float32)
    return found


def _rest(request: Request, body: bytes) -> dict[str, Array]:
    outputs = json.loads(body)["outputs"]
    # JSON tells neither dtypes nor the name of an output that is alone.
    if len(request.outputs) == 1:
        outputs = {next(iter(request.outputs)): outputs}
    elif not isinstance(outputs, dict):
        outputs = {"": outputs}
    known = {name: info.dtype for name, info in request.outputs.items()}
    return {name: _array(values, known.get(name)) for name, values in outputs.items()}


def _grpc_v2(request: Request, body: bytes) -> dict[str, Array]:
    model, signature = request.target
    call = PredictCall(target=Target(model), inputs=request.inputs, signature=signature, outputs=())
    return dict(prediction_from_message(body, call))


def _rest_v2(request: Request, body: bytes) -> dict[str, Array]:
    return {
        output["name"]: _array(output["data"], OIP_DTYPES[output["datatype"]]).reshape(output["shape"])
        for output in json.loads(body)["outputs"]
    }


_DECODERS: Mapping[str, Callable[[Request, bytes], dict[str, Array]]] = {
    "grpc": _grpc,
    "rest": _rest,
    "grpc-v2": _grpc_v2,
    "rest-v2": _rest_v2,
}


def _array(values: object, dtype: str | None) -> Array:
    """Values of JSON as an array; without a dtype, bytes or what numpy takes them for."""
    if dtype is None:
        first = values
        while isinstance(first, list) and first:
            first = first[0]
        return strings_of_json(values) if isinstance(first, str | dict) else np.array(values)
    if dtype == "string":
        return strings_of_json(values)
    wanted = dtype_by_name(dtype).numpy
    if wanted is None:
        raise UnsupportedError(f"numpy lacks {dtype}. Install ml_dtypes.")
    return numbers_of_json(values, wanted)


def _agreeing(outputs: Arrays, expected: Arrays, request: Request) -> int:
    """Rows that were answered as recorded: each by itself where every output has one for it, else all or none."""
    if set(outputs) != set(expected):
        return 0
    good = np.ones(request.rows, dtype=bool)
    for name, wanted in expected.items():
        got = outputs[name]
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return 0
        if got.dtype.kind == "f":
            same = np.isclose(got, wanted, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
        else:
            same = got == wanted
        rows = request.per_row and got.shape[:1] == (request.rows,)
        good &= same.reshape(request.rows, -1).all(axis=1) if rows else bool(same.all())
    return int(good.sum())
