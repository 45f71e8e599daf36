"""Quotas of principals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from modelyard.errors import OverloadedError

#: Retry after too many requests in flight; when one of them ends is not known.
_SOON_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one principal; 0 for none. Requests and rows of one second may come at once."""

    requests_per_second: float = 0.0
    rows_per_second: float = 0.0
    max_in_flight: int = 0


class _Bucket:
    """A token bucket that holds the tokens of one second, at least one."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._most = max(1.0, rate)
        self._tokens, self._at = self._most, clock()

    def wait_s(self) -> float:
        """Seconds until a whole token is there."""
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
    """What a principal has used, over all protocols."""

    def __init__(self, name: str, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._name = name
        self._requests = _Bucket(limits.requests_per_second, clock)
        self._rows = _Bucket(limits.rows_per_second, clock)
        self._in_flight = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
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
        with self._lock:
            self._rows.take(rows)

    def leave(self, *, undo: bool = False) -> None:
        """Counts a request that ends; ``undo`` also returns what it took."""
        with self._lock:
            self._in_flight -= 1
            if undo:
                self._requests.take(-1)

    def _refusal(self, limit: str, wait_s: float) -> OverloadedError:
        error = OverloadedError(f"The quota of {self._name!r} is used up: {limit}. Try again in {wait_s:.2f} s.")
        error.retry_after_s = wait_s
        return error


class Ticket:
    """An admitted request, until it is answered."""

    __slots__ = ("_quota", "_rows", "principal")

    def __init__(self, principal: str = "", quota: Quota | None = None) -> None:
        self.principal = principal
        self._quota = quota
        self._rows = 0
        if quota is not None:
            quota.enter()

    @property
    def counts(self) -> bool:
        """Whether its end must be reported."""
        return self._quota is not None

    def charge(self, rows: int) -> None:
        if self._quota is not None:
            self._rows += rows
            self._quota.charge(rows)

    def release(self) -> None:
        """Ends the request; a second call has no effect."""
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.leave()

    def undo(self) -> None:
        """Takes the request out of the quota, because it is admitted again elsewhere."""
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.charge(-self._rows)
            quota.leave(undo=True)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
