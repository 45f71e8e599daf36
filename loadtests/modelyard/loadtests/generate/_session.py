"""A run: connections, warm-up, the load, and what else goes on meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.loadtests.generate._generator import Generator
from modelyard.loadtests.generate._http1 import Http1Sender
from modelyard.loadtests.generate._http2 import Http2Sender
from modelyard.loadtests.generate._precise import run_precisely
from modelyard.loadtests.generate._record import Log
from modelyard.loadtests.generate._sender import Sender, endpoint
from modelyard.loadtests.generate._server_metrics import Split, Watcher, splits
from modelyard.loadtests.options import LoadTestOptions, Shape
from modelyard.loadtests.traffic import Checker, Request

#: Records an event of the run.
Mark = Callable[[str], None]
#: Something that goes on while the load does; ends when it is cancelled, or before.
Side = Callable[[Mark], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The log of a run, and what else was seen."""

    #: Every request.
    log: Log
    #: Where the time went inside the server; empty where it has no metrics page.
    server: tuple[Split, ...] = ()
    #: What else happened: seconds since the begin, and a text.
    events: tuple[tuple[float, str], ...] = ()
    #: Share of one core that the generator took.
    generator_cpu: float = 0.0


@dataclass(kw_only=True)
class Session:
    """Connections to one server, on one event loop."""

    generator: Generator
    #: Looks at the server's metrics.
    watcher: Watcher
    #: What happened, by the run's clock.
    events: list[tuple[float, str]] = field(default_factory=list)

    async def open(
        self,
        shape: Shape,
        requests: Sequence[Request],
        *,
        poisson: bool = True,
        seed: int = 0,
        sides: Sequence[Side] = (),
        partial: bool = False,
    ) -> Run:
        """Run an open loop with requests chosen at random; ``partial``: see :meth:`Generator.open`."""
        rng = random.Random(seed)
        arrivals = shape.arrivals(poisson=poisson, seed=seed)
        return await self.play(
            arrivals, lambda: rng.choice(requests), seconds=shape.seconds, sides=sides, partial=partial
        )

    async def play(
        self,
        arrivals: Iterable[npt.NDArray[np.float64]],
        choose: Callable[[], Request],
        *,
        seconds: float,
        sides: Sequence[Side] = (),
        partial: bool = False,
    ) -> Run:
        """As :meth:`open`, with arrivals and requests given."""
        self.watcher.samples.clear()
        self.events.clear()
        begin, cpu = time.perf_counter(), time.process_time()

        def mark(text: str) -> None:
            self.events.append((time.perf_counter() - begin, text))

        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self.watcher.watch(begin)), *(loop.create_task(side(mark)) for side in sides)]
        try:
            log = await self.generator.open(arrivals, choose, seconds=seconds, partial=partial)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        cpu, wall = time.process_time() - cpu, time.perf_counter() - begin
        await self.watcher.look(begin)
        return Run(
            log=log, server=tuple(splits(self.watcher.samples)), events=tuple(self.events), generator_cpu=cpu / wall
        )


@contextlib.asynccontextmanager
async def session(
    options: LoadTestOptions,
    requests: Sequence[Request],
    *,
    senders: Mapping[str, Sender] | None = None,
    warm_up: bool = True,
) -> AsyncIterator[Session]:
    """Connects, and sends every request once before anything is measured."""
    watching = Http1Sender(endpoint(options.rest_url), max_connections=1) if options.rest_url else None
    made: dict[str, Sender] = dict(senders or {})
    for api in {request.api for request in requests} - made.keys():
        if api.startswith("grpc"):
            made[api] = Http2Sender(endpoint(options.grpc_url), timeout_s=options.timeout_s)
        else:
            made[api] = Http1Sender(endpoint(options.rest_url))
    generator = Generator(made, Checker(), timeout_s=options.timeout_s)
    try:
        if warm_up:
            await generator.warm_up(requests)
        yield Session(generator=generator, watcher=Watcher(watching))
    finally:
        for sender in [*made.values(), *([watching] if watching else [])]:
            await sender.close()


def run_open(
    options: LoadTestOptions,
    requests: Sequence[Request],
    shape: Shape,
    *,
    poisson: bool = True,
    seed: int = 0,
) -> Run:
    """Connects, warms up, and runs an open loop, of which Ctrl-C leaves what was measured until then."""

    async def main() -> Run:
        async with session(options, requests) as opened:
            return await opened.open(shape, requests, poisson=poisson, seed=seed, partial=True)

    return run_precisely(main())
