"""Batching: requests for the same graph are computed together.

Greedy within TensorFlow Serving's parameters: a batch starts when it is full,
or when its oldest request has waited for the timeout and a thread is free.
What upstream answers with an error for a whole batch costs only its cause here:
requests of different inner shapes are batched apart, and a batch that the
runtime refuses is computed again one request at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import InternalError, InvalidInputError, ModelNotReadyError, ModelyardError, UnavailableError
from modelyard.serving._batch_parameters import BatchParameters
from modelyard.serving._metrics import Metrics
from modelyard.serving._requests import Arrays, Caller

Outputs = dict[str, npt.NDArray[Any]]
Run = Callable[[Arrays], Outputs]

_PREFIX = ":tensorflow:serving:batching_session:"


@dataclass
class _Task:
    inputs: Arrays
    rows: int
    enqueued: float
    caller: Caller | None = None
    future: Future[Outputs] = field(default_factory=Future)


@dataclass
class _Queue:
    parameters: BatchParameters
    run: Run
    tasks: deque[_Task] = field(default_factory=deque)
    rows: int = 0

    def ready_at(self) -> float:
        """When the first batch may start."""
        if self.rows >= self.parameters.execution_batch_size:
            return 0.0
        return self.tasks[0].enqueued + self.parameters.timeout_s

    def take(self) -> list[_Task]:
        batch: list[_Task] = []
        rows = 0
        # Low priority goes last; among equals the order is that of arrival.
        waiting = deque(sorted(self.tasks, key=_is_patient)) if any(map(_is_patient, self.tasks)) else self.tasks
        while waiting and (not batch or rows + waiting[0].rows <= self.parameters.execution_batch_size):
            task = waiting.popleft()
            self.rows -= task.rows
            refusal = None if task.caller is None else task.caller.refusal()
            if refusal is not None:
                # Nobody waits for it any more: it costs nothing.
                task.future.set_exception(refusal)
                continue
            batch.append(task)
            rows += task.rows
        self.tasks = waiting
        return batch


def _is_patient(task: _Task) -> bool:
    return task.caller is not None and task.caller.low_priority


class BatchScheduler:
    """The threads that compute batches, for all models.

    Args:
        threads: How many batches are computed at the same time.
        metrics: Where batches are counted.
        pool_name: The pool's name in metrics.
    """

    def __init__(self, *, threads: int, metrics: Metrics, pool_name: str = "batch_threads") -> None:
        self._metrics = metrics
        self._pool = {"thread_pool_name": pool_name}
        self._condition = threading.Condition()
        self._queues: dict[Any, _Queue] = {}
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"modelyard-batch-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def compute(
        self, key: Any, inputs: Arrays, parameters: BatchParameters, run: Run, *, caller: Caller | None = None
    ) -> Outputs:
        """Computes a request as part of a batch, and waits for it.

        Args:
            key: Requests with equal keys may go together: same model, graph
                and outputs.
            inputs: Arrays with the same size of dimension 0.
            parameters: The model's batching parameters.
            run: Computes a batch.
            caller: Who waits for it; None for somebody who waits for ever.

        Returns:
            The request's own rows of every output.

        Raises:
            DeadlineExceededError: The caller's deadline passed while the request waited for its batch.
            InvalidInputError: The inputs cannot be batched, or the runtime
                refuses them.
            ModelNotReadyError: An output has no batch dimension.
            RequestCancelledError: The caller went away while the request waited for its batch.
            UnavailableError: The queue is full.
        """
        rows = _rows(inputs)
        limit = parameters.max_batch_size
        self._metrics.observe(f"{_PREFIX}input_batch_size", {}, rows)
        if rows == 0:
            # Nothing to share, and no row that padding could repeat.
            return run(inputs)
        if rows > limit and not parameters.split_large:
            raise InvalidInputError(
                f"Task size {rows} is larger than maximum input batch size {limit}. Send fewer rows a request."
            )
        size = parameters.execution_batch_size
        parts = [inputs]
        if rows > size and parameters.split_large:
            parts = [
                {name: array[start : start + size] for name, array in inputs.items()} for start in range(0, rows, size)
            ]
        inner = (
            ()
            if parameters.pad_variable_length
            else tuple(sorted((name, array.shape[1:]) for name, array in inputs.items()))
        )
        futures = self._enqueue((key, inner), parts, parameters, run, caller)
        results = [future.result() for future in futures]
        if len(results) == 1:
            return results[0]
        return {name: np.concatenate([result[name] for result in results]) for name in results[0]}

    @property
    def queued(self) -> int:
        """Requests, or parts of them, that wait for their batch."""
        with self._condition:
            return sum(len(queue.tasks) for queue in self._queues.values())

    def close(self) -> None:
        """Computes what is queued and ends the threads."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()

    def _enqueue(
        self, key: Any, parts: Sequence[Arrays], parameters: BatchParameters, run: Run, caller: Caller | None
    ) -> list[Future[Outputs]]:
        now = time.monotonic()
        tasks = [_Task(inputs=part, rows=_rows(part), enqueued=now, caller=caller) for part in parts]
        with self._condition:
            if self._stopping:
                raise UnavailableError("The server is stopping; ask another one.")
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = _Queue(parameters=parameters, run=run)
            added = sum(task.rows for task in tasks)
            if queue.tasks and queue.rows + added > parameters.max_enqueued_batches * parameters.max_batch_size:
                raise UnavailableError(
                    "The batch scheduling queue to which this task was submitted is full. Try again in a moment."
                )
            queue.tasks.extend(tasks)
            queue.rows += added
            self._condition.notify()
        return [task.future for task in tasks]

    def _work(self) -> None:
        while True:
            with self._condition:
                queue = self._next()
                if queue is None:
                    return
                batch = queue.take()
            if batch:
                self._compute(batch, queue)

    def _next(self) -> _Queue | None:
        """The queue whose batch may start; waits for one. None when it is time to end."""
        while True:
            self._queues = {key: queue for key, queue in self._queues.items() if queue.tasks}
            if not self._queues:
                if self._stopping:
                    return None
                self._condition.wait()
                continue
            queue = min(self._queues.values(), key=_Queue.ready_at)
            wait = queue.ready_at() - time.monotonic()
            if wait <= 0 or self._stopping:
                return queue
            self._condition.wait(wait)

    def _compute(self, batch: list[_Task], queue: _Queue) -> None:
        now = time.monotonic()
        for task in batch:
            self._metrics.observe(f"{_PREFIX}queuing_latency", self._pool, (now - task.enqueued) * 1e6)
        try:
            results = self._run(batch, queue)
        # A thread of the pool must outlive whatever a runtime does; the waiting callers get the error.
        except Exception as exc:
            if len(batch) > 1:
                # Somebody's input is bad: everybody else must not pay for it.
                for task in batch:
                    self._compute([task], queue)
            elif isinstance(exc, ModelyardError):
                batch[0].future.set_exception(exc)
            else:
                error = InternalError(f"A batch failed with {type(exc).__name__}: {exc}. This is a bug.")
                error.__cause__ = exc
                batch[0].future.set_exception(error)
        else:
            for task, result in zip(batch, results, strict=True):
                task.future.set_result(result)

    def _run(self, batch: list[_Task], queue: _Queue) -> list[Outputs]:
        rows = sum(task.rows for task in batch)
        size = queue.parameters.padded_size(rows)
        merged = _merge(batch, size - rows, queue.parameters)
        self._metrics.observe(f"{_PREFIX}processed_batch_size", {}, size)
        self._metrics.observe(f"{_PREFIX}padding_size", {"execution_batch_size": str(size)}, size - rows)
        self._metrics.count(f"{_PREFIX}wrapped_run_count", {})
        outputs = queue.run(merged)
        for name, array in outputs.items():
            if array.ndim == 0 or array.shape[0] != size:
                raise ModelNotReadyError(
                    f"Batched output tensor {name!r} has shape {list(array.shape)}; its 0th dimension does not equal "
                    f"the sum of the 0th dimension sizes of the inputs, {size}. Serve this model without batching."
                )
        results, start = [], 0
        for task in batch:
            results.append({name: array[start : start + task.rows] for name, array in outputs.items()})
            start += task.rows
        return results


