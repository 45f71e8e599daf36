"""Looks at files that may change, again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

_LOG = logging.getLogger("modelyard.serving.access")
#: Seconds between two looks at most: whoever takes a key back does not want to wait.
_WAIT_S = 2.0


async def watch(looks: Sequence[Callable[[], None]], wait_s: float) -> None:
    """Looks until it is cancelled, off the event loop.

    Args:
        looks: Each takes one look, and logs what is wrong.
        wait_s: Seconds between two, where that is less than two seconds.
    """
    while True:
        await asyncio.sleep(min(wait_s, _WAIT_S) if wait_s > 0 else _WAIT_S)
        for look in looks:
            try:
                await asyncio.to_thread(look)
            # Nobody waits for this task: if it died, a key that was taken back would stay valid.
            except Exception:
                _LOG.exception("a look at keys and certificates failed; trying again")
