"""Deadlines, retries, hedging, balancing and headers: every rule about sending, with no I/O in it.

The engine drives an operation's flow and tells the client, step by step, what
to do: send a call to an endpoint, race two sends, or pause. The client does it
and says what came of it; blocking and asynchronous clients differ in nothing else.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

from modelyard.clients.protocols import Answer, Call, Flow, Pause, Protocol
from modelyard.clients.transport._options import ClientOptions, RetryOptions, check_seconds
from modelyard.clients.transport._pool import Endpoint, Pool
from modelyard.clients.transport._tracing import CallSpan
from modelyard.errors import (
    ConfigurationError,
    DeadlineExceededError,
    ModelyardError,
    OverloadedError,
    UnavailableError,
)

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_R = TypeVar("_R")

REQUEST_ID = "x-request-id"
Headers = tuple[tuple[str, str], ...]


@dataclass(slots=True, eq=False)
class Send(Generic[_T_co]):
    """One call to one endpoint, and the seconds it may take."""

    endpoint: Endpoint[_T_co]
    call: Call
    headers: Headers
    timeout_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Race(Generic[_T]):
    """Two calls, of which the first answer counts; ``second`` is sent where there is none after ``delay_s``.

    ``allowed`` is asked then whether it may be sent: servers that are slow because they are overloaded shall not get
    twice as much.
    """

    first: Send[_T]
    second: Send[_T]
    delay_s: float
    allowed: Callable[[], bool]


Effect = Send[_T] | Race[_T] | Pause
Steps = Generator[Effect[_T], Answer, _R]


class RetryBudget:
    """A bucket of tokens, one for each repetition, that calls refill a little."""

    def __init__(self, options: RetryOptions) -> None:
        self._options = options
        self._tokens = options.budget
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Counts a call."""
        with self._lock:
            self._tokens = min(self._options.budget, self._tokens + self._options.budget_ratio)

    def spend(self) -> bool:
        """Takes a token; False where there is none."""
        with self._lock:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