def _rows(inputs: Arrays) -> int:
    sizes = set()
    for name, array in inputs.items():
        if array.ndim == 0:
            raise InvalidInputError(
                f"Batching Run() input tensors must have at least one dimension; {name!r} has none."
            )
        sizes.add(array.shape[0])
    if len(sizes) > 1:
        raise InvalidInputError(
            f"Batching Run() input tensors must have equal 0th-dimension size; received {sorted(sizes)}."
        )
    return next(iter(sizes), 1)


def _merge(batch: Sequence[_Task], padding: int, parameters: BatchParameters) -> Arrays:
    if len(batch) == 1 and padding == 0:
        return batch[0].inputs
    merged: dict[str, npt.NDArray[Any]] = {}
    for name in batch[0].inputs:
        arrays = [task.inputs[name] for task in batch]
        if parameters.pad_variable_length:
            arrays = _pad_inner(name, arrays, zeros=parameters.pad_with_zeros)
        if padding:
            # As upstream: the first row of the last request.
            arrays.append(np.repeat(arrays[-1][:1], padding, axis=0))
        merged[name] = np.concatenate(arrays)
    return merged


def _pad_inner(name: str, arrays: Sequence[npt.NDArray[Any]], *, zeros: bool) -> list[npt.NDArray[Any]]:
    """Pads inner dimensions to the largest of a batch: with the tensor's first element as upstream, or with zeros."""
    if len({array.ndim for array in arrays}) > 1:
        raise InvalidInputError(
            f"Tensors with name {name!r} from different tasks have different numbers of dimensions."
        )
    target = tuple(max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True))
    padded = []
    for array in arrays:
        if array.shape[1:] == target:
            padded.append(array)
            continue
        if array.size == 0 and not zeros:
            raise InvalidInputError(f"Tensor {name!r} is empty, so it has no element to be padded with.")
        filler = (b"" if array.dtype == object else 0) if zeros else array.flat[0]
        result = np.full((array.shape[0], *target), filler, dtype=array.dtype)
        result[tuple(slice(size) for size in array.shape)] = array
        padded.append(result)
    return padded
