"""Waits for what a test needs, by asking again and again until a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(
    condition: Callable[[], Any], timeout_s: float = 30.0, what: Any = "it did not happen", *, poll_s: float = 0.01
) -> Any:
    """Returns the first true value of a condition.

    Args:
        condition: Asked every ``poll_s`` seconds.
        timeout_s: After so many seconds the test fails.
        what: What is said then; of a function, what it returns then.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"after {timeout_s} s: {what() if callable(what) else what}"
        time.sleep(poll_s)
    return found


def until_settled(read: Callable[[], Any], *, for_s: float = 0.2) -> Any:
    """Returns a value once it has stayed the same for so many seconds."""
    value, since = read(), time.monotonic()

    def settled() -> bool:
        nonlocal value, since
        if (now := read()) != value:
            value, since = now, time.monotonic()
        return time.monotonic() - since > for_s

    until(settled, what=lambda: f"it still changes: {value}", poll_s=0.05)
    return value


async def until_async(condition: Callable[[], Any], timeout_s: float = 30.0) -> None:
    """``until`` in an event loop, which goes on meanwhile."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


def until_ended(pid: int) -> None:
    """Waits until a process that is not this one's child has ended."""
    until(lambda: not Path(f"/proc/{pid}").exists(), what=f"process {pid} lives")
