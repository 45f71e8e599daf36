"""A worker's side: it asks the supervisor to change all workers, and for the counters of the others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from modelyard.errors import UnavailableError
from modelyard.serving.metrics import Snapshot
from modelyard.serving.runtime.workers._channel import Channel

_LOG = logging.getLogger("modelyard.serving")
#: Seconds between two reports: what a worker counts in its last ones is lost if it is killed.
_REPORT_S = 1.0


class WorkerLink:
    """What a worker knows of the others.

    Args:
        end: The worker's end of the control channel.
        apply: Applies a change to this process's models.
        snapshot: The counters of this process.
        leave: Called when the supervisor is gone: a worker does not outlive it.
    """

    def __init__(
        self,
        end: socket.socket,
        *,
        apply: Callable[[Any], Awaitable[None]],
        snapshot: Callable[[], Snapshot],
        leave: Callable[[], None],
    ) -> None:
        self._end = end
        self._apply = apply
        self._snapshot = snapshot
        self._leave = leave
        self._channel = Channel(self._answer)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> WorkerLink:
        await self._channel.open(self._end)
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._report())]
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(UnavailableError):
            await self._channel.ask("report", self._snapshot())
        for task in self._tasks:
            task.cancel()

    async def begin(self) -> tuple[list[Any], bool]:
        """What was changed since the first workers started, in order, and whether others can answer requests now."""
        answer = await self._channel.ask("begin")
        return answer["changes"], answer["others"]

    async def loaded(self) -> None:
        """Says that this worker has tried its models, and waits until all of the first ones have."""
        await self._channel.ask("loaded")

    async def ready(self) -> None:
        """Says that this worker takes requests."""
        await self._channel.ask("ready")

    async def change(self, change: Any) -> None:
        """Changes all workers, this one among them; raises what the first raises that cannot do it.

        Args:
            change: What ``apply`` takes; JSON can hold it.

        Raises:
            ModelyardError: A worker could not.
        """
        await self._channel.ask("change", change)

    async def snapshots(self) -> list[Snapshot]:
        """The counters of all workers, and of those that are no more."""
        return [self._snapshot(), *await self._channel.ask("snapshots", self._snapshot())]

    async def _listen(self) -> None:
        await self._channel.run()
        _LOG.error("the supervisor is gone; stopping")
        self._leave()

    async def _report(self) -> None:
        # Once the supervisor is gone, so is this worker.
        with contextlib.suppress(UnavailableError):
            while True:
                await asyncio.sleep(_REPORT_S)
                await self._channel.ask("report", self._snapshot())

    async def _answer(self, name: str, value: Any) -> Any:
        if name == "change":
            await self._apply(value)
            return None
        return self._snapshot()
