"""What the asynchronous client does with time and tasks.

asyncio is imported where it is used: it takes as long to import as the rest of the client.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any
from typing import Protocol as Interface

from modelyard.clients.api._many import Batch, BatchSteps, ManyOptions, Progress, Row, RowResult, batch_steps
from modelyard.clients.protocols import Answer, Pause
from modelyard.clients.transport import Endpoint, Pool, Race, Send
from modelyard.clients.values import Prediction
from modelyard.errors import ConfigurationError, ModelyardError

if TYPE_CHECKING:
    import asyncio

Call = Callable[[Row], Coroutine[Any, Any, Prediction]]
_Probe = Callable[[Endpoint["AsyncTransport"]], Awaitable[object]]


class AsyncTransport(Interface):
    """Carries bytes to one server and back."""

    async def send(self, send: Send[object]) -> Answer:
        """Sends one request and waits for its answer."""

    async def close(self) -> None:
        """Frees the connections."""


class AsyncRunner:
    """Pauses, hedged calls and health checks, on an event loop."""

    def __init__(self) -> None:
        self._watcher: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def check_loop(self) -> None:
        """Remembers the event loop of the first call; raises ConfigurationError in another one."""
        import asyncio

        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        # Connections, timers and locks belong to the loop they were made in.
        elif self._loop is not loop:
            raise ConfigurationError(
                "This client belongs to another event loop, that of its first call; make one for each loop with "
                "connect_async."
            )

    async def pause(self, pause: Pause) -> None:
        import asyncio

        if pause.until is None:
            await asyncio.sleep(pause.seconds)
            return
        over = asyncio.Event()
        pause.until.then(over.set)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), pause.seconds)

    async def race(self, race: Race[AsyncTransport]) -> Answer:
        """The first answer of two calls; the loser is cancelled."""
        import asyncio

        running = {asyncio.create_task(race.first.endpoint.transport.send(race.first))}
        try:
            done, running = await asyncio.wait(running, timeout=race.delay_s)
            if not done:
                if race.allowed():
                    running.add(asyncio.create_task(race.second.endpoint.transport.send(race.second)))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if running and all(item.exception() is not None for item in done):
                    # One failed: the other one may still answer.
                    more, running = await asyncio.wait(running)
                    done |= more
            return next((item for item in done if item.exception() is None), next(iter(done))).result()
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.gather(*running, return_exceptions=True)

    def watch(self, pool: Pool[AsyncTransport], interval_s: float, probe: _Probe) -> None:
        """Starts the health checks of a pool, once."""
        if self._watcher is None:
            import asyncio

            self._watcher = asyncio.create_task(_probe_forever(pool, interval_s, probe))

    async def close(self) -> None:
        self.check_loop()
        if self._watcher is not None:
            import asyncio

            self._watcher.cancel()
            # However it ended: the transports are closed after this.
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None


async def _probe_forever(pool: Pool[AsyncTransport], interval_s: float, probe: _Probe) -> None:
    import asyncio

    while True:
        await asyncio.sleep(interval_s)
        # A name that cannot be resolved now keeps its addresses; the calls say what is wrong.
        with contextlib.suppress(ModelyardError):
            await asyncio.to_thread(pool.refresh)
        # A token that cannot be had now says nothing about the servers, and the next checks may have one.
        await asyncio.gather(*(probe(endpoint) for endpoint in pool.endpoints), return_exceptions=True)


async def run_many(
    drive: Callable[[BatchSteps, Call], Coroutine[Any, Any, list[RowResult]]],
    call: Call,
    rows: Iterable[Row] | AsyncIterable[Row],
    options: ManyOptions,
) -> AsyncIterator[RowResult]:
    """Predicts rows in tasks; the rows are read as the results are iterated over."""
    import asyncio

    counter = Progress(options)
    pending: deque[asyncio.Task[list[RowResult]]] = deque()
    try:
        try:
            async for batch in _batches(rows, options):
                pending.append(asyncio.create_task(drive(batch_steps(batch), call)))
                if len(pending) >= options.concurrency:
                    for result in counter.count(await _next(pending, options)):
                        yield result
        except Exception:
            # Where the rows end in an error, the answers to those before it are not lost.
            while pending:
                for result in counter.count(await _next(pending, options)):
                    yield result
            raise
        while pending:
            for result in counter.count(await _next(pending, options)):
                yield result
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _batches(rows: Iterable[Row] | AsyncIterable[Row], options: ManyOptions) -> AsyncIterator[Batch]:
    batch: Batch = []
    index = 0
    try:
        async for row in _each(rows):
            if index not in options.skip:
                batch.append((index, row))
            index += 1
            if len(batch) == options.batch_size:
                yield batch
                batch = []
    except Exception:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


async def _each(rows: Iterable[Row] | AsyncIterable[Row]) -> AsyncIterator[Row]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row


async def _next(pending: deque[asyncio.Task[list[RowResult]]], options: ManyOptions) -> list[RowResult]:
    import asyncio

    if options.ordered:
        task = pending[0]
        await asyncio.wait([task])
    else:
        done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        task = next(item for item in pending if item in done)
    pending.remove(task)
    return task.result()
