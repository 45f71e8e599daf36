"""The load generator: open loop at given moments, or closed loop with so many requests in flight."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from modelyard.errors import LoadTestError
from modelyard.loadtests.generate._outcomes import Outcome
from modelyard.loadtests.generate._record import Log, Recorder, log_from
from modelyard.loadtests.generate._sender import Answer, Cancel, Sender
from modelyard.loadtests.traffic import Checker, Request

#: Requests that leave in one turn of the loop before answers are looked at.
_BURST = 32
_TICK_S = 0.02
_LEAD_S = 0.02


class Generator:
    """Sends requests through senders and records their outcomes."""

    def __init__(self, senders: Mapping[str, Sender], checker: Checker, *, timeout_s: float = 10.0) -> None:
        self._senders = senders
        self.checker = checker
        self._timeout_s = timeout_s
        self._recorder = Recorder()
        self._due: deque[_Pending] = deque()
        self._in_flight = 0
        self._again: Callable[[], None] | None = None

    async def warm_up(self, requests: Sequence[Request], *, seconds: float = 10.0) -> None:
        """Send each request once, a few at a time, for at most so many seconds: each kind must be answered rightly."""
        log = await self.closed(requests, in_flight=4, seconds=seconds, at_most=len(requests))
        for row in log.by_kind():
            if row.failures == row.requests:
                reasons = [text for text in log.reasons if text.startswith(f"{row.name}: ")]
                raise LoadTestError(f"Before the run: no request {row.name!r} was answered rightly. {reasons[0]}")

    async def open(
        self,
        arrivals: Iterable[npt.NDArray[np.float64]],
        choose: Callable[[], Request],
        *,
        seconds: float,
        partial: bool = False,
    ) -> Log:
        """Send requests when they are due, in seconds since the begin; latency counts from that moment.

        With ``partial``, Ctrl-C ends the sending, and the log is of what was sent until then, the answers included.
        """
        ticker = asyncio.get_running_loop().create_task(self._expire())
        begin = time.perf_counter() + _LEAD_S
        planned = None
        try:
            await self._send(arrivals, choose, begin, seconds)
        except asyncio.CancelledError:
            if not partial:
                raise
            planned, seconds = seconds, max(time.perf_counter() - begin, 0.0)
        while self._in_flight:
            await asyncio.sleep(_TICK_S / 4)
        ticker.cancel()
        return dataclasses.replace(self.take(begin, seconds), planned=planned)

    async def _send(
        self,
        arrivals: Iterable[npt.NDArray[np.float64]],
        choose: Callable[[], Request],
        begin: float,
        seconds: float,
    ) -> None:
        burst = 0
        clock = time.perf_counter
        for chunk in arrivals:
            for at in chunk.tolist():
                due = begin + at
                now = clock()
                if now < due:
                    burst = 0
                    while (left := due - clock()) > 0:
                        await asyncio.sleep(left)
                elif burst >= _BURST:
                    # Behind: the answers must be looked at, nevertheless.
                    burst = 0
                    await asyncio.sleep(0)
                burst += 1
                self._start(choose(), due)
        while (left := begin + seconds - clock()) > 0:
            await asyncio.sleep(left)

    async def closed(
        self, requests: Sequence[Request], *, in_flight: int, seconds: float, at_most: int | None = None, seed: int = 0
    ) -> Log:
        """Keep so many requests in flight: how much a server can do, but not how long users would wait.

        With ``at_most`` they are sent in order, else at random. None is sent after so many seconds; the log is as long
        as it takes until the last answer.
        """
        rng = random.Random(seed)
        begin = time.perf_counter()
        loop = asyncio.get_running_loop()
        count = 0
        # Not within the callback of an answer: many at once would nest.
        slots = in_flight

        def pump() -> None:
            nonlocal count, slots
            while slots and time.perf_counter() < begin + seconds and (at_most is None or count < at_most):
                request = requests[count] if at_most is not None else rng.choice(requests)
                count += 1
                slots -= 1
                self._start(request, time.perf_counter())

        def again() -> None:
            nonlocal slots
            slots += 1
            loop.call_soon(pump)

        ticker = loop.create_task(self._expire())
        self._again = again
        pump()
        while self._in_flight or (time.perf_counter() < begin + seconds and (at_most is None or count < at_most)):
            await asyncio.sleep(_TICK_S / 4)
        self._again = None
        ticker.cancel()
        log = self.take(begin, seconds)
        # What was in flight at the end is work of the run, too: its time counts, or slow servers would look faster.
        return dataclasses.replace(log, seconds=float(log.done.max(initial=seconds)))

    def take(self, begin: float, seconds: float) -> Log:
        """The log so far; the next run starts with an empty one."""
        recorder, self._recorder = self._recorder, Recorder()
        return log_from(recorder, begin, seconds)

    def _start(self, request: Request, due: float) -> None:
        pending = _Pending(self, request, due, time.perf_counter())
        self._in_flight += 1
        self._due.append(pending)
        pending.cancel = self._senders[request.api].send(request, pending.done)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            limit = time.perf_counter() - self._timeout_s
            while self._due and (self._due[0].over or self._due[0].sent <= limit):
                pending = self._due.popleft()
                if not pending.over:
                    pending.cancel()
                    pending.done(Outcome.TIMEOUT, b"no answer in time")

    def finish(self, pending: _Pending, outcome: Outcome, body: Answer) -> None:
        """Record the outcome of a request."""
        done = time.perf_counter()
        self._in_flight -= 1
        request = pending.request
        rows = matches = 0
        if outcome is Outcome.OK:
            try:
                if isinstance(body, bytes):
                    matches = self.checker.matches(request, body)
                else:
                    matches = self.checker.judge(request, body)
                rows = request.known_rows
            except LoadTestError as exc:
                outcome = Outcome.WRONG
                body = exc.message.encode()
        if outcome is not Outcome.OK:
            self._recorder.reason(request.kind, body.decode(errors="replace") if isinstance(body, bytes) else "")
        self._recorder.add(request.kind, pending.due, pending.sent, done, outcome, rows, matches)
        if self._again is not None:
            self._again()


class _Pending:
    """A request in flight."""

    __slots__ = ("cancel", "due", "generator", "over", "request", "sent")

    def __init__(self, generator: Generator, request: Request, due: float, sent: float) -> None:
        self.generator = generator
        self.request = request
        self.due = due
        self.sent = sent
        self.over = False
        self.cancel: Cancel = _nothing

    def done(self, outcome: Outcome, body: Answer) -> None:
        if not self.over:
            self.over = True
            # It leads back to here: no request may leave garbage for the collector, whose pauses delay others.
            self.cancel = _nothing
            self.generator.finish(self, outcome, body)


def _nothing() -> None:
    return None
