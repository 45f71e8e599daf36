"""An event loop whose timers are good to some ten microseconds.

epoll waits whole milliseconds, and asyncio rounds up: each request of an open loop would leave up to a millisecond
late, which is more than a fast server takes. ``select`` takes microseconds, and an epoll descriptor can be selected on.
"""

from __future__ import annotations

import asyncio
import gc
import select
import selectors
from collections.abc import Coroutine
from typing import TypeVar

_T = TypeVar("_T")


def run_precisely(main: Coroutine[None, None, _T]) -> _T:
    """Runs a coroutine on a loop with fine timers, with short pauses for garbage collection."""
    thresholds = gc.get_threshold()
    gc.collect()
    # Who has frozen something keeps it so: to unfreeze is to unfreeze all.
    freeze = not gc.get_freeze_count()
    if freeze:
        # What exists now (TensorFlow or not, it is a lot) is not looked at again while the run lasts.
        gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    try:
        with asyncio.Runner(loop_factory=_loop) as runner:
            return runner.run(main)
    finally:
        gc.set_threshold(*thresholds)
        if freeze:
            gc.unfreeze()


def _loop() -> asyncio.AbstractEventLoop:
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(_PreciseSelector())


if hasattr(selectors, "EpollSelector"):

    class _PreciseSelector(selectors.EpollSelector):
        """Waits with ``select`` for epoll to have something."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            """Waits for ready files."""
            number = self.fileno()
            # Beyond select's 1024 descriptors the millisecond has to do.
            if timeout is None or timeout <= 0 or number >= 1024:
                return super().select(timeout)
            ready, _, _ = select.select([number], [], [], timeout)
            return super().select(0) if ready else []