class Engine(Generic[_T]):
    """The rules of one client."""

    def __init__(self, url: str, pool: Pool[_T], protocol: Protocol, options: ClientOptions) -> None:
        self.url = url
        self.pool = pool
        self.protocol = protocol
        self.options = options
        self.closed = False
        self._budget = RetryBudget(options.retry)
        self._base: Headers = tuple(options.metadata.items())

    def run(self, flow: Flow[_R], timeout_s: float | None, model: str) -> Steps[_T, _R]:
        """Performs an operation."""
        timeout_s = self.options.timeout_s if timeout_s is None else timeout_s
        check_seconds(timeout_s, "a timeout")
        deadline = time.monotonic() + timeout_s
        request_id = os.urandom(8).hex()
        sent = False
        span: CallSpan | None = None
        failure: BaseException | None = None
        try:
            headers = self._headers(request_id)
            step = next(flow)
            while True:
                try:
                    self._check_open()
                    if isinstance(step, Pause):
                        left = _left(deadline, timeout_s, self.url)
                        answer = yield Pause(seconds=min(step.seconds, left), until=step.until)
                    else:
                        sent = True
                        if span is None:
                            span = CallSpan(step, model, dict(headers).get(REQUEST_ID, request_id))
                            headers += span.headers
                        span.name_after(step)
                        answer = yield from self._exchange(step, headers, deadline, timeout_s)
                except ModelyardError as exc:
                    step = flow.throw(exc)
                else:
                    step = flow.send(answer)
        except StopIteration as stop:
            result: _R = stop.value
            return result
        except ModelyardError as exc:
            exc.model = exc.model or model or None
            if sent:
                exc.request_id = exc.request_id or dict(headers).get(REQUEST_ID)
            failure = exc
            raise
        finally:
            flow.close()
            if span is not None:
                span.end(failure)
            # Its traceback holds this frame.
            failure = None

    def probe(self, endpoint: Endpoint[_T]) -> Steps[_T, bool]:
        """Checks one endpoint's health and notes the result."""
        flow = self.protocol.probe()
        probed = self.pool.probed(endpoint)
        healthy = False
        try:
            headers = self._headers(os.urandom(8).hex())
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    raise TypeError("A probe pauses. This is a bug.")
                try:
                    answer = yield Send(probed, step, headers, self.options.balance.probe_timeout_s)
                except ModelyardError as exc:
                    step = flow.throw(exc)
                else:
                    step = flow.send(answer)
        except StopIteration as stop:
            healthy = stop.value
        # A probe that fails says just that: the server is not well.
        except ModelyardError:
            healthy = False
        endpoint.healthy = healthy
        return healthy

    def _exchange(self, call: Call, headers: Headers, deadline: float, timeout_s: float) -> Steps[_T, Answer]:
        retry = self.options.retry
        attempts = retry.attempts if call.retry else 1
        tried: list[Endpoint[_T]] = []
        if call.at_most_s is not None:
            timeout_s = min(timeout_s, call.at_most_s)
            deadline = min(deadline, time.monotonic() + timeout_s)
        self._budget.earn()
        attempt = 1
        longest = min(retry.longest_pause_s, retry.first_pause_s)
        while True:
            try:
                return (yield from self._attempt(call, headers, deadline, timeout_s, tried))
            except (UnavailableError, OverloadedError) as exc:
                # A close breaks the calls off that are under way: they are not to be sent again.
                self._check_open()
                if isinstance(exc, UnavailableError):
                    if tried and self.pool.watched:
                        tried[-1].healthy = False
                    # Another server is the best cure for one that is gone, and costs no server anything twice.
                    if call.retry and exc.retry_after_s is None and self.pool.fresh(tried):
                        continue
                pause = random.uniform(0, longest)
                pause = max(pause, exc.retry_after_s or 0.0)
                left = _left(deadline, timeout_s, self.url)
                if attempt >= attempts or pause >= left or not self._budget.spend():
                    raise
            attempt += 1
            longest = min(retry.longest_pause_s, 2 * longest)
            tried.clear()
            yield Pause(seconds=pause)
            self._check_open()

    def _check_open(self) -> None:
        if self.closed:
            raise UnavailableError(f"This client of {self.url} was closed; connect again.")

    def _attempt(
        self, call: Call, headers: Headers, deadline: float, timeout_s: float, tried: list[Endpoint[_T]]
    ) -> Steps[_T, Answer]:
        left = _left(deadline, timeout_s, self.url)
        endpoint = self.pool.acquire(tried)
        tried.append(endpoint)
        try:
            first = Send(endpoint, call, headers, left)
            delay_s = self.options.hedge_after_s
            if delay_s is None or not call.retry or delay_s >= left:
                return (yield first)
            other = self.pool.acquire(tried)
            try:
                second = Send(other, call, headers, left - delay_s)
                return (yield Race(first, second, delay_s, self._budget.spend))
            finally:
                self.pool.release(other)
        except DeadlineExceededError as exc:
            # Only here it is known: a transport sees what calls before this one have left of it.
            exc.message = f"{exc.message.rstrip('.')}. The call's timeout_s was {timeout_s:g}."
            exc.args = (exc.message,)
            raise
        finally:
            self.pool.release(endpoint)

    def _headers(self, request_id: str) -> Headers:
        headers = self._base
        if REQUEST_ID not in self.options.metadata:
            headers += ((REQUEST_ID, request_id),)
        token = self.options.token
        if token is not None:
            value = token if isinstance(token, str) else token()
            plain = isinstance(value, str) and value.isascii() and value.isprintable()
            if not (plain and value and value == value.strip()):
                raise ConfigurationError(
                    "Expected the token as printable ASCII text, without spaces around it; received something else."
                )
            headers += (("authorization", f"Bearer {value}"),)
        return headers


def _left(deadline: float, timeout_s: float, url: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceededError(f"{url}: no answer within {timeout_s:g} s.")
    return left
