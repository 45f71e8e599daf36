"""The way of a request through the data plane: admission, greedy batches, delivery.

A lane holds the requests to one signature that wait to be computed. Nothing
waits for company: whatever is there when a worker is free is computed, together
where the model allows it. Fast models are computed on the event loop itself,
since a hop to a thread and back costs more than the prediction; requests that
arrive in one turn of the loop still share a batch.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from modelyard.errors import InternalError, ModelyardError, OverloadedError, UnavailableError
from modelyard.serving._costs import BatchCost
from modelyard.serving._encoding import Encode, encode_all
from modelyard.serving._plans import Plan, check_rows, merge
from modelyard.serving._requests import Arrays, Caller, PredictRequest
from modelyard.serving._statistics import Execution, ModelStatistics, RequestTimes
from modelyard.serving._versions import Version
from modelyard.serving._watcher import ModelWatcher

_LOG = logging.getLogger("modelyard.serving")

#: A hop to a worker thread and back costs about this much: below it a prediction is cheaper in place.
INLINE_SECONDS = 0.0004
#: What is computed in place holds everybody else up for so long at most.
_MAX_INLINE_SECONDS = 0.002
#: A batch in place is cut into pieces that take so long, but not into smaller ones than so many rows.
_PIECE_SECONDS, _MIN_PIECE_ROWS = 0.0005, 8
#: More rows gain nothing as a rule, and make the first of them wait.
MAX_ROWS = 64

#: Whoever is refused is asked to come back when there may be room, within these bounds.
_MIN_RETRY_S, _MAX_RETRY_S = 0.05, 10.0

Done = Callable[[Any, BaseException | None], None]


class Ticket:
    """One request that was let in.

    Args:
        request: The request.
        encode: Turns the prediction into what the transport sends.
        done: Called with the answer, or with an error.
    """

    __slots__ = (
        "arrived_ns", "caller", "cost", "decoded_ns", "done", "encode", "inputs", "plan", "request", "rows",
        "started_ns", "version", "watcher",
    )  # fmt: skip

    plan: Plan
    inputs: Arrays
    watcher: ModelWatcher
    version: Version
    started_ns: int
    decoded_ns: int

    def __init__(self, request: PredictRequest, encode: Encode, done: Done) -> None:
        self.arrived_ns = time.perf_counter_ns()
        self.request = request
        self.caller: Caller | None = request.caller
        self.encode = encode
        self.done = done
        self.rows = 1
        self.cost = 0.0

    def refusal(self) -> ModelyardError | None:
        """Why it should not be computed any more; None where it should."""
        return None if self.caller is None else self.caller.refusal()


class Door:
    """Counts what waits, and refuses what would wait too long.

    Args:
        workers: Batches that are computed at the same time.
        max_waiting: Requests that may wait; 0 for any number.
        max_delay_s: Seconds that a request may have to wait; 0 for any time.
    """

    def __init__(self, *, workers: int, max_waiting: int, max_delay_s: float) -> None:
        self._workers = workers
        self._max_waiting = max_waiting
        self._max_delay_s = max_delay_s or math.inf
        self.waiting = 0
        self._backlog_s = 0.0
        #: Nothing is begun any more.
        self.closed = False

    def enter(self, caller: Caller | None, cost: float, *, joined: float = 0.0) -> None:
        """Lets a request in.

        Args:
            caller: Who waits for it.
            cost: Seconds of a worker that it will take.
            joined: Seconds that the rest of its batch takes, which no other worker can take from it.

        Raises:
            OverloadedError: Too many wait, or the wait would be longer than the caller's time, or than the limit.
        """
        wait = joined + max(0.0, self._backlog_s - joined) / self._workers
        if self._max_waiting and self.waiting >= self._max_waiting:
            raise _overloaded(
                f"The server is overloaded: {self.waiting} requests wait, the most that "
                "--max_queued_requests allows. Try again in a moment.",
                wait,
            )
        limit = self._max_delay_s
        if caller is not None and caller.deadline is not None:
            limit = min(limit, caller.deadline - time.monotonic())
        if wait + cost > limit and self.waiting:
            raise _overloaded(
                f"The server is overloaded: an answer would take about {wait + cost:.2f} s, longer than the "
                f"{max(0.0, limit):.2f} s there are. Try again in a moment.",
                wait + cost - limit,
            )
        self.waiting += 1
        self._backlog_s += cost

    def refusal(self, ticket: Ticket) -> ModelyardError | None:
        """Why a request should not be computed any more; None where it should.

        Args:
            ticket: The request.
        """
        if self.closed:
            return UnavailableError("The server is stopping; ask another one.")
        return ticket.refusal()

    def leave(self, cost: float) -> None:
        """A request was computed, or given up.

        Args:
            cost: As on entering.
        """
        self.waiting -= 1
        # Rounding must not leave a ghost of a backlog behind.
        self._backlog_s = self._backlog_s - cost if self.waiting else 0.0


def _overloaded(text: str, seconds: float) -> OverloadedError:
    error = OverloadedError(text)
    # In whole steps: the answers to callers that are refused together are alike, and made once.
    error.retry_after_s = min(_MAX_RETRY_S, max(1, math.ceil(seconds / _MIN_RETRY_S)) * _MIN_RETRY_S)
    return error


class Lane:
    """The requests that wait for one plan, and for inputs of one inner shape.

    Args:
        plan: What they ask for.
        loop: The event loop that all methods are called on.
        pool: Where slow batches are computed.
        workers: Batches that are computed there at the same time.
        door: What waits is counted there.
        statistics: What is answered is counted there.
        inline: Fast batches are computed on the event loop.
        max_rows: Rows in a batch at most.
        shared: Requests are computed together.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        loop: asyncio.AbstractEventLoop,
        pool: Executor,
        workers: int,
        door: Door,
        statistics: ModelStatistics,
        inline: bool,
        max_rows: int = MAX_ROWS,
        shared: bool = True,
    ) -> None:
        self._plan = plan
        self._max_rows = max_rows
        self._shared = shared
        self._loop = loop
        self._pool = pool
        self._workers = workers
        self._door = door
        self._statistics = statistics
        self._inline = inline
        self._running = 0
        self._scheduled = False
        #: Rows that wait here, those of the last of their batches, and those that a batch took at most the last time.
        self._waiting = self._open = 0
        self._limit = max_rows
        #: What batches of these shapes take.
        self._cost = BatchCost(plan.fixed)
        self._urgent: deque[Ticket] = deque()
        self._patient: deque[Ticket] = deque()

    def enter(self, ticket: Ticket) -> None:
        """Queues a request whose inputs are complete, if the door lets it in.

        Whoever opens a batch pays for what it costs as such, those that join it
        for their rows.

        Args:
            ticket: The request.

        Raises:
            OverloadedError: As :meth:`Door.enter`.
        """
        # What other shapes take says nothing of these, but is better than nothing.
        whole, each = (self._cost if self._cost.known else self._plan.batch_cost).parts
        rows = ticket.rows
        joins = self._shared and self._waiting and self._open + rows <= self._limit
        ticket.cost = each * rows + (0.0 if joins else whole)
        self._door.enter(ticket.caller, ticket.cost, joined=whole + each * self._open if joins else 0.0)
        self._open = self._open + rows if joins else rows
        self._add(ticket)

    def _add(self, ticket: Ticket) -> None:
        self._waiting += ticket.rows
        low = ticket.caller is not None and ticket.caller.low_priority
        (self._patient if low else self._urgent).append(ticket)
        if self._running < self._workers:
            # Not at once: what else arrived in this turn of the loop comes along.
            self._schedule()

    def _flush(self) -> None:
        self._scheduled = False
        left: int | None = None
        while self._running < self._workers:
            row_seconds = self._plan.row_seconds
            in_place = self._inline and row_seconds < INLINE_SECONDS
            most = int(_MAX_INLINE_SECONDS / max(row_seconds, 1e-6)) if in_place else 0
            if left is None:
                # What would hold everybody else up is computed in pieces, with a turn of the loop between them:
                # meanwhile clients read the answers of the piece before.
                piece = max(_MIN_PIECE_ROWS, int(_PIECE_SECONDS / max(row_seconds, 1e-6)))
                left = min(most, piece) if in_place else self._max_rows
                self._limit = min(self._max_rows, left)
            batch = self._take(min(self._max_rows, left))
            if not batch:
                return
            rows = sum(ticket.rows for ticket in batch)
            if in_place and rows <= most:
                self._deliver(batch, compute(self._plan, batch, self._statistics, cost=self._cost))
                left -= rows
                if left <= 0 and (self._urgent or self._patient):
                    self._schedule()
                    return
            else:
                self._running += 1
                self._pool.submit(self._work, batch)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _take(self, limit: int) -> list[Ticket]:
        """The next batch of so many rows, without those that nobody waits for any more."""
        batch: list[Ticket] = []
        rows = 0
        if not self._shared:
            limit = 1
        for queue in (self._urgent, self._patient):
            while queue and (not batch or rows + queue[0].rows <= limit):
                ticket = queue.popleft()
                self._waiting -= ticket.rows
                refusal = self._door.refusal(ticket)
                if refusal is not None:
                    self._deliver([ticket], [(None, refusal)])
                    continue
                batch.append(ticket)
                rows += ticket.rows
            if queue:
                break
        self._open = min(self._open, self._waiting)
        return batch

    def _work(self, batch: list[Ticket]) -> None:
        answers = compute(self._plan, batch, self._statistics, cost=self._cost, threaded=True)
        self._loop.call_soon_threadsafe(self._worked, batch, answers)

    def _worked(self, batch: list[Ticket], answers: list[tuple[Any, BaseException | None]]) -> None:
        self._running -= 1
        self._deliver(batch, answers)
        self._flush()

    def _deliver(self, batch: Sequence[Ticket], answers: Sequence[tuple[Any, BaseException | None]]) -> None:
        for ticket, (result, error) in zip(batch, answers, strict=True):
            self._door.leave(ticket.cost)
            ticket.watcher.give_back(ticket.version)
            ticket.done(result, error)


