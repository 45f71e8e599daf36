"""Classify, Regress and MultiInference: predictions over serialized ``tf.Example`` messages.

The checks and their words are those of TensorFlow Serving's classifier.cc, regressor.cc and multi_inference.cc.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from modelyard.artifact import CLASSIFY_METHOD, REGRESS_METHOD, Signature
from modelyard.errors import (
    InvalidInputError,
    InvalidModelSpecError,
    InvalidRequestError,
    ModelyardError,
    UnsupportedError,
)
from modelyard.serving.metrics import Metrics, Parts
from modelyard.serving.requests import ModelSpec, format_shape
from modelyard.serving.servables import Servable
from modelyard.wire import grpc_status_of, object_array

Method = Literal["Classify", "Regress", "MultiInference"]
_INPUT = "inputs"
_CLASSES = "classes"
_SCORES = "scores"
_OUTPUT = "outputs"


@dataclass(frozen=True, kw_only=True)
class InferenceTask:
    """One task of a request over examples."""

    spec: ModelSpec
    #: ``tensorflow/serving/classify`` or ``tensorflow/serving/regress``.
    method: str


@dataclass(frozen=True, kw_only=True)
class Classification:
    """The answer of a classify task over N examples with K classes."""

    spec: ModelSpec
    #: bytes ``[N, K]``, or None where the signature has none.
    labels: npt.NDArray[Any] | None
    #: float32 ``[N, K]``, or None where the signature has none.
    scores: npt.NDArray[np.float32] | None


@dataclass(frozen=True, kw_only=True)
class Regression:
    """The answer of a regress task over N examples."""

    spec: ModelSpec
    #: float32 ``[N]``.
    values: npt.NDArray[np.float32]


def check_tasks(tasks: Sequence[InferenceTask]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if not task.spec.name:
            raise InvalidModelSpecError("Found ModelSpec with an empty model name.")
        if task.spec.name != tasks[0].spec.name:
            raise InvalidModelSpecError(
                "All ModelSpecs in a MultiInferenceRequest must access the same model name. "
                f"Received {tasks[0].spec.name!r} and {task.spec.name!r}."
            )
        if task.spec.signature_name in seen:
            raise InvalidRequestError(f"Duplicate evaluation of signature: {task.spec.signature_name}")
        seen.add(task.spec.signature_name)


def check_signature(servable: Servable, task: InferenceTask, method: Method, *, check_method: bool) -> None:
    """Checks that a version has a task's signature, and where asked that it is for the task's method."""
    signature = servable.signatures.get(task.spec.signature_name)
    if signature is None:
        complaint = "No signature was found with the name"
        if method == "MultiInference":
            complaint = "Requested signature not found in model graph"
        raise InvalidRequestError(
            f"{complaint}: {task.spec.signature_name}; the model has {', '.join(sorted(servable.signatures))}."
        )
    if check_method and signature.method != task.method:
        raise InvalidRequestError(f"Expected signature method_name to be {task.method}. Was: {signature.method}")


def parts_of(metrics: Metrics, servable: Servable, signature: str) -> Parts | None:
    """Where a call is recorded by its signature; None for a name that the model does not have."""
    if signature not in servable.signatures:
        return None
    return metrics.parts(servable.name, servable.version, signature, servable.backend.name)


@contextmanager
def timed(metrics: Metrics, servable: Servable, api: str) -> Iterator[None]:
    """Records the runtime's part of a call."""
    labels = {"model": servable.name, "version": str(servable.version)}
    started = time.perf_counter()
    try:
        yield
    except ModelyardError as exc:
        metrics.count(":modelyard:serving:predictions", {**labels, "status": grpc_status_of(exc)})
        raise
    microseconds = (time.perf_counter() - started) * 1e6
    metrics.count(":modelyard:serving:predictions", {**labels, "status": "OK"})
    runtime = {"model_name": servable.name, "API": api, "runtime": servable.backend.name}
    metrics.observe(":tensorflow:serving:runtime_latency", runtime, microseconds)


