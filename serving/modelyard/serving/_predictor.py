"""The data plane: what a request means, with no transport in it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from modelyard.artifact import CLASSIFY_METHOD, PREDICT_METHOD, REGRESS_METHOD, Signature
from modelyard.errors import InternalError, InvalidModelSpecError, InvalidRequestError, ModelyardError
from modelyard.serving._inference import Classification, InferenceTask, Regression, check_tasks, infer
from modelyard.serving._manager import ModelManager
from modelyard.serving._metrics import Metrics
from modelyard.serving._requests import Arrays, ModelSpec, Prediction, PredictRequest
from modelyard.serving._servable import Servable
from modelyard.serving._states import VersionStatus
from modelyard.serving._statistics import ModelStatistics
from modelyard.serving._validation import check_output_filter
from modelyard.wire import grpc_status_of, tensorflow_pb2

_T = TypeVar("_T")
#: A hop to a worker thread and back costs about this much: below it a prediction is cheaper in place.
_INLINE_SECONDS = 0.0004
_LEARNING_RATE = 0.1
_NO_SIGNATURE = "No signature was found with the name"


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """What a metadata request is answered with.

    Attributes:
        spec: The request's spec with the version filled in.
        definitions: SignatureDefs by signature name.
    """

    spec: ModelSpec
    definitions: Mapping[str, tensorflow_pb2.SignatureDef]


class Predictor:
    """Answers requests; every transport is an adapter on it.

    Args:
        manager: Where the servables are.
        metrics: Where predictions are counted.
        workers: Threads that compute.
        check_methods: Calls by another method than the signature's are refused.
        inline: Small requests to fast models are computed on the event loop
            itself. Not with batching, where a request waits for company.
    """

    def __init__(
        self, manager: ModelManager, metrics: Metrics, *, workers: int, check_methods: bool = False, inline: bool = True
    ) -> None:
        self._manager = manager
        self._metrics = metrics
        self._check_methods = check_methods
        self._inline = inline
        #: Moving average of the seconds that a request to a model's signature takes.
        self._seconds: dict[tuple[str, str], float] = {}
        #: What every door's requests are counted in.
        self.statistics = ModelStatistics()
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="modelyard-predict")

    async def submit(self, request: PredictRequest, encode: Callable[[Prediction], _T]) -> _T:
        """Computes one prediction, off the event loop unless that would cost more than the prediction.

        Args:
            request: The request.
            encode: Turns the prediction into what the transport sends; it is
                called on the same thread.

        Raises:
            InvalidModelSpecError: No model name, or an unknown label.
            InvalidRequestError: The inputs are malformed or do not fit.
            ModelNotFoundError: Unknown model or version.
            PredictionError: The model failed.
            SignatureNotFoundError: Unknown signature.
            UnavailableError: The model was not loaded yet.
        """
        arrived_ns = time.perf_counter_ns()
        key = (request.spec.name, request.spec.signature_name)
        if request.small and self._inline and self._seconds.get(key, math.inf) < _INLINE_SECONDS:
            return self._predict(request, encode, arrived_ns)
        return await self.offload(lambda: self._predict(request, encode, arrived_ns))

    async def offload(self, work: Callable[[], _T]) -> _T:
        """Runs work that would block the event loop on a worker thread.

        Args:
            work: Called without arguments.
        """
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def predict(self, request: PredictRequest) -> Prediction:
        """Computes one prediction on the calling thread; raises as :meth:`submit` does.

        Args:
            request: The request.
        """
        return self._predict(request, lambda prediction: prediction, time.perf_counter_ns())

    def _predict(self, request: PredictRequest, encode: Callable[[Prediction], _T], arrived_ns: int) -> _T:
        name = request.spec.signature_name
        started = time.perf_counter()
        with (
            self._manager.acquire(request.spec) as servable,
            self.statistics.measure(servable.name, servable.version, arrived_ns=arrived_ns) as timing,
        ):
            signature = servable.signature(name)
            inputs = request.inputs(signature)
            outputs = check_output_filter(signature, request.output_filter)
            if self._check_methods and signature.method != PREDICT_METHOD:
                # Upstream's code for this is INTERNAL, for the other methods INVALID_ARGUMENT.
                raise InternalError(
                    f"Expected prediction signature method_name to be {PREDICT_METHOD}. Was: {signature.method}"
                )
            timing.decoded(_rows(signature, inputs))
            values = self._timed(servable, "Predict", lambda: servable.run(signature, inputs, outputs))
            timing.computed()
            spec = replace(request.spec, version=servable.version, label=None, signature=name)
            result = encode(Prediction(spec=spec, outputs=values))
        self._learn((request.spec.name, name), time.perf_counter() - started)
        return result

    def _learn(self, key: tuple[str, str], seconds: float) -> None:
        """Follows how long requests take; one slow request is enough to leave the event loop alone for a while."""
        known = self._seconds.get(key)
        self._seconds[key] = seconds if known is None else known + _LEARNING_RATE * (seconds - known)

    def classify(self, spec: ModelSpec, examples: Sequence[bytes]) -> Classification:
        """Classifies examples, on the calling thread.

        Args:
            spec: The servable and the signature.
            examples: Serialized ``tf.Example`` messages.

        Raises:
            InvalidModelSpecError: No model name, or an unknown label.
            InvalidRequestError: Unknown signature, one that does not suit, or bad examples.
            ModelNotFoundError: Unknown model or version.
            UnavailableError: The model was not loaded yet.
        """
        (answer,) = self._infer([InferenceTask(spec=spec, method=CLASSIFY_METHOD)], examples, _NO_SIGNATURE)
        if not isinstance(answer, Classification):
            raise InternalError("A classify task was answered with a regression. This is a bug.")
        return answer

    def regress(self, spec: ModelSpec, examples: Sequence[bytes]) -> Regression:
        """Regresses examples, on the calling thread; raises as :meth:`classify` does.

        Args:
            spec: The servable and the signature.
            examples: Serialized ``tf.Example`` messages.
        """
        (answer,) = self._infer([InferenceTask(spec=spec, method=REGRESS_METHOD)], examples, _NO_SIGNATURE)
        if not isinstance(answer, Regression):
            raise InternalError("A regress task was answered with a classification. This is a bug.")
        return answer

    def multi_inference(
        self, tasks: Sequence[InferenceTask], examples: Sequence[bytes]
    ) -> tuple[Classification | Regression, ...]:
        """Computes several tasks of one model over the same examples, on the calling thread.

        Args:
            tasks: At least one; each with a signature of its own.
            examples: Serialized ``tf.Example`` messages.

        Raises:
            InvalidModelSpecError: The tasks name no model, or several, or an unknown label.
            InvalidRequestError: Unknown signature, one that does not suit, or bad examples.
            ModelNotFoundError: Unknown model or version.
            UnavailableError: The model was not loaded yet.
            UnsupportedError: A task's method is neither classify nor regress.
        """
        if not tasks:
            raise InvalidModelSpecError("ModelSpec has no name specified.")
        check_tasks(tasks)
        return self._infer(tasks, examples, "Requested signature not found in model graph")

    def _infer(
        self, tasks: Sequence[InferenceTask], examples: Sequence[bytes], complaint: str
    ) -> tuple[Classification | Regression, ...]:
        # One servable for all tasks: their answers belong to the same version.
        with (
            self._manager.acquire(tasks[0].spec) as servable,
            self.statistics.measure(servable.name, servable.version, arrived_ns=time.perf_counter_ns()) as timing,
        ):
            for task in tasks:
                if task.spec.signature_name not in servable.signatures:
                    raise InvalidRequestError(
                        f"{complaint}: {task.spec.signature_name}; the model has "
                        f"{', '.join(sorted(servable.signatures))}."
                    )
                signature = servable.signatures[task.spec.signature_name]
                if self._check_methods and signature.method != task.method:
                    raise InvalidRequestError(
                        f"Expected signature method_name to be {task.method}. Was: {signature.method}"
                    )
            timing.decoded(len(examples))
            model = {"model": servable.name}
            self._metrics.observe(":tensorflow:serving:request_example_counts", model, len(examples))
            self._metrics.count(":tensorflow:serving:request_example_count_total", model, len(examples))
            api = "MultiInference" if len(tasks) > 1 else tasks[0].method.rpartition("/")[2].capitalize()
            answers = self._timed(servable, api, lambda: tuple(infer(servable, task, examples) for task in tasks))
            timing.computed()
            return answers

    def _timed(self, servable: Servable, api: str, work: Callable[[], _T]) -> _T:
        """Runs the runtime's part of a request, and records it."""
        labels = {"model": servable.name, "version": str(servable.version)}
        started = time.perf_counter()
        try:
            result = work()
        except ModelyardError as exc:
            self._metrics.count(":modelyard:serving:predictions", {**labels, "status": grpc_status_of(exc)})
            raise
        microseconds = (time.perf_counter() - started) * 1e6
        self._metrics.count(":modelyard:serving:predictions", {**labels, "status": "OK"})
        self._metrics.observe(
            ":tensorflow:serving:runtime_latency",
            {"model_name": servable.name, "API": api, "runtime": servable.backend.name},
            microseconds,
        )
        return result

    def metadata(self, spec: ModelSpec) -> ModelMetadata:
        """Describes a servable's signatures.

        Args:
            spec: Which servable; its signature is ignored.

        Raises:
            InvalidModelSpecError: No model name, or an unknown label.
            ModelNotFoundError: Unknown model or version.
            UnavailableError: The model was not loaded yet.
        """
        with self._manager.acquire(spec) as servable:
            return ModelMetadata(
                spec=ModelSpec(name=spec.name, version=servable.version), definitions=servable.definitions
            )

    def status(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """States of a model's versions, newest first.

        Args:
            name: The model.
            version: One version; None for all.

        Raises:
            ModelNotFoundError: Unknown model or version.
        """
        return self._manager.status(name, version)

    def close(self) -> None:
        """Drops work that has not begun, waits for work in progress, and ends the worker threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _rows(signature: Signature, inputs: Arrays) -> int:
    """How many examples a request holds: the size of the first input's batch dimension, where it has one."""
    for spec in signature.inputs:
        array = inputs.get(spec.name)
        if array is not None and array.ndim and (spec.shape is None or spec.shape[:1] == (-1,)):
            return len(array)
    return 1
