"""The data plane: what a request means, with no transport in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from modelyard.artifact import CLASSIFY_METHOD, PREDICT_METHOD, REGRESS_METHOD, Signature
from modelyard.errors import InternalError, InvalidModelSpecError, InvalidRequestError, ModelyardError
from modelyard.serving._costs import RequestCost
from modelyard.serving._inference import Classification, InferenceTask, Regression, check_tasks, infer
from modelyard.serving._lanes import MAX_ROWS, Done, Door, Lane, Ticket, compute
from modelyard.serving._manager import ModelManager
from modelyard.serving._metrics import Metrics
from modelyard.serving._plans import Plan, plan_of
from modelyard.serving._requests import Arrays, Caller, ModelSpec, Prediction, PredictRequest, current_caller
from modelyard.serving._servable import Servable
from modelyard.serving._states import VersionStatus
from modelyard.serving._statistics import ModelStatistics
from modelyard.serving._validation import other_signature
from modelyard.wire import grpc_status_of, tensorflow_pb2

_T = TypeVar("_T")
#: Clients may send any inner shape where a model takes any: so many queues are kept for each signature.
_MAX_LANES = 64
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
        max_batch_rows: Rows that are computed together at most.
        max_queued_requests: Requests that may wait; 0 for any number.
        max_queue_delay_s: Seconds that a request may have to wait; 0 for any time.
    """

    def __init__(
        self,
        manager: ModelManager,
        metrics: Metrics,
        *,
        workers: int,
        check_methods: bool = False,
        inline: bool = True,
        max_batch_rows: int = MAX_ROWS,
        max_queued_requests: int = 0,
        max_queue_delay_s: float = 0.0,
        statistics: ModelStatistics | None = None,
    ) -> None:
        self._manager = manager
        self._metrics = metrics
        self._check_methods = check_methods
        self._inline = inline
        self._max_batch_rows = max_batch_rows
        self._workers = workers
        self._door = Door(workers=workers, max_waiting=max_queued_requests, max_delay_s=max_queue_delay_s)
        #: What every door's requests are counted in.
        self.statistics = statistics or ModelStatistics()
        #: What work cost that is no prediction of a known signature, such as Classify.
        self._work_cost = RequestCost()
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="modelyard-predict")

    @property
    def max_batch_rows(self) -> int:
        """Rows that are computed together at most."""
        return self._max_batch_rows

    @property
    def waiting(self) -> int:
        """Requests that were let in and are not answered yet."""
        return self._door.waiting

    async def submit(self, request: PredictRequest, encode: Callable[[Prediction], _T]) -> _T:
        """Computes one prediction, off the event loop unless that would cost more than the prediction.

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
        ticket = Ticket(request, encode, done)
        watcher = version = None
        try:
            watcher = self._manager.watcher(request.spec)
            version = watcher.lend(request.spec)
            plan = plan_of(version.loaded, request.spec.signature_name, request.output_filter, self._metrics)
            ticket.watcher, ticket.version, ticket.plan = watcher, version, plan
            self._begin(ticket)
        except Exception as exc:
            if watcher is not None and version is not None:
                watcher.give_back(version)
            done(None, exc)

    def _begin(self, ticket: Ticket) -> None:
        request, plan = ticket.request, ticket.plan
        if not (request.small and self._inline and plan.signature.decode is None):
            # Large bodies are decoded where they do not hold anybody up; then the size is known too late to batch.
            ticket.cost = plan.whole_cost.of(request.size)
            self._door.enter(request.caller, ticket.cost)
            self._pool.submit(self._whole, ticket, asyncio.get_running_loop())
            return
        self._decode(ticket)
        self._lane(plan, ticket.inputs).enter(ticket)

    def _decode(self, ticket: Ticket) -> None:
        plan = ticket.plan
        ticket.started_ns = time.perf_counter_ns()
        inputs: Arrays | None = None
        try:
            inputs = ticket.request.inputs(plan.signature)
            self._check_method(plan.signature)
            ticket.inputs = plan.check(inputs)
        except ModelyardError as exc:
            now = time.perf_counter_ns()
            self.statistics.record(
                plan.servable.name, plan.servable.version, ok=False, total_ns=now - ticket.arrived_ns
            )
            plan.failed(exc)
            names = inputs if inputs is not None else ticket.request.names() if ticket.request.names else ()
            hint = other_signature(names, plan.signature, plan.servable.signatures)
            if hint and isinstance(exc, InvalidRequestError):
                raise type(exc)(f"{exc.message.rstrip('.')}. {hint}") from exc
            raise
        ticket.rows = plan.rows(ticket.inputs)
        ticket.decoded_ns = time.perf_counter_ns()

    def _whole(self, ticket: Ticket, loop: asyncio.AbstractEventLoop) -> None:
        """Decodes, computes and encodes one request, on a worker thread."""
        answer: tuple[Any, BaseException | None]
        started = time.perf_counter()
        refusal = self._door.refusal(ticket)
        try:
            if refusal is not None:
                raise refusal
            current_caller.set(ticket.caller)
            self._decode(ticket)
            plan = ticket.plan
            ticket.inputs = plan.servable.decoded(plan.signature, ticket.inputs)
            (answer,) = compute(plan, [ticket], self.statistics, cost=plan.batch_cost, threaded=True)
        # A thread of the pool has nobody else to tell.
        except Exception as exc:
            answer = (None, _bare(exc))
        seconds, cost = time.perf_counter() - started, ticket.plan.whole_cost
        # What fails early says nothing of what the others cost.
        if refusal is None and (answer[1] is None or seconds > cost.of(ticket.request.size)):
            cost.learn(seconds, ticket.request.size)
        loop.call_soon_threadsafe(self._deliver, ticket, *answer)

    def _deliver(self, ticket: Ticket, result: Any, error: BaseException | None) -> None:
        self._door.leave(ticket.cost)
        ticket.watcher.give_back(ticket.version)
        ticket.done(result, error)

    def _lane(self, plan: Plan, inputs: Arrays) -> Lane:
        lanes = plan.lanes
        # Only inputs of one inner shape can be stacked.
        shared = plan.shared and _is_even(inputs)
        key = tuple([array.shape[1:] for array in inputs.values()]) if shared else ()
        lane: Lane | None = lanes.get(key)
        if lane is None:
            lane = Lane(
                plan,
                loop=asyncio.get_running_loop(),
                pool=self._pool,
                # Calls that change a state come one after the other: no thread but one is to wait for it.
                workers=1 if plan.signature.stateful else self._workers,
                door=self._door,
                statistics=self.statistics,
                inline=self._inline and not plan.signature.stateful,
                max_rows=self._max_batch_rows,
                shared=shared,
            )
            if len(lanes) < _MAX_LANES:
                lanes[key] = lane
        return lane

    def _check_method(self, signature: Signature) -> None:
        if self._check_methods and signature.method != PREDICT_METHOD:
            # Upstream's code for this is INTERNAL, for the other methods INVALID_ARGUMENT.
            raise InternalError(
                f"Expected prediction signature method_name to be {PREDICT_METHOD}. Was: {signature.method}"
            )

    async def offload(self, work: Callable[[], _T], caller: Caller | None = None) -> _T:
        """Runs work that would block the event loop on a worker thread.

        Args:
            work: Called without arguments.
            caller: Who waits for it; work that nobody waits for any more is not begun.

        Raises:
            DeadlineExceededError: The caller's deadline passed before the work began.
            OverloadedError: Too much work waits already.
            RequestCancelledError: The caller went away before the work began.
        """
        if caller is None:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

        def begin() -> _T:
            refusal = caller.refusal()
            if refusal is not None:
                raise refusal
            started = time.perf_counter()
            result = work()
            self._work_cost.learn(time.perf_counter() - started, 0)
            return result

        cost = self._work_cost.of(0)
        self._door.enter(caller, cost)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, begin)
        except asyncio.CancelledError:
            caller.leave()
            raise
        finally:
            self._door.leave(cost)

    def predict(self, request: PredictRequest) -> Prediction:
        """Computes one prediction on the calling thread; raises as :meth:`submit` does.

        Args:
            request: The request.
        """
        ticket = Ticket(request, lambda prediction: prediction, lambda *_: None)
        watcher = self._manager.watcher(request.spec)
        version = watcher.lend(request.spec)
        try:
            plan = plan_of(version.loaded, request.spec.signature_name, request.output_filter, self._metrics)
            ticket.plan = plan
            self._decode(ticket)
            ticket.inputs = plan.servable.decoded(plan.signature, ticket.inputs)
            ((result, error),) = compute(plan, [ticket], self.statistics)
        finally:
            watcher.give_back(version)
        if error is not None:
            raise error
        prediction: Prediction = result
        return prediction

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
            self.statistics.measure(
                servable.name, servable.version, arrived_ns=time.perf_counter_ns(), executed=not servable.scheduled
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
        """Drops work that has not begun, waits for work in progress, and ends the worker threads.

        What was let in gives back its version of the model as the event loop
        goes on: call this from another thread.
        """
        self._door.closed = True
        self._pool.shutdown(wait=True)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(_bare(error))


def _bare(error: BaseException) -> BaseException:
    """An error of ours, whose message says everything, without the frames that hold whoever is told of it.

    Each refusal would be a cycle of some fifty objects otherwise, and a server
    that refuses much would stand still for the garbage collector.
    """
    return error.with_traceback(None) if isinstance(error, ModelyardError) else error


def _is_even(inputs: Arrays) -> bool:
    """Whether all inputs have as many rows: a model that broadcasts takes others, too, but not beside a neighbour's."""
    return len(inputs) == 1 or len({len(array) for array in inputs.values()}) == 1
