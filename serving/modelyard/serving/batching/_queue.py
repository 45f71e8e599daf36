"""Batch queues: requests for the same graph are computed together, within TensorFlow Serving's parameters.

A batch starts when a thread of the model is free and the batch is full, or its
oldest request has waited for the timeout: with a timeout of zero, which is the
default, whatever is there is computed, and nothing waits for company. What
upstream answers with an error for a whole batch costs only its cause here: a
batch that the runtime refuses is computed again one request at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import InternalError, InvalidInputError, ModelNotReadyError, ModelyardError, UnavailableError
from modelyard.serving._metrics import Metrics
from modelyard.serving._plans import Plan
from modelyard.serving._requests import Arrays, Caller, Prediction
from modelyard.serving._statistics import Execution, ModelStatistics, RequestTimes
from modelyard.serving.batching._admission import Cost, ModelThreads
from modelyard.serving.batching._parameters import BatchParameters

_LOG = logging.getLogger("modelyard.serving")
_PREFIX = ":tensorflow:serving:batching_session:"

Done = Callable[[Any, BaseException | None], object]
_Answer = tuple[Any, BaseException | None]


@dataclass(kw_only=True, slots=True, eq=False)
class Task:
    """A request, or a part of one, that is to be computed.

    Attributes:
        inputs: Complete inputs, with equal numbers of rows where it may share a batch.
        rows: Its rows.
        encode: Turns the prediction into the answer; called on the thread that computed it.
        done: Called with the answer, or with an error, on a thread of the model.
        caller: Who waits for it; None for somebody who waits for ever.
        arrived_ns: When the request arrived; 0 where somebody else records it.
        started_ns: When it began to be decoded.
        decoded_ns: When its inputs were complete.
        cost: What it was let in with; None where another part of the request answers for it.
    """

    inputs: Arrays
    rows: int
    encode: Callable[[Prediction], Any]
    done: Done
    caller: Caller | None = None
    arrived_ns: int = 0
    started_ns: int = 0
    decoded_ns: int = 0
    cost: float | None = None

    @property
    def patient(self) -> bool:
        """Whether others go first."""
        return self.caller is not None and self.caller.low_priority


class BatchQueue:
    """The requests that wait for one plan, and for inputs of one inner shape.

    Args:
        plan: What they ask for.
        threads: Their model's.
        parameters: How they are batched.
        statistics: Where they are counted.
        metrics: Where the batches of a batch scheduler are counted, too; None for nowhere.
        shared: Requests are computed together.
    """

    def __init__(
        self,
        plan: Plan,
        threads: ModelThreads,
        parameters: BatchParameters,
        statistics: ModelStatistics,
        *,
        metrics: Metrics | None = None,
        shared: bool = True,
    ) -> None:
        self._plan = plan
        self._threads = threads
        self._parameters = parameters
        self._statistics = statistics
        self._metrics = metrics
        self._shared = shared
        # Calls that change a state come one after the other: no thread but one is to wait for it.
        self._most_running = 1 if plan.signature.stateful else threads.threads
        self._condition = threads.condition
        self._tasks: deque[Task] = deque()
        self._rows = self._running = 0
        self._cost = Cost()

    def submit(self, tasks: Sequence[Task]) -> None:
        """Queues a request, in parts where it is larger than a batch.

        Args:
            tasks: The parts: all of them are let in, or none.

        Raises:
            OverloadedError: As :meth:`ModelThreads.enter`.
            UnavailableError: The queue is full.
        """
        rows = sum(task.rows for task in tasks)
        with self._condition:
            most = self._parameters.max_enqueued_batches * self._parameters.max_batch_size
            if self._tasks and self._rows + rows > most:
                raise UnavailableError(
                    "The batch scheduling queue to which this task was submitted is full. Try again in a moment."
                )
            if refusal := self._threads.refusal(None):
                raise refusal
            cost = self._cost.of(rows)
            self._threads.enter(tasks[0].caller, cost, least=self._cost.seconds)
            tasks[0].cost = cost
            self._tasks.extend(tasks)
            self._rows += rows
            if self._running < self._most_running:
                self._running += 1
                self._threads.batches.submit(self._work)
            else:
                # Another queue of the model may wait, too.
                self._condition.notify_all()

    def _work(self) -> None:
        """Computes batches until nothing waits."""
        while True:
            with self._condition:
                if not self._tasks:
                    self._running -= 1
                    return
                wait = self._wait()
                if wait > 0:
                    self._condition.wait(wait)
                    continue
            with self._threads.slots:
                with self._condition:
                    # Others may have taken them, or have come meanwhile.
                    batch = self._take() if self._tasks and self._wait() <= 0 else []
                if batch:
                    self._compute(batch)

    def _wait(self) -> float:
        """Seconds until a batch may start."""
        full = not self._shared or self._rows >= self._parameters.execution_batch_size
        if full or not self._parameters.timeout_s or self._threads.closed:
            return 0.0
        return self._tasks[0].decoded_ns / 1e9 + self._parameters.timeout_s - time.perf_counter()

    def _take(self) -> list[Task]:
        """The next batch, without what nobody waits for any more; low priority goes last."""
        batch: list[Task] = []
        rows, most = 0, self._parameters.execution_batch_size
        if any(task.patient for task in self._tasks):
            self._tasks = deque(sorted(self._tasks, key=lambda task: task.patient))
        while self._tasks and (not batch or (self._shared and rows + self._tasks[0].rows <= most)):
            task = self._tasks.popleft()
            self._rows -= task.rows
            if refusal := self._threads.refusal(task.caller):
                self._deliver(task, (None, refusal))
                continue
            batch.append(task)
            rows += task.rows
        return batch

    def _compute(self, batch: list[Task]) -> None:
        plan = self._plan
        servable = plan.servable
        begun_ns = time.perf_counter_ns()
        size = sum(task.rows for task in batch)
        execution = None
        answers: list[_Answer]
        try:
            size, outputs = self._run(batch, begun_ns)
            computed_ns = time.perf_counter_ns()
        # A thread of the model must outlive whatever a runtime does, and every caller gets an answer.
        except Exception as exc:
            if len(batch) > 1:
                # Somebody's input is bad: everybody else must not pay for it.
                for task in batch:
                    self._compute([task])
                return
            computed_ns = time.perf_counter_ns()
            answers = [(None, self._failure(exc, batch[0]))]
        else:
            seconds = (computed_ns - begun_ns) / 1e9
            self._cost.learn(seconds, size)
            counted = sum(task.arrived_ns > 0 for task in batch)
            plan.succeeded.add(counted)
            plan.latency.add(seconds * 1e6, counted)
            answers = _encoded(plan, batch, outputs, size)
            input_ns = sum(task.decoded_ns - task.started_ns for task in batch)
            execution = Execution(size, input_ns, computed_ns - begun_ns, time.perf_counter_ns() - computed_ns)
        times = [
            _times(task, begun_ns, computed_ns, ok=error is None)
            for task, (_, error) in zip(batch, answers, strict=True)
            if task.arrived_ns
        ]
        self._statistics.record_all(servable.name, servable.version, times, execution)
        for task, answer in zip(batch, answers, strict=True):
            self._deliver(task, answer)

    def _deliver(self, task: Task, answer: _Answer) -> None:
        if task.cost is not None:
            self._threads.leave(task.cost)
        task.done(*answer)

    def _run(self, batch: Sequence[Task], begun_ns: int) -> tuple[int, Arrays]:
        """Computes a batch: how many rows it had with those that pad it, and its outputs."""
        rows = sum(task.rows for task in batch)
        size = self._parameters.padded_size(rows) if self._shared else rows
        if self._metrics is not None and self._shared:
            pool = {"thread_pool_name": self._parameters.pool_name}
            for task in batch:
                self._metrics.observe(f"{_PREFIX}queuing_latency", pool, (begun_ns - task.decoded_ns) / 1e3)
            self._metrics.observe(f"{_PREFIX}processed_batch_size", {}, size)
            self._metrics.observe(f"{_PREFIX}padding_size", {"execution_batch_size": str(size)}, size - rows)
            self._metrics.count(f"{_PREFIX}wrapped_run_count", {})
        inputs = merge([task.inputs for task in batch], size - rows, self._parameters)
        outputs = self._plan.servable.compute(self._plan.signature.compute, inputs, self._plan.outputs)
        if len(batch) > 1 or (self._metrics is not None and self._shared):
            for name, array in outputs.items():
                if array.ndim == 0 or array.shape[0] != size:
                    raise ModelNotReadyError(
                        f"Batched output tensor {name!r} has shape {list(array.shape)}; its 0th dimension does not "
                        f"equal the sum of the 0th dimension sizes of the inputs, {size}. Serve this model without "
                        "batching."
                    )
        return size, outputs

    def _failure(self, exc: Exception, task: Task) -> ModelyardError:
        error = exc if isinstance(exc, ModelyardError) else InternalError(f"Computing failed: {type(exc).__name__}")
        if error is not exc:
            error.__cause__ = exc
            request_id = "-" if task.caller is None else task.caller.request_id or "-"
            place = f"model {self._plan.servable.name} version {self._plan.servable.version}"
            _LOG.error("request %s: %s failed unexpectedly", request_id, place, exc_info=exc)
        if task.arrived_ns:
            self._plan.failed(error)
        return error


def _encoded(plan: Plan, batch: Sequence[Task], outputs: Arrays, size: int) -> list[_Answer]:
    answers: list[_Answer] = []
    start = 0
    for task in batch:
        part = outputs
        if size != task.rows:
            part = {name: array[start : start + task.rows] for name, array in outputs.items()}
        start += task.rows
        try:
            answers.append((task.encode(Prediction(spec=plan.spec, outputs=part)), None))
        # An answer that cannot be encoded is one request's trouble, not the batch's.
        except Exception as exc:
            answers.append((None, exc))
    return answers


def _times(task: Task, begun_ns: int, computed_ns: int, *, ok: bool) -> RequestTimes:
    # All wait for the last of them.
    ended_ns = time.perf_counter_ns()
    decode_ns = task.decoded_ns - task.started_ns
    total_ns = ended_ns - task.arrived_ns
    infer_ns, output_ns = computed_ns - begun_ns, ended_ns - computed_ns
    return RequestTimes(ok, total_ns, begun_ns - task.arrived_ns - decode_ns, decode_ns, infer_ns, output_ns, task.rows)


def parts_of(task: Task, size: int, plan: Plan, statistics: ModelStatistics) -> list[Task]:
    """A request in parts, which is answered when all of them are.

    Args:
        task: The request.
        size: Rows of a part at most.
        plan: What it asks for.
        statistics: Where it is recorded.
    """
    starts = range(0, task.rows, size)
    found: list[Any] = [None] * len(starts)
    errors: dict[int, BaseException] = {}
    missing = len(starts)
    lock = threading.Lock()

    def done(index: int, outputs: Any, error: BaseException | None) -> None:
        nonlocal missing
        with lock:
            found[index], missing = outputs, missing - 1
            if error is not None:
                errors[index] = error
            if missing:
                return
        computed_ns = time.perf_counter_ns()
        # The same one whichever part was computed first.
        failure = errors[min(errors)] if errors else None
        answer: _Answer = (None, failure)
        if failure is None:
            joined = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
            (answer,) = _encoded(plan, [task], joined, task.rows)
            plan.succeeded.add(1)
        elif isinstance(failure, ModelyardError):
            plan.failed(failure)
        times = _times(task, task.decoded_ns, computed_ns, ok=answer[1] is None)
        statistics.record_all(plan.servable.name, plan.servable.version, [times])
        task.done(*answer)

    return [
        Task(
            inputs={name: array[start : start + size] for name, array in task.inputs.items()},
            rows=min(size, task.rows - start),
            encode=lambda prediction: prediction.outputs,
            done=partial(done, index),
            caller=task.caller,
            started_ns=task.decoded_ns,
            decoded_ns=task.decoded_ns,
        )
        for index, start in enumerate(starts)
    ]


def rows_of(inputs: Arrays) -> int:
    """The rows of a request that is to share a batch.

    Args:
        inputs: Arrays with the same size of dimension 0.

    Raises:
        InvalidInputError: An input has no dimension, or they have different sizes.
    """
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


def merge(parts: Sequence[Arrays], padding: int, parameters: BatchParameters) -> Arrays:
    """Several requests' inputs as one batch; a batch of one that is not padded is not copied.

    Args:
        parts: Inputs of the same names and dtypes, and of the same inner shapes unless those are padded.
        padding: Rows to add.
        parameters: How inner dimensions are padded.

    Raises:
        InvalidInputError: Inner dimensions cannot be padded.
    """
    if len(parts) == 1 and padding == 0:
        return parts[0]
    merged: dict[str, npt.NDArray[Any]] = {}
    for name in parts[0]:
        arrays = [part[name] for part in parts]
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
