"""What the data plane needs to know of a signature, worked out once per version and not per request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from modelyard.artifact import Signature
from modelyard.errors import InternalError, ModelyardError
from modelyard.serving._costs import BatchCost, RequestCost
from modelyard.serving._metrics import Metrics
from modelyard.serving._requests import Arrays, ModelSpec
from modelyard.serving._servable import Servable
from modelyard.serving._validation import check_output_filter, shape_fits
from modelyard.wire import dtype_by_name, grpc_status_of

#: A batch that takes so many times as long as those before was interrupted, or counts as interrupted at first.
_OUTLIER = 4.0
_PREDICTIONS = ":modelyard:serving:predictions"
#: Strangers may ask for any order of any outputs: so many are remembered per version.
_MAX_PLANS = 64
#: Of any batch size: so many combinations of shapes are remembered per plan.
_MAX_SHAPES = 256


class Plan:
    """One signature of one version, with the outputs asked for.

    Args:
        servable: The version.
        signature: The signature.
        name: Its name.
        outputs: The outputs to compute.
        metrics: Where predictions are counted.
    """

    def __init__(
        self, servable: Servable, signature: Signature, *, name: str, outputs: tuple[str, ...], metrics: Metrics
    ) -> None:
        self.servable = servable
        self.signature = signature
        self.name = name
        self.outputs = outputs
        self._inputs = [(spec.name, dtype_by_name(spec.dtype).numpy, spec.shape) for spec in signature.inputs]
        #: Shapes of inputs that fit, in the order of the signature.
        self._known_shapes: set[tuple[tuple[int, ...], ...]] = set()
        self._rows_of = next((spec.name for spec in signature.inputs if not spec.shape or spec.shape[0] == -1), None)
        #: Whether requests may share a batch.
        self.shared = signature.decode is None and signature.compute in servable.row_wise
        #: What part of the time for one row a batch takes whatever it holds, as loading found it.
        self.fixed = servable.fixed.get(signature.compute, 0.0)
        #: What answers say of the request: all of a plan's say the same.
        self.spec = ModelSpec(name=servable.name, version=servable.version, signature=name)
        #: The queues of the data plane, by inner shape.
        self.lanes: dict[Any, Any] = {}
        #: Moving average of the seconds that a row takes; infinite until one was computed.
        self.row_seconds = math.inf
        #: What batches of the newest one's shapes took by the clock on the wall, with what others on this machine take
        #: from it: so long callers wait.
        self.batch_cost = BatchCost(self.fixed)
        #: What requests cost that a worker thread takes whole: with what is decoded before the graph.
        self.whole_cost = RequestCost()
        self._metrics = metrics
        self._labels = {"model": servable.name, "version": str(servable.version)}
        self.succeeded = metrics.counter(_PREDICTIONS, {**self._labels, "status": "OK"})
        self.latency = metrics.histogram(
            ":tensorflow:serving:runtime_latency",
            {"model_name": servable.name, "API": "Predict", "runtime": servable.backend.name},
        )

    def check(self, inputs: Arrays) -> Arrays:
        """Checks inputs, and fills in defaults; raises as :meth:`Servable.complete` does.

        Args:
            inputs: Arrays by input name.
        """
        if len(inputs) == len(self._inputs):
            shapes = []
            for name, dtype, _ in self._inputs:
                array = inputs.get(name)
                if array is None or array.dtype != dtype:
                    break
                shapes.append(array.shape)
            else:
                if self._fit(tuple(shapes)):
                    return inputs
        # Something is missing or wrong: this finds out what, and says it.
        return self.servable.complete(self.signature, inputs)

    def _fit(self, shapes: tuple[tuple[int, ...], ...]) -> bool:
        if not self.servable.check_shapes or shapes in self._known_shapes:
            return True
        if not all(shape_fits(have, want) for have, (_, _, want) in zip(shapes, self._inputs, strict=True)):
            return False
        if len(self._known_shapes) < _MAX_SHAPES:
            self._known_shapes.add(shapes)
        return True

    def failed(self, error: ModelyardError) -> None:
        """Counts a prediction that failed.

        Args:
            error: Why.
        """
        self._metrics.count(_PREDICTIONS, {**self._labels, "status": grpc_status_of(error)})

    def rows(self, inputs: Arrays) -> int:
        """How many examples a request holds: the size of the batch dimension, where there is one.

        Args:
            inputs: Complete inputs.
        """
        array = None if self._rows_of is None else inputs.get(self._rows_of)
        return len(array) if array is not None and array.ndim else 1

    def learn(self, seconds: float, rows: int) -> None:
        """Follows how long rows take.

        Args:
            seconds: What a batch took of the core.
            rows: Its rows.
        """
        if rows < 1:
            # Nothing was computed to speak of: whoever sends such requests must not make a model look fast.
            return
        known = self.row_seconds
        each = seconds / rows
        # Whoever else has the core for a moment must not make a model look slow.
        self.row_seconds = each if math.isinf(known) else known + 0.1 * (min(each, _OUTLIER * known) - known)


def plan_of(servable: Servable, name: str, output_filter: tuple[str, ...], metrics: Metrics) -> Plan:
    """The plan for a request.

    Args:
        servable: The version.
        name: The signature's resolved name.
        output_filter: Outputs asked for; empty for all.
        metrics: Where predictions are counted.

    Raises:
        InvalidInputError: An output is unknown or asked for twice.
        SignatureNotFoundError: There is no such signature.
    """
    key = (name, output_filter)
    plan: Plan | None = servable.plans.get(key)
    if plan is None:
        signature = servable.signature(name)
        outputs = check_output_filter(signature, output_filter)
        plan = Plan(servable, signature, name=name, outputs=outputs, metrics=metrics)
        if len(servable.plans) < _MAX_PLANS:
            plan = servable.plans.setdefault(key, plan)
    return plan


def merge(parts: Sequence[Arrays]) -> Arrays:
    """Several requests' inputs as one batch; a batch of one is not copied.

    Args:
        parts: Inputs of the same names, dtypes and inner shapes.
    """
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def check_rows(outputs: Arrays, rows: Sequence[int]) -> None:
    """Checks that the outputs of several requests can be told apart.

    Args:
        outputs: The outputs of the batch.
        rows: Rows of each request.

    Raises:
        InternalError: An output has another number of rows.
    """
    if len(rows) == 1:
        return
    total = sum(rows)
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != total:
            raise InternalError(
                f"Output {name!r} of a batch of {total} rows has shape {list(array.shape)}. This is a bug."
            )


def split(outputs: Arrays, rows: Sequence[int]) -> list[Arrays]:
    """A batch's outputs as views for each request.

    Args:
        outputs: The outputs of the batch; :func:`check_rows` found nothing wrong.
        rows: Rows of each request.
    """
    if len(rows) == 1:
        return [outputs]
    results: list[Arrays] = []
    start = 0
    for count in rows:
        results.append({name: array[start : start + count] for name, array in outputs.items()})
        start += count
    return results
