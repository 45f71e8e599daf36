"""The data plane: what a request means, with no transport in it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from modelyard.artifact import CLASSIFY_METHOD, PREDICT_METHOD, REGRESS_METHOD, Signature
from modelyard.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidModelSpecError,
    InvalidRequestError,
    ModelyardError,
    UnavailableError,
)
from modelyard.serving.batching import Batcher, Done, ModelThreads, Task
from modelyard.serving.metrics import Metrics, ModelStatistics, Parts
from modelyard.serving.prediction._inference import Classification, InferenceTask, Regression, check_tasks, infer
from modelyard.serving.prediction._log import Method, PredictionLogs
from modelyard.serving.prediction._metadata import ModelMetadata
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
from modelyard.wire import grpc_status_of

_T = TypeVar("_T")
#: More rows gain nothing as a rule, and make the first of them wait.
_MAX_ROWS = 64
_NO_SIGNATURE = "No signature was found with the name"


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
        rollout: Chooses the version of requests that name none; None for the newest.
        statistics: What every door's requests are counted in.
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
        self._max_batch_rows = max_batch_rows
        self._new_threads = partial(
            ModelThreads,
            threads=batch_threads or workers,
            workers=workers,
            max_waiting=max_queued_requests,
            max_delay_s=max_queue_delay_s,
        )
        #: What every door's requests are counted in.
        self.statistics = statistics or ModelStatistics()
        self._batcher = Batcher(metrics, self.statistics, max_rows=max_batch_rows)
        #: By model; what has none, such as the metrics page, is under the empty name, which no model has.
        self._threads: dict[str, ModelThreads] = {}
        self._lock = threading.Lock()
        #: By thread, the answer that it works for, where it is no batch's.
        self._working: dict[int, Future[Any]] = {}
        manager.before_suspending(self._give_up)

    @property
    def max_batch_rows(self) -> int:
        """Rows that are computed together at most."""
        return self._max_batch_rows

    @property
    def waiting(self) -> int:
        """Requests that were let in and are not answered yet."""
        return sum(threads.waiting for threads in list(self._threads.values()))

    async def submit(self, request: PredictRequest, encode: Callable[[Prediction], _T]) -> _T:
        """Computes one prediction, on a thread of its model.

        Where the waiting task is cancelled before the prediction has begun, it costs nothing.

        Args:
            request: The request.
            encode: Turns the prediction into what the transport sends; it is
                called on the thread that computed it.

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
        self.begin(request, encode, partial(_settle, future))
        try:
            return await future
        except asyncio.CancelledError:
            if request.caller is not None:
                request.caller.leave()
            raise
        finally:
            # An error that is raised here holds this frame by its traceback, and the future holds the error.
            del future

    def begin(self, request: PredictRequest, encode: Callable[[Prediction], Any], done: Done) -> None:
        """Starts one prediction; :meth:`submit` for transports that have no task to wait in.

        Args:
            request: The request.
            encode: As for :meth:`submit`.
            done: Called once, on the event loop, with the encoded answer or
                with one of the errors that :meth:`submit` raises.
        """
        loop = asyncio.get_running_loop()
        arrived_ns = time.perf_counter_ns()
        watcher = version = None
        try:
            if self.rollout is not None:
                request, encode, done = self.rollout.begin(request, encode, done)
            watcher = self._manager.watcher(request.spec)
            version = watcher.lend(request.spec)
            if self._logs is not None:
                request, encode = self._logs.recorded(watcher.config.prediction_log, request, encode)
            plan = plan_of(version.loaded, request.spec.signature_name, request.output_filter, self._metrics)
            if request.caller is not None and request.caller.facts is not None:
                _note(request.caller.facts, plan.servable, plan.name)
            back = partial(_deliver, watcher, version, loop, done)
            threads = self._threads_of(plan.servable.name)
            task = Task(
                inputs={}, rows=1, encode=encode, done=back, caller=request.caller,
                arrived_ns=arrived_ns, started_ns=arrived_ns, decoded_ns=arrived_ns,
            )  # fmt: skip
            if request.small and plan.signature.decode is None:
                self._decode(plan, request, task)
                self._batcher.submit(plan, threads, task)
            else:
                # Large bodies and what is encoded are decoded where they do not hold anybody up.
                decode = partial(self._decode, plan, request, task)
                future = self._work(threads, request.caller, request.size, decode)
                future.add_done_callback(partial(self._prepared, plan, threads, task))
        except Exception as exc:
            if watcher is not None and version is not None:
                watcher.give_back(version)
            done(None, exc)

    def _threads_of(self, model: str) -> ModelThreads:
        """The threads of a model that was found."""
        with self._lock:
            threads = self._threads.get(model)
            if threads is None:
                refused = partial(self._metrics.refuse, model=model)
                threads = self._threads[model] = self._new_threads(refused=refused)
            return threads

    def _work(self, threads: ModelThreads, caller: Caller | None, size: int, work: Callable[[], _T]) -> Future[_T]:
        """Runs work on a thread of a model, if it is let in."""
        cost = threads.work_cost.of(size)
        threads.enter(caller, cost)

        def run() -> _T:
            if refusal := threads.refusal(caller):
                raise refusal
            current_caller.set(caller)
            started = time.perf_counter()
            ok = False
            try:
                result = work()
                ok = True
                return result
            finally:
                seconds = time.perf_counter() - started
                # What fails early says nothing of what the others cost.
                if ok or seconds > cost:
                    threads.work_cost.learn(seconds, size)

        future = threads.work.submit(run)
        # Also where it was given up before it began.
        future.add_done_callback(lambda _: threads.leave(cost))
        return future

    def _prepared(self, plan: Plan, threads: ModelThreads, task: Task, decoded: Future[None]) -> None:
        """Queues a request that was decoded on a thread of its model."""
        try:
            decoded.result()
            self._batcher.submit(plan, threads, task)
        # The thread has nobody else to tell.
        except Exception as exc:
            task.done(None, exc)

    def _decode(self, plan: Plan, request: PredictRequest, task: Task) -> None:
        task.started_ns = time.perf_counter_ns()
        inputs: Arrays | None = None
        try:
            inputs = request.inputs(plan.signature)
            self._check_method(plan.signature)
            inputs = plan.servable.complete(plan.signature, inputs)
            task.rows = plan.rows(inputs)
            if request.caller is not None and request.caller.charge is not None:
                request.caller.charge(task.rows)
            task.inputs = plan.servable.decoded(plan.signature, inputs)
        except ModelyardError as exc:
            self._batcher.failed(plan, task, exc)
            names = inputs if inputs is not None else request.names() if request.names else ()
            hint = other_signature(names, plan.signature, plan.servable.signatures)
            if hint and isinstance(exc, InvalidRequestError):
                raise type(exc)(f"{exc.message.rstrip('.')}. {hint}") from exc
            raise
        task.decoded_ns = time.perf_counter_ns()

    def _check_method(self, signature: Signature) -> None:
        if self._check_methods and signature.method != PREDICT_METHOD:
            # Upstream's code for this is INTERNAL, for the other methods INVALID_ARGUMENT.
            raise InternalError(
                f"Expected prediction signature method_name to be {PREDICT_METHOD}. Was: {signature.method}"
            )

    async def offload(self, work: Callable[[], _T], caller: Caller | None = None, *, model: str = "") -> _T:
        """Runs work that would block the event loop on a worker thread.

        Args:
            work: Called without arguments.
            caller: Who waits for it; work that nobody waits for any more is not begun.
            model: The model that answers, whose threads do it; where it has answered nothing yet, and for what no
                model answers, threads that all share.

        Raises:
            DeadlineExceededError: The caller's deadline passed before the work began.
            OverloadedError: Too much work waits already.
            RequestCancelledError: The caller went away before the work began.
        """
        threads = self._threads_of(model if model in self._threads or self._manager.has(model) else "")
        if caller is None:
            return await asyncio.get_running_loop().run_in_executor(threads.work, work)
        answer: Future[_T] = Future()

        def run() -> None:
            self._working[threading.get_ident()] = answer
            try:
                _settle(answer, work(), None)
            finally:
                del self._working[threading.get_ident()]

        future = self._work(threads, caller, 0, run)
        future.add_done_callback(partial(_settle_failed, answer))
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            caller.leave()
            future.cancel()
            raise

    def _give_up(self, servable: Servable, threads: Sequence[int], limit_s: float, text: str) -> None:
        """Answers who waits for a version that computes for too long; another server may answer those that waited."""
        late = DeadlineExceededError(text)
        for plan in list(servable.plans.values()):
            for queue in list(plan.queues.values()):
                queue.give_up(threads, late, UnavailableError(text))
        for thread in threads:
            answer = self._working.get(thread)
            if answer is not None:
                _settle(answer, None, late)

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
        task = InferenceTask(spec=spec, method=CLASSIFY_METHOD)
        (answer,) = self._infer([task], examples, _NO_SIGNATURE, "Classify")
        if not isinstance(answer, Classification):
            raise InternalError("A classify task was answered with a regression. This is a bug.")
        return answer

    def regress(self, spec: ModelSpec, examples: Sequence[bytes]) -> Regression:
        """Regresses examples, on the calling thread; raises as :meth:`classify` does.

        Args:
            spec: The servable and the signature.
            examples: Serialized ``tf.Example`` messages.
        """
        task = InferenceTask(spec=spec, method=REGRESS_METHOD)
        (answer,) = self._infer([task], examples, _NO_SIGNATURE, "Regress")
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
        return self._infer(tasks, examples, "Requested signature not found in model graph", "MultiInference")

    def _infer(
        self, tasks: Sequence[InferenceTask], examples: Sequence[bytes], complaint: str, method: Method
    ) -> tuple[Classification | Regression, ...]:
        # One servable for all tasks: their answers belong to the same version.
        spec = tasks[0].spec
        with (
            nullcontext(spec) if self.rollout is None else self.rollout.chosen(spec, current_caller.get()) as spec,
            self._manager.acquire(spec) as servable,
            self.statistics.measure(
                servable.name,
                servable.version,
                arrived_ns=time.perf_counter_ns(),
                executed=servable.batching is None,
                parts=self._parts_of(servable, tasks[0].spec.signature_name),
            ) as timing,
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
            caller = current_caller.get()
            if caller is not None and caller.charge is not None:
                caller.charge(len(examples))
            facts = caller and caller.facts
            if facts:
                _note(facts, servable, tasks[0].spec.signature_name)
                facts.rows = len(examples)
                facts.decoded_ns = facts.begun_ns = time.perf_counter_ns()
            model = {"model": servable.name}
            self._metrics.observe(":tensorflow:serving:request_example_counts", model, len(examples))
            self._metrics.count(":tensorflow:serving:request_example_count_total", model, len(examples))
            api = "MultiInference" if len(tasks) > 1 else tasks[0].method.rpartition("/")[2].capitalize()
            batched = self._batcher.batched(servable, self._threads_of(servable.name))
            answers = self._timed(servable, api, lambda: tuple(infer(batched, task, examples) for task in tasks))
            timing.computed()
            if facts and not facts.batch:
                facts.ended_ns = time.perf_counter_ns()
                facts.compute_ns = facts.ended_ns - facts.begun_ns
            if self._logs is not None:
                config = self._manager.watcher(tasks[0].spec).config.prediction_log
                self._logs.inferred(config, method, tasks, examples, answers, current_caller.get())
            return answers

    def _parts_of(self, servable: Servable, signature: str) -> Parts | None:
        """Where a request is recorded by its signature; None for a name that the model does not have."""
        if signature not in servable.signatures:
            return None
        return self._metrics.parts(servable.name, servable.version, signature, servable.backend.name)

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
        """Drops work that has not begun, waits for work in progress, and ends the threads of all models.

        What was let in is answered as the event loop goes on: call this from another thread.
        """
        for threads in list(self._threads.values()):
            threads.close()


def _note(facts: Facts, servable: Servable, signature: str) -> None:
    facts.model, facts.version, facts.backend = servable.name, servable.version, servable.backend.name
    facts.signature = signature


def _deliver(
    watcher: ModelWatcher,
    version: Version,
    loop: asyncio.AbstractEventLoop,
    done: Done,
    result: Any,
    error: BaseException | None,
) -> None:
    watcher.give_back(version)
    # Nobody waits where there is no loop any more, and those behind it must be told all the same.
    if not loop.is_closed():
        loop.call_soon_threadsafe(done, result, error)


def _settle(future: asyncio.Future[Any] | Future[Any], result: Any, error: BaseException | None) -> None:
    # Of two who know an answer, the first counts.
    with contextlib.suppress(InvalidStateError, asyncio.InvalidStateError):
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(_bare(error))


def _settle_failed(answer: Future[Any], work: Future[None]) -> None:
    """Work that was not begun, or has failed."""
    if work.cancelled():
        answer.cancel()
    elif (error := work.exception()) is not None:
        _settle(answer, None, error)


def _bare(error: BaseException) -> BaseException:
    """An error of ours, whose message says everything, without the frames that hold whoever is told of it.

    Each refusal would be a cycle of some fifty objects otherwise, and a server
    that refuses much would stand still for the garbage collector.
    """
    return error.with_traceback(None) if isinstance(error, ModelyardError) else error
