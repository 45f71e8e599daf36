"""Time limits of requests, for the price of a dictionary's entry each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Timeouts:
    """Ends what takes too long. All get the same time, so that the oldest is always the first.

    Args:
        seconds: That time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._tick = min(1.0, max(0.005, seconds / 10))
        self._waiting: dict[object, tuple[float, Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, key: object, expire: Callable[[], None]) -> None:
        """Starts the clock of one request.

        Args:
            key: The request.
            expire: Called when its time is over.
        """
        self._waiting[key] = (time.monotonic() + self._seconds, expire)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick, self._look)

    def discard(self, key: object) -> bool:
        """Stops a clock.

        Args:
            key: The request.

        Returns:
            Whether it was still running.
        """
        return self._waiting.pop(key, None) is not None

    def _look(self) -> None:
        now = time.monotonic()
        late = []
        for key, (end, expire) in self._waiting.items():
            if end > now:
                break
            late.append((key, expire))
        for key, expire in late:
            del self._waiting[key]
            expire()
        self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(self._tick, self._look)
