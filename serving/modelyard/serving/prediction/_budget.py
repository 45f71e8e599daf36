"""The memory that requests take beyond the bytes that were sent."""

from __future__ import annotations

import threading
from collections.abc import Callable

from modelyard.errors import OverloadedError, RequestTooLargeError

_RETRY_S = 1.0


class Budget:
    """Bytes that requests became when they were decompressed and decoded, of all models together.

    Transports bound the bytes that come. A few of them may ask for much more: by compression, by a value that stands
    for all of a tensor's, by an image of one colour.

    Args:
        limit: Bytes; 0 for any number.
        refused: Called for each request that is refused.
    """

    def __init__(self, limit: int, refused: Callable[[], None]) -> None:
        self._limit = limit
        self._refused = refused
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that are taken."""
        return self._used

    def charge(self) -> Charge:
        """The account of a request, with nothing taken yet."""
        return Charge(self)

    def take(self, charge: Charge, size: int) -> None:
        with self._lock:
            # Its thread still works on it.
            if charge.is_over:
                return
            used = self._used
            if not self._limit or used + size <= self._limit:
                self._used += size
                charge.bytes += size
                return
        self._refused()
        if size > self._limit:
            raise RequestTooLargeError(
                f"The request becomes {size} bytes more when it is decompressed and decoded; expected at most "
                f"{self._limit}, the server's --max_inflight_bytes. Send fewer rows per request."
            )
        error = OverloadedError(
            f"Decoded requests hold {used} bytes already, of --max_inflight_bytes={self._limit}; ask again later."
        )
        error.retry_after_s = _RETRY_S
        raise error

    def release(self, charge: Charge) -> None:
        with self._lock:
            self._used -= charge.bytes
            charge.bytes, charge.is_over = 0, True


class Charge:
    """What a request has of the budget, until it is released."""

    __slots__ = ("_budget", "bytes", "is_over")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.bytes = 0
        self.is_over = False

    def take(self, size: int) -> None:
        """Has so many bytes more; what is not positive costs nothing.

        Raises:
            OverloadedError: Other requests have taken them.
            RequestTooLargeError: The whole budget is smaller.
        """
        if size > 0:
            self._budget.take(self, size)

    def release(self) -> None:
        """Gives all of it back, and takes nothing any more."""
        self._budget.release(self)

    def __enter__(self) -> Charge:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
