"""Which queue a request waits in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from modelyard.errors import InvalidInputError, ModelyardError
from modelyard.serving.batching._admission import ModelThreads
from modelyard.serving.batching._counts import BatchCounts
from modelyard.serving.batching._queue import BatchQueue, Task
from modelyard.serving.config import BatchParameters
from modelyard.serving.metrics import Metrics, ModelStatistics, RequestTimes
from modelyard.serving.requests import Arrays, current_caller
from modelyard.serving.servables import Plan, Servable, plan_of

#: Clients may send any inner shape where a model takes any: so many queues are kept for each signature.
_MAX_QUEUES = 64


class Batcher:
    """Queues requests, by TensorFlow Serving's parameters where a version has some."""

    def __init__(self, metrics: Metrics, statistics: ModelStatistics, *, max_rows: int, measured: bool = True) -> None:
        # A warm-up is no use of its signatures: only TensorFlow Serving's metrics of batching count it.
        self._signatures = metrics if measured else Metrics()
        self._metrics = metrics
        self._statistics = statistics
        self._greedy = BatchParameters.greedy(max_rows)

    def submit(self, plan: Plan, threads: ModelThreads, task: Task) -> None:
        """Queues a request whose inputs are complete."""
        batching = plan.servable.batching
        parameters = batching or self._greedy
        shapes = {array.shape[:1] for array in task.inputs.values()}
        # A model that broadcasts takes inputs of different rows, too, but not in a shared batch.
        shared = plan.shared and len(shapes) == 1 and () not in shapes
        if batching is not None:
            # What has state, or takes no batch, is one call.
            shared = plan.signature.batched and not plan.signature.stateful
            if shared:
                BatchCounts(self._metrics, batching).request(task.rows)
                self._check(plan, task, batching)
        # Without a row there is nothing to share, or to pad with.
        shared = shared and task.rows > 0
        # Only inputs of one inner shape can be stacked, unless they are padded.
        apart = shared and not parameters.pad_variable_length
        key = (shared, tuple(array.shape[1:] for array in task.inputs.values()) if apart else ())
        queue: BatchQueue | None = plan.queues.get(key)
        if queue is None:
            counts = BatchCounts(self._metrics, batching) if batching is not None and shared else None
            queue = BatchQueue(plan, threads, parameters, self._statistics, counts=counts, shared=shared)
            if len(plan.queues) < _MAX_QUEUES:
                queue = plan.queues.setdefault(key, queue)
        queue.submit(task)

    def _check(self, plan: Plan, task: Task, parameters: BatchParameters) -> None:
        try:
            task.rows = _rows_of(task.inputs)
            if task.rows > parameters.max_batch_size and not parameters.split_large:
                raise InvalidInputError(
                    f"Task size {task.rows} is larger than maximum input batch size {parameters.max_batch_size}. "
                    "Send fewer rows a request."
                )
        except ModelyardError as exc:
            self.failed(plan, task, exc)
            raise

    def failed(self, plan: Plan, task: Task, error: ModelyardError) -> None:
        """Counts a request that failed before it came into a queue."""
        if task.arrived_ns:
            servable, total_ns = plan.servable, time.perf_counter_ns() - task.arrived_ns
            self._statistics.record(servable.name, servable.version, [RequestTimes(False, total_ns)])
            plan.failed(error)

    def batched(self, servable: Servable, threads: ModelThreads) -> Servable:
        """A version that computes in batches what the calling thread waits for; that was let in before."""
        if servable.batching is None:
            return servable

        def compute(graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
            name = next(name for name, signature in servable.signatures.items() if signature.compute == graph)
            plan = plan_of(servable, name, tuple(outputs), self._signatures)
            future: Future[Arrays] = Future()

            def done(result: Any, error: BaseException | None) -> None:
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

            now = time.perf_counter_ns()
            task = Task(
                inputs=inputs, rows=plan.rows(inputs), encode=lambda prediction: prediction.outputs, done=done,
                caller=current_caller.get(), started_ns=now, decoded_ns=now, entered=True,
            )  # fmt: skip
            self.submit(plan, threads, task)
            return dict(future.result())

        return replace(servable, compute=compute)


def _rows_of(inputs: Arrays) -> int:
    for name, array in inputs.items():
        if array.ndim == 0:
            raise InvalidInputError(
                f"Batching Run() input tensors must have at least one dimension; {name!r} has none."
            )
    found = {array.shape[0] for array in inputs.values()}
    if len(found) > 1:
        raise InvalidInputError(
            f"Batching Run() input tensors must have equal 0th-dimension size; received {sorted(found)}."
        )
    return next(iter(found), 1)