def compute(
    plan: Plan,
    batch: Sequence[Ticket],
    statistics: ModelStatistics,
    *,
    cost: BatchCost | None = None,
    threaded: bool = False,
) -> list[tuple[Any, BaseException | None]]:
    """Computes and encodes a batch, on the calling thread.

    Args:
        plan: What all of them ask for.
        batch: At least one request; inputs complete and of one inner shape.
        statistics: Where they are counted.
        cost: What learns how long batches of these shapes take.
        threaded: This is a worker thread.

    Returns:
        For each request its encoded answer, or the error.
    """
    started_ns = time.perf_counter_ns()
    # A worker thread that waits for Python's lock is not computing.
    cpu_ns = time.thread_time_ns() if threaded and plan.servable.backend.computes_in_caller else None
    rows = [ticket.rows for ticket in batch]
    total = sum(rows)
    servable = plan.servable
    try:
        inputs = merge([ticket.inputs for ticket in batch])
        outputs = servable.compute(plan.signature.compute, inputs, plan.outputs)
        check_rows(outputs, rows)
    # Whatever a runtime does, every caller gets an answer.
    except Exception as exc:
        if len(batch) > 1:
            # Somebody's input is bad: everybody else must not pay for it.
            return [
                answer
                for ticket in batch
                for answer in compute(plan, [ticket], statistics, cost=cost, threaded=threaded)
            ]
        error = exc if isinstance(exc, ModelyardError) else InternalError(f"Computing failed: {type(exc).__name__}")
        if error is not exc:
            error.__cause__ = exc
            request_id = "-" if batch[0].caller is None else batch[0].caller.request_id or "-"
            place = f"model {servable.name} version {servable.version}"
            _LOG.error("request %s: %s failed unexpectedly", request_id, place, exc_info=exc)
        ended_ns = time.perf_counter_ns()
        times = [_times(batch[0], started_ns, ended_ns, ended_ns, ok=False)]
        statistics.record_all(servable.name, servable.version, times)
        plan.failed(error)
        return [(None, error)]
    computed_ns = time.perf_counter_ns()
    seconds = (computed_ns - started_ns) / 1e9
    plan.learn(seconds if cpu_ns is None else (time.thread_time_ns() - cpu_ns) / 1e9, total)
    if cost is not None:
        cost.learn(seconds, total)
        plan.batch_cost = cost
    plan.succeeded.add(len(batch))
    plan.latency.add(seconds * 1e6, len(batch))
    answers = encode_all([ticket.encode for ticket in batch], plan.spec, outputs, rows)
    # All wait for the last of them.
    ended_ns = time.perf_counter_ns()
    times = [
        _times(ticket, started_ns, computed_ns, ended_ns, ok=error is None)
        for ticket, (_, error) in zip(batch, answers, strict=True)
    ]
    execution = None
    if not servable.scheduled:
        input_ns = sum(each.input for each in times)
        execution = Execution(total, input_ns, computed_ns - started_ns, ended_ns - computed_ns)
    statistics.record_all(servable.name, servable.version, times, execution)
    return answers


def _times(ticket: Ticket, started_ns: int, computed_ns: int, ended_ns: int, *, ok: bool) -> RequestTimes:
    decode_ns = ticket.decoded_ns - ticket.started_ns
    arrived_ns = ticket.arrived_ns
    return RequestTimes(
        ok,
        ended_ns - arrived_ns,
        started_ns - arrived_ns - decode_ns,
        decode_ns,
        computed_ns - started_ns,
        ended_ns - computed_ns,
        ticket.rows,
    )