def infer(servable: Servable, task: InferenceTask, examples: Sequence[bytes]) -> Classification | Regression:
    if task.method not in (CLASSIFY_METHOD, REGRESS_METHOD):
        raise UnsupportedError(f"Unsupported signature method_name: {task.method}")
    name = task.spec.signature_name
    signature = servable.signatures[name]
    spec = replace(task.spec, version=servable.version, label=None, signature=name)
    wanted = _classify_outputs(signature) if task.method == CLASSIFY_METHOD else _regress_outputs(signature)
    if not examples:
        raise InvalidInputError("Input is empty.")
    outputs = servable.run(signature, {_INPUT: object_array(examples)}, wanted)
    if task.method == CLASSIFY_METHOD:
        return _classification(spec, outputs, len(examples))
    return _regression(spec, outputs[_OUTPUT], len(examples))


def _check_input(signature: Signature, kind: str) -> None:
    if signature.inputs[0].name != _INPUT:
        raise InvalidRequestError(
            f"No {kind} inputs found in SignatureDef: its input is {signature.inputs[0].name!r}; expected {_INPUT!r}."
        )


def _classify_outputs(signature: Signature) -> tuple[str, ...]:
    _count_inputs(signature)
    names = [spec.name for spec in signature.outputs]
    if len(names) not in (1, 2):
        raise InvalidRequestError(f"Expected one or two output Tensors, found {len(names)}")
    _check_input(signature, "classification")
    wanted = tuple(name for name in (_CLASSES, _SCORES) if name in names)
    if not wanted:
        raise InvalidRequestError(
            f'Expected classification signature outputs to contain at least one of "{_CLASSES}" or "{_SCORES}". '
            f"Signature was: outputs {names}"
        )
    return wanted


def _regress_outputs(signature: Signature) -> tuple[str, ...]:
    _count_inputs(signature)
    names = [spec.name for spec in signature.outputs]
    if len(names) != 1:
        raise InvalidRequestError(f"Expected one output Tensor. The signature has {names}.")
    _check_input(signature, "regression")
    if names != [_OUTPUT]:
        raise InvalidRequestError(
            f"No regression outputs found in SignatureDef: its output is {names[0]!r}; expected {_OUTPUT!r}."
        )
    return (_OUTPUT,)


def _count_inputs(signature: Signature) -> None:
    if len(signature.inputs) != 1:
        raise InvalidRequestError(
            f"Expected one input Tensor. The signature has {sorted(spec.name for spec in signature.inputs)}."
        )


def _classification(spec: ModelSpec, outputs: Mapping[str, npt.NDArray[Any]], count: int) -> Classification:
    for name, kind in ((_CLASSES, np.dtype(object)), (_SCORES, np.dtype(np.float32))):
        array = outputs.get(name)
        if array is None:
            continue
        if array.ndim != 2:
            raise InvalidRequestError(
                f"Expected Tensor shape: [batch_size num_classes] but got {format_shape(array.shape)}"
            )
        if array.dtype != kind:
            wanted = "DT_STRING" if name == _CLASSES else "DT_FLOAT"
            raise InvalidRequestError(f"Expected {name} Tensor of {wanted}. Got: {array.dtype}")
        if array.shape[0] != count:
            raise InvalidRequestError(f"Expected {name} output batch size of {count}. Got: {array.shape[0]}")
    labels, scores = outputs.get(_CLASSES), outputs.get(_SCORES)
    if labels is not None and scores is not None and labels.shape[1] != scores.shape[1]:
        raise InvalidRequestError(
            f"Tensors class and score should match in dim_size(1). Got {labels.shape[1]} vs. {scores.shape[1]}"
        )
    return Classification(spec=spec, labels=labels, scores=scores)


def _regression(spec: ModelSpec, array: npt.NDArray[Any], count: int) -> Regression:
    if not (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)):
        raise InvalidRequestError(
            "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got "
            f"{format_shape(array.shape)}"
        )
    if array.shape[0] != count:
        raise InvalidRequestError(f"Input batch size did not match output batch size: {count} vs. {array.shape[0]}")
    if array.dtype != np.float32:
        raise InvalidRequestError(f"Expected output Tensor of DT_FLOAT.  Got: {array.dtype}")
    return Regression(spec=spec, values=array.reshape(-1))
