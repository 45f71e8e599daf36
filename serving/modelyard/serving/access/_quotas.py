"""How much of the server one principal may have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from modelyard.errors import OverloadedError

#: When somebody is asked to come back who has too many requests in flight: nobody knows when one ends.
_SOON_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one principal; 0 for none.

    Attributes:
        requests_per_second: On average; what one second brings may come at once.
        rows_per_second: So, rows of predictions. A request with more rows is answered, and those after it wait.
        max_in_flight: Requests that are not answered yet.
    """

    requests_per_second: float = 0.0
    rows_per_second: float = 0.0
    max_in_flight: int = 0


class _Bucket:
    """Tokens that come at a rate; a second's worth is kept, at least one."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._most = max(1.0, rate)
        self._tokens, self._at = self._most, clock()

    def wait_s(self) -> float:
        """Seconds until a whole token is there; 0 where one is."""
        if not self._rate:
            return 0.0
        now = self._clock()
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1.0 - self._tokens) / self._rate)

    def take(self, number: float) -> None:
        """Takes tokens, also those that are not there yet."""
        self._tokens -= number


class Quota:
    """What a principal has used, over all doors.

    Args:
        name: The principal's.
        limits: The limits.
        clock: Seconds that never go back.
    """

    def __init__(self, name: str, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._name = name
        self._requests = _Bucket(limits.requests_per_second, clock)
        self._rows = _Bucket(limits.rows_per_second, clock)
        self._in_flight = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Counts a request that begins.

        Raises:
            OverloadedError: A limit is reached.
        """
        limits = self.limits
        with self._lock:
            if limits.max_in_flight and self._in_flight >= limits.max_in_flight:
                raise self._refusal(f"max_in_flight = {limits.max_in_flight}", _SOON_S)
            for bucket, name in ((self._requests, "requests_per_second"), (self._rows, "rows_per_second")):
                if wait_s := bucket.wait_s():
                    raise self._refusal(f"{name} = {getattr(limits, name):g}", wait_s)
            self._in_flight += 1
            self._requests.take(1)

    def charge(self, rows: int) -> None:
        """Counts the rows of a request."""
        with self._lock:
            self._rows.take(rows)

    def leave(self, *, undo: bool = False) -> None:
        """Counts a request that ends.

        Args:
            undo: It is as if it had not begun.
        """
        with self._lock:
            self._in_flight -= 1
            if undo:
                self._requests.take(-1)

    def _refusal(self, limit: str, wait_s: float) -> OverloadedError:
        error = OverloadedError(f"The quota of {self._name!r} is used up: {limit}. Try again in {wait_s:.2f} s.")
        error.retry_after_s = wait_s
        return error


class Ticket:
    """A request that was let in; a context manager, until it is answered.

    Args:
        principal: Whose request it is; empty for anybody's.
        quota: What it is counted in; None where nothing is.
    """

    __slots__ = ("_quota", "_rows", "principal")

    def __init__(self, principal: str = "", quota: Quota | None = None) -> None:
        self.principal = principal
        self._quota = quota
        self._rows = 0
        if quota is not None:
            quota.enter()

    @property
    def counts(self) -> bool:
        """Whether anybody must be told of its end."""
        return self._quota is not None

    def charge(self, rows: int) -> None:
        """Counts the rows of the request, once they are known."""
        if self._quota is not None:
            self._rows += rows
            self._quota.charge(rows)

    def release(self) -> None:
        """The request is answered, or nobody waits for it any more; the second time means nothing."""
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.leave()

    def undo(self) -> None:
        """The request is let in again elsewhere, and counted there."""
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.charge(-self._rows)
            quota.leave(undo=True)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
