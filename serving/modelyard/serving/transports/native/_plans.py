"""What the native core may answer itself: plans for the keys that requests have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import modelyard_core
import numpy as np
import numpy.typing as npt

from modelyard.artifact import PREDICT_METHOD
from modelyard.errors import ModelyardError, PredictionError
from modelyard.serving.batching import BatchCounts
from modelyard.serving.config import ServerOptions
from modelyard.serving.metrics import Exemplar, Metrics, ModelStatistics, Native
from modelyard.serving.repository import ModelManager
from modelyard.serving.requests import ModelSpec
from modelyard.serving.rollout import Rollout
from modelyard.serving.servables import Plan, Servable, plan_of
from modelyard.wire import DType, dtype_by_name

_Batch = Sequence[tuple[bytes, tuple[int, ...]]]
#: A shape, and bytes in C order; of strings, each.
_Output = tuple[tuple[int, ...], bytes | list[bytes | str]]
#: Label, signature and outputs, as requests name them.
_Key = tuple[str | None, str, tuple[str, ...]]

#: Keys of a model that are planned for again when another version is to answer them.
_MAX_KEYS = 64


class Batches:
    """Computes the batches of one plan."""

    def __init__(
        self, manager: ModelManager, spec: ModelSpec, plan: Plan, metrics: Metrics, rollout: Rollout | None = None
    ) -> None:
        self._rollout = rollout
        self._name = plan.name
        self._manager = manager
        self._spec = spec
        self._servable: Servable = plan.servable
        batching = plan.servable.batching
        self._counts = None if batching is None else BatchCounts(metrics, batching)
        self._graph = plan.signature.compute
        self._inputs = [(each.name, dtype_by_name(each.dtype).numpy) for each in plan.signature.inputs]
        dtypes = {each.name: dtype_by_name(each.dtype) for each in plan.signature.outputs}
        self._names = plan.outputs
        self._outputs = [(name, dtypes[name]) for name in plan.outputs]

    def __call__(self, batch: _Batch, waited: Sequence[tuple[int, float]] | None) -> list[_Output] | None:
        """Computes a batch, on a thread of the core; see ``_Run`` in its stub."""
        try:
            watcher = self._manager.watcher(self._spec)
            version = watcher.lend(self._spec)
        except ModelyardError:
            # The general path says what is the matter.
            return None
        try:
            if version.loaded is not self._servable:
                return None
            inputs = self._arrays(batch)
            outputs = self._servable.compute(self._graph, inputs, self._names)
        finally:
            watcher.give_back(version)
        if waited is not None and self._counts is not None:
            for rows, microseconds in waited:
                self._counts.request(rows)
                self._counts.waited(microseconds)
            self._counts.execution(sum(rows for rows, _ in waited), size=batch[0][1][0])
        return [_plain(outputs[name], dtype) for name, dtype in self._outputs]

    def shadow(self, inputs: _Batch, outputs: Sequence[_Output]) -> None:
        """Takes a request that was answered and that a shadow is to compute, too."""
        if self._rollout is not None:
            self._rollout.shadow(
                self._servable.name,
                version=self._servable.version,
                signature=self._name,
                inputs=self._arrays(inputs),
                outputs={
                    name: _array(dtype, *output) for (name, dtype), output in zip(self._outputs, outputs, strict=True)
                },
            )

    def _arrays(self, batch: _Batch) -> dict[str, npt.NDArray[Any]]:
        return {
            name: np.ndarray(shape, dtype, data)
            for (name, dtype), (data, shape) in zip(self._inputs, batch, strict=True)
        }


def _array(dtype: DType, shape: tuple[int, ...], values: bytes | list[bytes | str]) -> npt.NDArray[Any]:
    if isinstance(values, bytes):
        return np.ndarray(shape, dtype.numpy, values)
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _plain(array: npt.NDArray[Any], dtype: DType) -> _Output:
    if dtype.name == "string":
        return array.shape, array.ravel().tolist()
    if array.dtype != dtype.numpy:
        raise PredictionError(f"An output is {array.dtype}; the signature promises {dtype.name}.")
    return array.shape, array.tobytes()


class Plans:
    """Finds out for the core which requests it may answer itself."""

    def __init__(
        self,
        server: modelyard_core.Server,
        manager: ModelManager,
        metrics: Metrics,
        statistics: ModelStatistics,
        options: ServerOptions,
        rollout: Rollout | None,
    ) -> None:
        self._server = server
        self._rollout = rollout
        self._manager = manager
        self._metrics = metrics
        self._statistics = statistics
        self._options = options
        #: By model, keys with a plan that name no version.
        self._learned: dict[str, dict[_Key, None]] = {}
        manager.when_configured(server.forget)
        manager.when_moved(self._learn_again)
        manager.before_suspending(self._give_up)
        metrics.before_reading(self.fetch)
        statistics.before_reading(self.fetch)

    def learn(self, model: str, version: int | None, label: str | None, signature: str, outputs: Sequence[str]) -> None:
        """Adds a plan for a key to the core, where a graph of numbers alone answers requests with it."""
        try:
            self._learn(model, version, label, signature, outputs)
        finally:
            self._server.learned(model, version, label, signature, list(outputs))

    def _learn(
        self, model: str, version: int | None, label: str | None, signature: str, outputs: Sequence[str]
    ) -> None:
        spec = ModelSpec(name=model, version=version, label=label, signature=signature)
        try:
            with self._manager.acquire(spec) as servable:
                plan = plan_of(servable, spec.signature_name, tuple(outputs), self._metrics)
        except ModelyardError:
            # The general path says what is wrong with such requests.
            return
        if not self._is_usual(plan):
            return
        described = plan.signature
        dtypes = {spec.name: spec.dtype for spec in described.outputs}
        shapes = servable.check_shapes
        batching = servable.batching
        most = self._options.max_batch_rows if batching is None else batching.execution_batch_size
        watcher = self._manager.watcher(spec)
        log = watcher.config.prediction_log
        self._server.add_plan(
            model=model,
            version=version,
            label=label,
            signature=signature,
            wanted=list(outputs),
            answers=servable.version,
            name=plan.name,
            backend=servable.backend.name,
            inputs=[(each.name, each.dtype, each.shape if shapes else None) for each in described.inputs],
            outputs=[(name, dtypes[name]) for name in plan.outputs],
            run=Batches(self._manager, spec, plan, self._metrics, self._rollout),
            logged=0.0 if log is None else log.rate,
            max_rows=most,
            shared=plan.shared if batching is None else described.batched,
            parallel=self._options.parallel_batches,
            elsewhere=servable.backend.on_device,
            batching=None
            if batching is None
            else (batching.timeout_s, batching.max_queued_rows, batching.allowed_batch_sizes),
        )
        # Replaced, never changed: versions are loaded on threads of their own.
        learned = {**self._learned.get(model, {}), (label, signature, tuple(outputs)): None}
        if version is None and len(learned) <= _MAX_KEYS:
            self._learned[model] = learned
        # Each plan holds what it computes with, and those before it stay until their statistics are fetched.
        self._server.forget(model, [each.version for each in watcher.loaded()])
        self.fetch()
        if watcher.config.prediction_log is not log:
            # It was configured anew meanwhile.
            self._server.forget(model)

    def _learn_again(self, model: str) -> None:
        """Adds plans for the keys of a model anew, at once: another version may be theirs.

        Otherwise Python would answer all requests that come until the plan that the first of them asks for is there.
        """
        for label, signature, outputs in self._learned.pop(model, ()):
            self.learn(model, None, label, signature, outputs)

    def _give_up(self, servable: Servable, _: Sequence[int], limit_s: float, text: str) -> None:
        self._server.give_up(servable.name, servable.version, limit_s, text)

    def _is_usual(self, plan: Plan) -> bool:
        servable, signature = plan.servable, plan.signature
        return (
            signature.decode is None
            # What the core cannot answer after all is computed again: that would advance a state twice.
            and not signature.stateful
            # Requests of several lengths in one batch are padded in Python.
            and not (servable.batching is not None and servable.batching.pad_variable_length)
            and not servable.defaults.get(signature.compute)
            and bool(signature.inputs)
            and not (self._options.check_methods and signature.method != PREDICT_METHOD)
        )

    def give_up(self) -> None:
        """Has the core hand over what waits or is computed."""
        for servable in self._manager.loaded():
            self._server.give_up(servable.name, servable.version, 0.0, None)

    def fetch(self) -> None:
        """Adds what the core has counted to the metrics and the statistics."""
        for found in self._server.take_statistics():
            self._add(found)

    def _add(self, found: Mapping[str, Any]) -> None:
        model, version = found["model"], found["version"]
        for api, entrypoint, status, count in found["failed"]:
            self._metrics.add_failures(model, api=api, entrypoint=entrypoint, status=status, count=count)
        for reason, count in found["refused"].items():
            self._metrics.refuse(reason, model, count)
        for client, status, count in found["clients"]:
            self._metrics.count_client(client, model, status, count)
        if not found["succeeded"]:
            return
        for api, entrypoint, counts, native, exemplars in found["requests"]:
            self._metrics.add_requests(
                model,
                api=api,
                entrypoint=entrypoint,
                counts=counts,
                native=Native(*native),
                exemplars=[(index, Exemplar(trace, us, ms / 1e3)) for index, trace, us, ms in exemplars],
            )
        self._metrics.counter(
            ":modelyard:serving:predictions", {"model": model, "version": str(version), "status": "OK"}
        ).add(found["succeeded"])
        counts, native = found["runtime"]
        runtime = found["backend"]
        if counts:
            labels = {"model_name": model, "API": "Predict", "runtime": runtime}
            self._metrics.histogram(":tensorflow:serving:runtime_latency", labels).merge(Native(*native), counts)
        self._metrics.parts(model, version, found["signature"], runtime).merge(found)
        self._statistics.add_counted(found)
