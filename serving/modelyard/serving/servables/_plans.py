"""What the data plane needs to know of a signature, computed once per version and not per request."""

from __future__ import annotations

from typing import Any

from modelyard.artifact import Signature
from modelyard.errors import ModelyardError
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import Arrays, ModelSpec, check_output_filter
from modelyard.serving.servables._servable import Servable
from modelyard.wire import grpc_status_of

_PREDICTIONS = ":modelyard:serving:predictions"
#: Clients may send any order of any outputs: so many plans are kept per version.
_MAX_PLANS = 64


class Plan:
    """One signature of one version, with the outputs asked for."""

    def __init__(
        self, servable: Servable, signature: Signature, *, name: str, outputs: tuple[str, ...], metrics: Metrics
    ) -> None:
        self.servable = servable
        self.signature = signature
        self.name = name
        self.outputs = outputs
        # A scalar has no batch dimension.
        batched = (spec.name for spec in signature.inputs if spec.shape is None or spec.shape[:1] == (-1,))
        self._rows_of = next(batched, None)
        #: Whether requests may share a batch.
        self.shared = signature.compute in servable.row_wise
        #: The model spec of its answers.
        self.spec = ModelSpec(name=servable.name, version=servable.version, signature=name)
        #: The batch queues, by inner shape.
        self.queues: dict[Any, Any] = {}
        self._metrics = metrics
        self._labels = {"model": servable.name, "version": str(servable.version)}
        self.succeeded = metrics.counter(_PREDICTIONS, {**self._labels, "status": "OK"})
        self.latency = metrics.histogram(
            ":tensorflow:serving:runtime_latency",
            {"model_name": servable.name, "API": "Predict", "runtime": servable.backend.name},
        )
        #: Where the time of its requests is recorded.
        self.parts = metrics.parts(servable.name, servable.version, name, servable.backend.name)

    def failed(self, error: ModelyardError) -> None:
        self._metrics.count(_PREDICTIONS, {**self._labels, "status": grpc_status_of(error)})

    def rows(self, inputs: Arrays) -> int:
        """The size of the batch dimension of a request; 1 where there is none."""
        array = None if self._rows_of is None else inputs.get(self._rows_of)
        return len(array) if array is not None and array.ndim else 1


def plan_of(servable: Servable, name: str, output_filter: tuple[str, ...], metrics: Metrics) -> Plan:
    key = (name, output_filter)
    plan = servable.plans.get(key)
    if plan is None:
        signature = servable.signature(name)
        outputs = check_output_filter(signature, output_filter)
        plan = Plan(servable, signature, name=name, outputs=outputs, metrics=metrics)
        if len(servable.plans) < _MAX_PLANS:
            plan = servable.plans.setdefault(key, plan)
    return plan
