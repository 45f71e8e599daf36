"""Bodies of classify, regress and multi-inference, over gRPC and REST: pure functions."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from modelyard.clients.protocols import (
    DEFAULT_SIGNATURE,
    ExamplesCall,
    Target,
    model_spec,
    numbers_of_json,
    parse,
    parse_json,
    quote_bytes,
)
from modelyard.clients.protocols.tfs._examples import Examples
from modelyard.clients.values import Classification, ClassScore, InferenceTask, Regression
from modelyard.errors import ConfigurationError, ProtocolError
from modelyard.wire import serving_pb2, tensorflow_pb2

_Result = TypeVar("_Result", Classification, Regression, Classification | Regression)
_METHODS = {"classify": "tensorflow/serving/classify", "regress": "tensorflow/serving/regress"}


def classify_message(target: Target, signature: str, examples: Examples) -> bytes:
    request = serving_pb2.ClassificationRequest(model_spec=model_spec(target, signature), input=_input(examples))
    return request.SerializeToString()


def regress_message(target: Target, signature: str, examples: Examples) -> bytes:
    request = serving_pb2.RegressionRequest(model_spec=model_spec(target, signature), input=_input(examples))
    return request.SerializeToString()


def multi_inference_message(target: Target, tasks: Sequence[InferenceTask], examples: Examples) -> bytes:
    check_tasks(tasks)
    request = serving_pb2.MultiInferenceRequest(input=_input(examples))
    for task in tasks:
        spec = model_spec(target, task.signature or DEFAULT_SIGNATURE)
        request.tasks.add(model_spec=spec, method_name=_METHODS[task.method])
    return request.SerializeToString()


def check_tasks(tasks: Sequence[InferenceTask]) -> None:
    if not tasks:
        raise ConfigurationError("Expected at least one InferenceTask; received none.")
    if not isinstance(tasks, Sequence) or not all(isinstance(task, InferenceTask) for task in tasks):
        raise ConfigurationError(f"Expected a list of InferenceTask; received {tasks!r}.")
    for task in tasks:
        if task.method not in _METHODS:
            raise ConfigurationError(f"Expected the method 'classify' or 'regress'; received {task.method!r}.")


def classification_from_message(data: bytes, call: ExamplesCall) -> Classification:
    response = parse(serving_pb2.ClassificationResponse, data)
    return _classification(response.result, response.model_spec, call.target, call.signature)


def regression_from_message(data: bytes, call: ExamplesCall) -> Regression:
    response = parse(serving_pb2.RegressionResponse, data)
    return _regression(response.result, response.model_spec, call.target, call.signature)


def multi_inference_from_message(
    data: bytes, call: ExamplesCall, tasks: Sequence[InferenceTask]
) -> tuple[Classification | Regression, ...]:
    response = parse(serving_pb2.MultiInferenceResponse, data)
    if len(response.results) != len(tasks):
        raise ProtocolError(f"Expected {len(tasks)} results, one for each task; received {len(response.results)}.")
    results: list[Classification | Regression] = []
    for result, task in zip(response.results, tasks, strict=True):
        kind = "classification_result" if task.method == "classify" else "regression_result"
        if result.WhichOneof("result") != kind:
            raise ProtocolError(f"Expected a {kind} for {task}; received {result.WhichOneof('result')}.")
        if task.method == "classify":
            results.append(
                _classification(result.classification_result, result.model_spec, call.target, task.signature)
            )
        else:
            results.append(_regression(result.regression_result, result.model_spec, call.target, task.signature))
    return tuple(results)


def one_each(result: _Result, examples: Examples) -> _Result:
    """What a server says of examples; of another number of results nobody knows whose each of them is."""
    received, expected = (
        len(result.rows if isinstance(result, Classification) else result.values),
        len(examples.examples),
    )
    if received != expected:
        raise ProtocolError(f"Expected {expected} results, one for each example; received {received}.")
    return result


def examples_json(signature: str, examples: Examples) -> bytes:
    body: dict[str, object] = {"signature_name": signature} if signature else {}
    if examples.context is not None:
        body["context"] = _features(examples.context)
    body["examples"] = [_features(example) for example in examples.examples]
    return json.dumps(body, separators=(",", ":")).encode()


def classification_from_json(data: bytes, call: ExamplesCall) -> Classification:
    results = _results(data)
    try:
        rows = tuple(tuple(_scored(label, score) for label, score in row) for row in results)
    except (TypeError, ValueError, OverflowError) as exc:
        raise ProtocolError(f"Expected lists of [label, score]; received {quote_bytes(data)}.") from exc
    return Classification(
        rows=rows, model=call.target.model, version=call.target.version, signature=call.signature or DEFAULT_SIGNATURE
    )


def regression_from_json(data: bytes, call: ExamplesCall) -> Regression:
    try:
        values = numbers_of_json(_results(data), np.dtype(np.float32))
        if values.ndim != 1:
            raise ValueError("nested lists")
    except (ValueError, OverflowError) as exc:
        raise ProtocolError(f"Expected a list of numbers; received {quote_bytes(data)}.") from exc
    return Regression(
        values=values,
        model=call.target.model,
        version=call.target.version,
        signature=call.signature or DEFAULT_SIGNATURE,
    )


def _scored(label: object, score: object) -> ClassScore:
    if not isinstance(label, str) or isinstance(score, bool) or not isinstance(score, (int, float)):
        raise TypeError("expected a text and a number")
    return ClassScore(label=label, score=float(score))


def _input(examples: Examples) -> serving_pb2.Input:
    message = serving_pb2.Input()
    if examples.context is None:
        message.example_list.examples.extend(examples.examples)
    else:
        message.example_list_with_context.examples.extend(examples.examples)
        message.example_list_with_context.context.CopyFrom(examples.context)
    return message


def _features(example: tensorflow_pb2.Example) -> dict[str, object]:
    return {name: _feature(feature) for name, feature in example.features.feature.items()}


def _feature(feature: tensorflow_pb2.Feature) -> list[object]:
    kind = feature.WhichOneof("kind")
    if kind == "bytes_list":
        return [{"b64": base64.b64encode(value).decode("ascii")} for value in feature.bytes_list.value]
    # A float always has a point or an exponent in JSON, by which the server knows the kind.
    return [] if kind is None else list(getattr(feature, kind).value)


def _classification(
    result: serving_pb2.ClassificationResult, spec: serving_pb2.ModelSpec, target: Target, signature: str
) -> Classification:
    return Classification(
        rows=tuple(
            tuple(ClassScore(label=item.label, score=item.score) for item in row.classes)
            for row in result.classifications
        ),
        model=spec.name or target.model,
        version=spec.version.value if spec.HasField("version") else target.version,
        signature=spec.signature_name or signature or DEFAULT_SIGNATURE,
    )


def _regression(
    result: serving_pb2.RegressionResult, spec: serving_pb2.ModelSpec, target: Target, signature: str
) -> Regression:
    return Regression(
        values=np.array([item.value for item in result.regressions], dtype=np.float32),
        model=spec.name or target.model,
        version=spec.version.value if spec.HasField("version") else target.version,
        signature=spec.signature_name or signature or DEFAULT_SIGNATURE,
    )


def _results(data: bytes) -> list[Any]:
    document = parse_json(data)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list):
        raise ProtocolError(f"Expected JSON with a list under 'results'; received {quote_bytes(data)}.")
    return results
