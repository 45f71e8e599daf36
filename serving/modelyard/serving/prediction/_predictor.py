"""The data plane: what a request means, with no transport in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

from modelyard.artifact import CLASSIFY_METHOD, PREDICT_METHOD, REGRESS_METHOD
from modelyard.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidModelSpecError,
    InvalidRequestError,
    ModelyardError,
    UnavailableError,
)
from modelyard.serving.batching import Batcher, Done, ModelThreads, Task
from modelyard.serving.metrics import Metrics, ModelStatistics
from modelyard.serving.prediction._budget import Budget, Charge
from modelyard.serving.prediction._inference import (
    Classification,
    InferenceTask,
    Method,
    Regression,
    check_signature,
    check_tasks,
    infer,
    parts_of,
    timed,
)
from modelyard.serving.prediction._log import PredictionLogs
from modelyard.serving.prediction._messages import ModelMetadata
from modelyard.serving.prediction._workers import Workers, settle
from modelyard.serving.repository import ModelManager, ModelWatcher, Version, VersionStatus
from modelyard.serving.requests import (
    Arrays,
    Caller,
    Facts,
    ModelSpec,
    Prediction,
    PredictRequest,
    current_caller,
    other_signature,
)
from modelyard.serving.rollout import Rollout
from modelyard.serving.servables import Plan, Servable, plan_of

_T = TypeVar("_T")
#: Larger batches are rarely faster for each row, and their first row waits longer.
_MAX_ROWS = 64


class Predictor:
    """Answers requests; every transport is an adapter on it.

    Args:
        manager: Where the servables are.
        metrics: Where predictions are counted.
        workers: Threads of each model that decode, and that compute.
        batch_threads: Batches of each model that are computed at the same time; 0 for ``workers``.
        check_methods: Calls by another method than the signature's are refused.
        max_batch_rows: Rows that are computed together at most.
        max_queued_requests: Requests of one model that may wait; 0 for any number.
        max_queue_delay_s: Seconds that a request may have to wait; 0 for any time.
        max_bytes: Bytes that requests may become beyond what was sent, all together; 0 for any number.
        rollout: Chooses the version of requests that name none; None for the newest.
        statistics: Counts the requests of all protocols.
        logs: Writes what models log; None for nothing.
    """

    def __init__(
        self,
        manager: ModelManager,
        metrics: Metrics,
        *,
        workers: int,
        batch_threads: int = 0,
        check_methods: bool = False,
        max_batch_rows: int = _MAX_ROWS,
        max_queued_requests: int = 0,
        max_queue_delay_s: float = 0.0,
        max_bytes: int = 0,
        statistics: ModelStatistics | None = None,
        rollout: Rollout | None = None,
        logs: PredictionLogs | None = None,
    ) -> None:
        self._logs = logs
        self._manager = manager
        #: Chooses the version of requests that name none; None where the newest answers them.
        self.rollout = rollout
        self._metrics = metrics
        self._check_methods = check_methods
        #: Rows that are computed together at most.
        self.max_batch_rows = max_batch_rows
        new_threads = partial(
            ModelThreads,
            threads=batch_threads or workers,
            workers=workers,
            max_waiting=max_queued_requests,
            max_delay_s=max_queue_delay_s,
        )
        self._workers = Workers(new_threads, metrics)
        #: Bytes that requests became beyond what was sent.
        self.budget = Budget(max_bytes, partial(metrics.refuse, "bytes"))
        #: Counts the requests of all protocols.
        self.statistics = statistics or ModelStatistics()
        self._batcher = Batcher(metrics, self.statistics, max_rows=max_batch_rows)
        manager.before_suspending(self._give_up)
        manager.when_gone(self._workers.forget)

    @property
    def waiting(self) -> int:
        """Requests that were let in and are not answered yet."""
        return self._workers.waiting

    async def submit(self, request: PredictRequest, encode: Callable[[Prediction], _T]) -> _T:
        """Computes one prediction, on a thread of its model.

        Where the waiting task is cancelled before the prediction has begun, it costs nothing.

        Args:
            request: The request.
            encode: Turns the prediction into what the transport sends; it is called on the thread that computed it.

        Raises:
            DeadlineExceededError: The caller's deadline passed before the prediction began.
            InvalidModelSpecError: No model name, or an unknown label.
            InvalidRequestError: The inputs are malformed or do not fit.
            ModelNotFoundError: Unknown model or version.
            OverloadedError: Too much work waits already.
            PredictionError: The model failed.
            RequestCancelledError: The caller went away before the prediction began.
            SignatureNotFoundError: Unknown signature.
            UnavailableError: The model was not loaded yet.
        """
        if request.caller is None:
            request = replace(request, caller=Caller())
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self.begin(request, encode, partial(settle, future))
        try:
            return await future
        except asyncio.CancelledError:
            if request.caller is not None:
                request.caller.leave()
            raise
        finally:
            # An error that is raised here holds this frame by its traceback, and the future holds the error.
            del future

    def begin(self, request: PredictRequest, encode: Callable[[Prediction], object], done: Done) -> None:
        """Starts one prediction; :meth:`submit` for transports that have no task to wait in.

        ``done`` is called once, on the event loop, with the encoded answer or with one of the errors of :meth:`submit`.
        """
        loop = asyncio.get_running_loop()
        arrived_ns = time.perf_counter_ns()
        watcher = version = None
        charge = self.budget.charge()
        try:
            watcher = self._manager.watcher(request.spec)
            if self._logs is not None:
                # Before a version is chosen: the log has what the caller named.
                request, encode = self._logs.recorded(watcher.config.prediction_log, request, encode)
            if self.rollout is not None:
                request, encode, done = self.rollout.begin(request, encode, done)
            version = watcher.lend(request.spec)
            plan = plan_of(version.loaded, request.spec.signature_name, request.output_filter, self._metrics)
            if request.caller is not None and request.caller.facts is not None:
                _note(request.caller.facts, plan.servable, plan.name)
            back = partial(_deliver, watcher, version, charge, loop, done)
            threads = self._workers.of(plan.servable.name)
            task = Task(
                inputs={}, rows=1, encode=encode, done=back, caller=request.caller,
                arrived_ns=arrived_ns, started_ns=arrived_ns, decoded_ns=arrived_ns,
            )  # fmt: skip
            if request.small and plan.signature.decode is None:
                self._decode(plan, request, task, charge)
                self._batcher.submit(plan, threads, task)
            else:
                # Large bodies and what is encoded are decoded where they do not hold anybody up.
                decode = partial(self._decode, plan, request, task, charge)
                future = self._workers.run(threads, request.caller, request.size, decode)
                future.add_done_callback(partial(self._prepared, plan, threads, task))
        except Exception as exc:
            charge.release()
            if watcher is not None and version is not None:
                watcher.give_back(version)
            done(None, exc)

    def _prepared(self, plan: Plan, threads: ModelThreads, task: Task, decoded: Future[None]) -> None:
        """Queues a request that was decoded on a thread of its model."""
        try:
            decoded.result()
            self._batcher.submit(plan, threads, task)
        # The thread has no other way to report it.
        except Exception as exc:
            task.done(None, exc)

    def _decode(self, plan: Plan, request: PredictRequest, task: Task, charge: Charge) -> None:
        task.started_ns = time.perf_counter_ns()
        inputs: Arrays | None = None
        try:
            inputs = request.inputs(plan.signature)
            if self._check_methods and plan.signature.method != PREDICT_METHOD:
                # Upstream's code for this is INTERNAL, for the other methods INVALID_ARGUMENT.
                raise InternalError(
                    f"Expected prediction signature method_name to be {PREDICT_METHOD}. Was: {plan.signature.method}"
                )
            inputs = plan.servable.complete(plan.signature, inputs)
            task.rows = plan.rows(inputs)
            if request.caller is not None and request.caller.charge is not None:
                request.caller.charge(task.rows)
            decoded = plan.servable.decoded(plan.signature, inputs)
            charge.take(sum(array.nbytes for array in decoded.values()) - request.size)
            task.inputs = decoded
        except ModelyardError as exc:
            self._batcher.failed(plan, task, exc)
            names = inputs if inputs is not None else request.names() if request.names else ()
            hint = other_signature(names, plan.signature, plan.servable.signatures)
            if hint and isinstance(exc, InvalidRequestError):
                raise type(exc)(f"{exc.message.rstrip('.')}. {hint}") from exc
            raise
        task.decoded_ns = time.perf_counter_ns()

    async def offload(self, work: Callable[[], _T], caller: Caller | None = None, *, model: str = "") -> _T:
        """Runs work that would block the event loop on a worker thread.

        Args:
            work: Called without arguments.
            caller: Who waits for it; work that no caller waits for is not begun.
            model: The model that answers, whose threads do it; empty for what no model answers.

        Raises:
            DeadlineExceededError: The caller's deadline passed before the work began.
            OverloadedError: Too much work waits already.
            RequestCancelledError: The caller went away before the work began.
        """
        # Threads for every name that callers make up would be too many.
        known = self._workers.has(model) or model in self._manager.names
        return await self._workers.offload(work, caller, model if known else "")

    def _give_up(self, servable: Servable, threads: Sequence[int], limit_s: float, text: str) -> None:
        """Answers who waits for a version that computes for too long; another server may answer those that waited."""
        late, refusal = DeadlineExceededError(text), UnavailableError(text)
        for plan in list(servable.plans.values()):
            for queue in list(plan.queues.values()):
                queue.give_up(threads, late, refusal)
        self._workers.give_up(threads, late, refusal)

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
        return self._one(InferenceTask(spec=spec, method=CLASSIFY_METHOD), examples, "Classify", Classification)

    def regress(self, spec: ModelSpec, examples: Sequence[bytes]) -> Regression:
        """Regresses examples, on the calling thread; arguments and errors are those of :meth:`classify`."""
        return self._one(InferenceTask(spec=spec, method=REGRESS_METHOD), examples, "Regress", Regression)

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
        return self._infer(tasks, examples, "MultiInference")

    def _one(self, task: InferenceTask, examples: Sequence[bytes], method: Method, kind: type[_T]) -> _T:
        (answer,) = self._infer([task], examples, method)
        if not isinstance(answer, kind):
            raise InternalError(f"{method} was answered with a {type(answer).__name__}. This is a bug.")
        return answer

    def _infer(
        self, tasks: Sequence[InferenceTask], examples: Sequence[bytes], method: Method
    ) -> tuple[Classification | Regression, ...]:
        # One servable for all tasks: their answers belong to the same version.
        spec = tasks[0].spec
        name, caller = spec.signature_name, current_caller.get()
        # Before it is computed: the model may leave meanwhile.
        watcher = self._manager.watcher(spec)
        with (
            nullcontext(spec) if self.rollout is None else self.rollout.chosen(spec, caller) as spec,
            watcher.acquire(spec) as servable,
            self.statistics.measure(
                servable.name,
                servable.version,
                arrived_ns=time.perf_counter_ns(),
                executed=servable.batching is None,
                parts=parts_of(self._metrics, servable, name),
            ) as timing,
        ):
            for task in tasks:
                check_signature(servable, task, method, check_method=self._check_methods)
            timing.decoded(len(examples))
            if caller is not None and caller.charge is not None:
                caller.charge(len(examples))
            facts = caller and caller.facts
            if facts:
                _note(facts, servable, name)
                facts.rows = len(examples)
                facts.decoded_ns = facts.begun_ns = time.perf_counter_ns()
            model = {"model": servable.name}
            self._metrics.observe(":tensorflow:serving:request_example_counts", model, len(examples))
            self._metrics.count(":tensorflow:serving:request_example_count_total", model, len(examples))
            api = "MultiInference" if len(tasks) > 1 else tasks[0].method.rpartition("/")[2].capitalize()
            batched = self._batcher.batched(servable, self._workers.of(servable.name))
            with timed(self._metrics, servable, api):
                answers = tuple(infer(batched, task, examples) for task in tasks)
            timing.computed()
            if facts and not facts.batch:
                facts.ended_ns = time.perf_counter_ns()
                facts.compute_ns = facts.ended_ns - facts.begun_ns
            if self._logs is not None:
                self._logs.inferred(watcher.config.prediction_log, method, tasks, examples, answers, caller)
            return answers

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
        """Drops work that has not begun, waits for work in progress, and ends the threads of all models.

        What was let in is answered as the event loop goes on: call this from another thread.
        """
        self._workers.close()


def _note(facts: Facts, servable: Servable, signature: str) -> None:
    facts.model, facts.version, facts.backend = servable.name, servable.version, servable.backend.name
    facts.signature = signature


def _deliver(
    watcher: ModelWatcher,
    version: Version,
    charge: Charge,
    loop: asyncio.AbstractEventLoop,
    done: Done,
    result: object,
    error: BaseException | None,
) -> None:
    charge.release()
    watcher.give_back(version)
    # Without a loop no caller waits, and the version must be given back all the same.
    if not loop.is_closed():
        loop.call_soon_threadsafe(done, result, error)
