"""What scenarios share: options, server, requests, rate, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modelyard.errors import LoadTestError
from modelyard.loadtests.generate import Run, Sender, Served, Session, Side, session
from modelyard.loadtests.options import Check, Limits, LoadTestOptions, Measured, Shape, check_limits, constant
from modelyard.loadtests.report import Report, generator_notes
from modelyard.loadtests.traffic import Request, Traffic

#: Requests at the same time while it is measured what a server can do.
IN_FLIGHT = 32


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """How to run a scenario."""

    #: Addresses (empty where the scenario starts the server), model, rows, deadline, kinds.
    load: LoadTestOptions
    #: What to serve; None where a server is there already.
    repository: Path | None = None
    #: Length of the run; None for the scenario's own.
    seconds: float | None = None
    #: Requests per second; None for the scenario's share of what the server can do.
    rate: float | None = None
    #: What differs from the scenario's limits.
    limits: Mapping[str, Any] = field(default_factory=dict)
    #: Length of the run that tells what the server can do.
    calibrate_s: float = 2.0
    #: Seconds between two events of the scenario.
    every_s: float = 10.0
    #: Whether generator and server get cores of their own.
    pin: bool = True
    #: Of random numbers.
    seed: int = 0
    #: More flags for a server that the scenario starts.
    server_flags: Sequence[str] = ()
    #: Told how it goes.
    tell: Callable[[str], None] = lambda text: None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A scenario that ships."""

    summary: str
    seconds: float
    #: Its rate, as a share of what the server can do in a closed loop.
    share: float
    limits: Limits
    run: Callable[[Stage], Report]
    #: Whether it must start the server itself.
    own_server: bool = False


@dataclass(kw_only=True)
class Stage:
    """What a scenario works with."""

    name: str
    scenario: Scenario
    options: ScenarioOptions
    #: As in the options, with the addresses.
    load: LoadTestOptions
    traffic: Traffic
    #: Where the server runs; empty for everywhere.
    cores: frozenset[int]
    limits: Limits
    #: The server, where the scenario started it.
    server: Served | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Length of the run."""
        return self.options.seconds or self.scenario.seconds

    def requests(self, kinds: Sequence[str] = (), rows: int | None = None) -> list[Request]:
        """What to send."""
        found = self.traffic.kinds(self.load, kinds)
        return self.traffic.requests(self.load, found, rows=rows or 0, seed=self.options.seed)

    async def rate(self, opened: Session, requests: Sequence[Request]) -> tuple[float, Measured]:
        """The scenario's rate, and what the server does in a closed loop."""
        closed = await opened.generator.closed(requests, in_flight=IN_FLIGHT, seconds=self.options.calibrate_s)
        row = closed.measured("closed loop")
        if row.failures == row.requests:
            raise LoadTestError(f"The server gave no right answer: {', '.join(closed.reasons)[:300]}")
        self.options.tell(f"closed loop, {IN_FLIGHT} in flight: {row.answered_per_s:.0f} right answers per second")
        return self.options.rate or self.scenario.share * row.answered_per_s, row

    async def measure(
        self,
        requests: Sequence[Request],
        shape_of: Callable[[float, float], Shape] = constant,
        *,
        sides: Sequence[Side] = (),
        senders: Mapping[str, Sender] | None = None,
    ) -> tuple[Run, dict[str, str], Measured]:
        """Measure a closed loop, then an open loop at the scenario's rate: its run and plan, and the closed loop."""
        async with session(self.load, requests, senders=senders) as opened:
            rate, closed = await self.rate(opened, requests)
            shape = shape_of(rate, self.seconds)
            run = await opened.open(shape, requests, seed=self.options.seed, sides=sides, partial=True)
        peak = max(max(segment.start, segment.end) for segment in shape.segments)
        load = (
            f"open loop, Poisson arrivals, {shape.requests / shape.seconds:.1f} requests per second on average, "
            f"{peak:.1f} at most, for {shape.seconds:g} s"
        )
        return run, {"load": load}, closed

    def report(
        self,
        run: Run,
        plan: Mapping[str, str],
        *,
        closed: Measured | None = None,
        goodput: Sequence[float] = (),
        step_ms: float | None = None,
        extra: Sequence[Check] = (),
    ) -> Report:
        """The report of the scenario."""
        rows, total = run.log.by_kind(), run.log.measured()
        if closed and not goodput:
            goodput = (total.answered_per_s / closed.answered_per_s,)
        checks = check_limits(self.limits, rows, total=total, step_ms=step_ms, goodput=goodput)
        start = {"server": " ".join(self.server.command[1:])} if self.server else {"server": "not started by this run"}
        if self.cores:
            start["cores"] = f"server {sorted(self.cores)}, generator one other"
        if closed:
            start["closed loop"] = f"{closed.answered_per_s:.1f} right answers per second, {IN_FLIGHT} in flight"
        return Report(
            title=f"modelyard loadtest {self.name}",
            plan={"scenario": self.scenario.summary, **plan, **start, "seed": str(self.options.seed)},
            measured=[*rows, total],
            checks=[*checks, *extra, *run.log.interruption()],
            run=run,
            notes=[*self.notes, *generator_notes(run)],
        )
