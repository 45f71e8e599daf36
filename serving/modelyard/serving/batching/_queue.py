"""Batch queues: requests for the same graph are computed together, within TensorFlow Serving's parameters.

A batch starts when a thread of the model is free and the batch is full, or its oldest request has waited for the
timeout: with a timeout of zero, which is the default, whatever is there is computed, and nothing waits for more. What
upstream answers with an error for a whole batch costs only its cause here: a batch that the runtime refuses is computed
again one request at a time.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import InternalError, ModelNotReadyError, ModelyardError, UnavailableError
from modelyard.serving.batching._admission import Cost, ModelThreads
from modelyard.serving.batching._counts import BatchCounts
from modelyard.serving.config import BatchParameters
from modelyard.serving.metrics import Execution, ModelStatistics, RequestTimes
from modelyard.serving.requests import Arrays, Caller, Prediction, unexpected
from modelyard.serving.servables import Plan

_LOG = logging.getLogger("modelyard.serving")

#: Numbers of batches; the core's begin at 1.
_BATCHES = itertools.count(1 << 40)

Done = Callable[[object, BaseException | None], object]
_Answer = tuple[object, BaseException | None]


@dataclass(kw_only=True, slots=True, eq=False)
class Task:
    """A request that is to be computed."""

    inputs: Arrays
    rows: int
    #: Turns the prediction into the answer; called on the thread that computed it.
    encode: Callable[[Prediction], object]
    done: Done
    #: Who waits for it; None for a caller that always waits.
    caller: Caller | None = None
    #: When the request arrived; 0 where it is recorded elsewhere.
    arrived_ns: int = 0
    started_ns: int = 0
    decoded_ns: int = 0
    #: Whether its call was let in before, and leaves by itself.
    entered: bool = False
    cost: float = 0.0
    #: ``done`` was called.
    answered: bool = False

    @property
    def patient(self) -> bool:
        """Whether others go first."""
        return self.caller is not None and self.caller.low_priority


class BatchQueue:
    """The requests that wait for one plan, and for inputs of one inner shape."""

    def __init__(
        self,
        plan: Plan,
        threads: ModelThreads,
        parameters: BatchParameters,
        statistics: ModelStatistics,
        *,
        counts: BatchCounts | None = None,
        shared: bool = True,
    ) -> None:
        self._plan = plan
        self._threads = threads
        self._parameters = parameters
        self._statistics = statistics
        self._counts = counts
        self._shared = shared
        # Calls that change a state come one after the other: no thread but one is to wait for it.
        self._most_running = 1 if plan.signature.stateful else threads.threads
        self._condition = threads.condition
        self._tasks: deque[Task] = deque()
        self._rows = 0
        #: The work that runs, or waits for one of the model's threads.
        self._running: set[object] = set()
        self._cost = Cost()
        #: What is computed, by thread; and of threads that were given up, the error for new requests.
        self._computing: dict[int, list[Task]] = {}
        self._given_up: dict[int, ModelyardError] = {}

    def submit(self, task: Task) -> None:
        with self._condition:
            if refusal := self._threads.refusal(None) or next(iter(self._given_up.values()), None):
                raise refusal
            if self._tasks and self._rows + task.rows > self._parameters.max_queued_rows:
                self._threads.refused("batch_queue_full")
                raise UnavailableError(
                    "The batch scheduling queue to which this task was submitted is full. Try again in a moment."
                )
            if not task.entered:
                task.cost = self._cost.of(task.rows)
                self._threads.enter(task.caller, task.cost, least=self._cost.seconds)
            if len(self._running) < self._most_running:
                work = object()
                try:
                    self._threads.batches.submit(self._work, work)
                # There is no thread for it.
                except RuntimeError:
                    if not task.entered:
                        self._threads.leave(task.cost)
                    raise
                self._running.add(work)
            else:
                # Another queue of the model may wait, too.
                self._condition.notify_all()
            self._tasks.append(task)
            self._rows += task.rows

    def _work(self, work: object) -> None:
        """Computes batches until nothing waits."""
        while True:
            with self._condition:
                # Also where it came to nothing: an executor that cannot start a thread keeps the work for a later one.
                if not self._tasks or work not in self._running:
                    self._running.discard(work)
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
                    self._compute_on(threading.get_ident(), batch)

    def _compute_on(self, thread: int, batch: list[Task]) -> None:
        self._computing[thread] = batch
        self._threads.computing[thread] = self
        try:
            self._compute(batch)
        finally:
            with self._condition:
                del self._threads.computing[thread], self._computing[thread]
                given_up = self._given_up.pop(thread, None) is not None
            if given_up:
                # It was given to others meanwhile.
                self._threads.slots.acquire()

    def give_up(self, threads: Sequence[int], error: ModelyardError, refusal: ModelyardError) -> None:
        """Answers what some threads compute and what waits for them; other threads of the model take their places."""
        answers: list[tuple[Task, _Answer]] = []
        with self._condition:
            # One that was given up before hangs in another request of its batch: its place was given away then.
            for thread in self._computing.keys() & set(threads) - self._given_up.keys():
                self._given_up[thread] = refusal
                self._threads.slots.release()
                answers += [(task, (None, error)) for task in self._computing[thread]]
            answers += [(task, (None, refusal)) for task in self._tasks]
            self._tasks.clear()
            self._rows = 0
        for task, answer in answers:
            if not task.answered and task.arrived_ns:
                self._plan.failed(refusal if answer[1] is refusal else error)
            self._deliver(task, answer)

    def _wait(self) -> float:
        """Seconds until a batch may start."""
        full = not self._shared or self._rows >= self._parameters.execution_batch_size
        if full or not self._parameters.timeout_s or self._threads.closed:
            return 0.0
        return self._tasks[0].decoded_ns / 1e9 + self._parameters.timeout_s - time.perf_counter()

    def _take(self) -> list[Task]:
        """The next batch, without requests whose callers have gone; low priority goes last."""
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
        name, version = plan.servable.name, plan.servable.version
        begun_ns = time.perf_counter_ns()
        counted: list[Execution] = []
        executions: list[tuple[int, int, int]] = []
        answers: list[_Answer]
        try:
            outputs, executions = self._run(batch, begun_ns)
            computed_ns = time.perf_counter_ns()
        # A thread of the model must outlive whatever a runtime does, and every caller gets an answer.
        except Exception as exc:
            if threading.get_ident() in self._given_up:
                return
            if len(batch) > 1:
                # One input is bad: the other requests must not fail by it.
                for task in batch:
                    self._compute([task])
                return
            computed_ns = time.perf_counter_ns()
            answers = [(None, self._failure(exc, batch[0]))]
        else:
            if threading.get_ident() in self._given_up:
                return
            seconds = (computed_ns - begun_ns) / 1e9
            self._cost.learn(seconds, sum(task.rows for task in batch))
            requests = sum(task.arrived_ns > 0 for task in batch)
            plan.succeeded.add(requests)
            plan.latency.add(seconds * 1e6, requests)
            answers = _encoded(plan, batch, outputs)
            for rows, padding, ns in executions:
                plan.parts.batch(rows=rows, padding=padding, requests=len(batch), infer_ns=ns)
            *others, (size, _, _) = executions
            # What all of them took besides, such as merging, is the last one's: the sums are those of the requests.
            infer_ns = computed_ns - begun_ns - sum(ns for _, _, ns in others)
            input_ns = sum(task.decoded_ns - task.started_ns for task in batch)
            counted = [Execution(rows, 0, ns, 0) for rows, _, ns in others]
            counted.append(Execution(size, input_ns, infer_ns, time.perf_counter_ns() - computed_ns))
        times = [
            _times(task, begun_ns, computed_ns, ok=error is None)
            for task, (_, error) in zip(batch, answers, strict=True)
            if task.arrived_ns
        ]
        self._statistics.record(name, version, times, counted, plan.parts)
        _note(batch, executions, begun_ns, computed_ns)
        for task, answer in zip(batch, answers, strict=True):
            self._deliver(task, answer)

    def _deliver(self, task: Task, answer: _Answer) -> None:
        with self._condition:
            if task.answered:
                return
            task.answered = True
            if not task.entered:
                self._threads.leave(task.cost)
        task.done(*answer)

    def _run(self, batch: Sequence[Task], begun_ns: int) -> tuple[Arrays, list[tuple[int, int, int]]]:
        """Computes a batch: its outputs, and of each execution the rows, how many of them pad it, and nanoseconds.

        There are several where one request is larger than a batch.
        """
        if self._counts is not None:
            for task in batch:
                self._counts.waited((begun_ns - task.decoded_ns) / 1e3)
        inputs = merge([task.inputs for task in batch], self._parameters)
        rows, most = sum(task.rows for task in batch), self._parameters.execution_batch_size
        if not self._shared or self._parameters.accept_larger or rows <= most:
            # As upstream: padding repeats the first row of the last request.
            outputs, execution = self._execute(inputs, rows, rows - batch[-1].rows, alone=len(batch) == 1)
            return outputs, [execution]
        parts, executions = defaultdict[str, list[npt.NDArray[Any]]](list), []
        for start in range(0, rows, most):
            if start:
                # Nobody may wait for the rest of it.
                refusal = self._given_up.get(threading.get_ident()) or self._threads.refusal(batch[0].caller)
                if refusal:
                    raise refusal
            part = {name: array[start : start + most] for name, array in inputs.items()}
            outputs, execution = self._execute(part, min(most, rows - start), 0, alone=False)
            for name, array in outputs.items():
                parts[name].append(array)
            executions.append(execution)
        return {name: np.concatenate(arrays) for name, arrays in parts.items()}, executions

    def _execute(self, inputs: Arrays, rows: int, padding: int, *, alone: bool) -> tuple[Arrays, tuple[int, int, int]]:
        size = self._parameters.padded_size(rows) if self._shared else rows
        if size > rows:
            inputs = {
                name: np.concatenate([array, np.repeat(array[padding : padding + 1], size - rows, axis=0)])
                for name, array in inputs.items()
            }
        if self._counts is not None:
            self._counts.execution(rows, size=size)
            alone = False
        started_ns = time.perf_counter_ns()
        outputs = self._plan.servable.compute(self._plan.signature.compute, inputs, self._plan.outputs)
        infer_ns = time.perf_counter_ns() - started_ns
        for name, array in {} if alone else outputs.items():
            if array.ndim == 0 or array.shape[0] != size:
                raise ModelNotReadyError(
                    f"Batched output tensor {name!r} has shape {list(array.shape)}; its 0th dimension does not "
                    f"equal the sum of the 0th dimension sizes of the inputs, {size}. Serve this model without "
                    "batching."
                )
        if size > rows:
            outputs = {name: array[:rows] for name, array in outputs.items()}
        return outputs, (size, size - rows, infer_ns)

    def _failure(self, exc: Exception, task: Task) -> ModelyardError:
        if isinstance(exc, ModelyardError):
            error = exc
        else:
            request_id = "-" if task.caller is None else task.caller.request_id
            place = f"model {self._plan.servable.name} version {self._plan.servable.version}"
            error = InternalError(unexpected(exc, place, request_id, _LOG))
            error.__cause__ = exc
        if task.arrived_ns:
            self._plan.failed(error)
        return error


def _note(batch: Sequence[Task], executions: Sequence[tuple[int, int, int]], begun_ns: int, computed_ns: int) -> None:
    """Notes where the time of a batch went, for the records of its requests."""
    recorded = [
        (task, task.caller.facts) for task in batch if task.caller is not None and task.caller.facts is not None
    ]
    if not recorded:
        return
    number = next(_BATCHES)
    rows = sum(rows for rows, _, _ in executions) or sum(task.rows for task in batch)
    for task, facts in recorded:
        facts.rows += task.rows if task.arrived_ns else 0
        facts.batch, facts.batch_rows, facts.batch_requests = number, rows, len(batch)
        facts.decoded_ns, facts.begun_ns, facts.ended_ns = task.decoded_ns, begun_ns, computed_ns
        facts.compute_ns = sum(ns for _, _, ns in executions)


def _encoded(plan: Plan, batch: Sequence[Task], outputs: Arrays) -> list[_Answer]:
    answers: list[_Answer] = []
    start = 0
    for task in batch:
        part = outputs
        if len(batch) > 1:
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


def merge(parts: Sequence[Arrays], parameters: BatchParameters) -> Arrays:
    """Several requests' inputs as one batch; a batch of one is not copied."""
    first, *others = parts
    if not others:
        return first
    merged: dict[str, npt.NDArray[Any]] = {}
    for name in first:
        arrays = [part[name] for part in parts]
        if parameters.pad_variable_length:
            arrays = _pad_inner(arrays, zeros=parameters.pad_with_zeros)
        merged[name] = np.concatenate(arrays)
    return merged


def _pad_inner(arrays: Sequence[npt.NDArray[Any]], *, zeros: bool) -> list[npt.NDArray[Any]]:
    """Pads inner dimensions to the largest of a batch: with the tensor's first element as upstream, or with zeros.

    What cannot be padded, as it has another number of dimensions or no element, is an error of the batch, whose
    requests are computed alone then.
    """
    target = tuple(max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True))
    padded = []
    for array in arrays:
        if array.shape[1:] == target:
            padded.append(array)
            continue
        filler = (b"" if array.dtype == object else 0) if zeros else array.flat[0]
        result = np.full((array.shape[0], *target), filler, dtype=array.dtype)
        result[tuple(slice(size) for size in array.shape)] = array
        padded.append(result)
    return padded
