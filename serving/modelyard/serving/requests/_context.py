"""The context of one request: its id, and what is learned of it while it is answered."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

#: The id's first part is the process's own; the core has another.
_PROCESS = secrets.token_hex(8)
_NUMBERS = itertools.count()
#: As the native core takes them; its stub says what is what.
Told = tuple[str, int, str, str, str, int, tuple[int, int, int], tuple[int, int, int, int, int] | None]


def new_request_id() -> str:
    """A name for a request whose caller gave it none."""
    return f"{_PROCESS}-{next(_NUMBERS):012x}"


# Filled by several packages, one after the other; frozen only where a record is made of it.
@dataclass(kw_only=True, slots=True)
class Facts:
    """What is found out while a request is answered, for logs and traces."""

    model: str = ""
    #: The version that answered; 0 for none.
    version: int = 0
    signature: str = ""
    backend: str = ""
    #: Who asked, where callers have names.
    principal: str = ""
    rows: int = 0
    #: Number of its batch; 0 for none.
    batch: int = 0
    batch_rows: int = 0
    batch_requests: int = 0
    #: When its inputs were complete, by ``time.perf_counter_ns()``; 0 where it was not computed.
    decoded_ns: int = 0
    begun_ns: int = 0
    #: Nanoseconds that the model took.
    compute_ns: int = 0
    ended_ns: int = 0

    def durations(self) -> tuple[int, int, int, int]:
        """Nanoseconds in the queue, from there to the model, in the model, and in the batch."""
        batch_ns = self.ended_ns - self.begun_ns
        return self.begun_ns - self.decoded_ns, max(0, batch_ns - self.compute_ns), self.compute_ns, batch_ns

    def told(self) -> Told:
        """What the native core does not know of the request."""
        times = None if not self.ended_ns else (*self.durations(), time.perf_counter_ns() - self.ended_ns)
        batch = (self.batch, self.batch_rows, self.batch_requests)
        return (self.model, self.version, self.signature, self.backend, self.principal, self.rows, batch, times)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestContext:
    """One request."""

    request_id: str
    #: What is learned of it, for records; None where it is not recorded.
    facts: Facts | None = None


_NO_REQUEST = RequestContext(request_id="-")
#: The gRPC call that this task answers.
current_request: ContextVar[RequestContext] = ContextVar("current_request", default=_NO_REQUEST)


def unexpected(error: BaseException, what: str, request_id: str, log: logging.Logger) -> str:
    """Reports an error that is a bug, once: its text may hold secrets."""
    log.error("request %s: %s failed unexpectedly", request_id, what, exc_info=error)
    return f"Internal error. The server's log has the details under request {request_id}."


def once(function: Callable[..., object]) -> Callable[..., None]:
    """Calls a function the first time only: of several threads that know how something ended, one counts."""
    called = threading.Lock()

    def call(*arguments: object) -> None:
        if called.acquire(blocking=False):
            function(*arguments)

    return call
