"""Scenarios that ship: each is one command, starts what it needs, and has limits."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from modelyard.clients import ClientOptions, RetryOptions, connect, connect_async
from modelyard.errors import ConfigurationError, LoadTestError
from modelyard.loadtests._client_sender import ClientSender
from modelyard.loadtests._disturb import publisher, restarter, slow_clients
from modelyard.loadtests._images import Images
from modelyard.loadtests._limits import Check, Limits, Measured, check_limits
from modelyard.loadtests._options import LoadTestOptions
from modelyard.loadtests._precise import run_precisely
from modelyard.loadtests._record import Log, percentiles
from modelyard.loadtests._report import Report, generator_notes
from modelyard.loadtests._requests import Request
from modelyard.loadtests._sender import endpoint
from modelyard.loadtests._servers import Served, model_dir, served, split_cores
from modelyard.loadtests._session import Run, Session, Side, session
from modelyard.loadtests._shapes import Segment, Shape, constant
from modelyard.loadtests._traffic import all_kinds, make_requests

#: After an event, so long is looked for a rise of the latency.
_AROUND_S = 2.0
#: Requests at the same time while it is measured what a server can do.
_IN_FLIGHT = 32


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """How to run a scenario.

    Attributes:
        load: Addresses (empty where the scenario starts the server), model,
            rows, deadline, kinds.
        repository: What to serve; None where a server is there already.
        seconds: Length of the run; None for the scenario's own.
        rate: Requests per second; None for the scenario's share of what the server can do.
        limits: What differs from the scenario's limits.
        calibrate_s: Length of the run that tells what the server can do.
        every_s: Seconds between two events of the scenario.
        pin: Whether generator and server get cores of their own.
        seed: Of random numbers.
        server_flags: More flags for a server that the scenario starts.
        tell: Told how it goes.
    """

    load: LoadTestOptions
    repository: Path | None = None
    seconds: float | None = None
    rate: float | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    calibrate_s: float = 2.0
    every_s: float = 10.0
    pin: bool = True
    seed: int = 0
    server_flags: Sequence[str] = ()
    tell: Callable[[str], None] = lambda text: None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One that ships.

    Attributes:
        summary: What it does.
        seconds: Its length.
        share: Its rate, as a share of what the server can do in a closed loop.
        limits: What it must keep.
        run: Does it.
        own_server: Whether it must start the server itself.
    """

    summary: str
    seconds: float
    share: float
    limits: Limits
    run: Callable[[_Stage], Report]
    own_server: bool = False


@dataclass(kw_only=True)
class _Stage:
    """What a scenario works with."""

    name: str
    scenario: Scenario
    options: ScenarioOptions
    load: LoadTestOptions
    images: Images
    cores: frozenset[int]
    limits: Limits
    server: Served | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.options.seconds or self.scenario.seconds

    def requests(self, kinds: Sequence[str] = (), rows: int | None = None) -> list[Request]:
        load = dataclasses.replace(self.load, rows=rows or self.load.rows)
        return make_requests(load, self.load.kinds or kinds or all_kinds(load), self.images, seed=self.options.seed)

    async def rate(self, opened: Session, requests: Sequence[Request]) -> tuple[float, Measured]:
        """The scenario's rate, and what the server does in a closed loop."""
        closed = await opened.generator.closed(requests, in_flight=_IN_FLIGHT, seconds=self.options.calibrate_s)
        row = closed.measured("closed loop")
        if row.failures == row.requests:
            raise LoadTestError(f"The server gave no right answer: {', '.join(closed.reasons)[:300]}")
        self.options.tell(f"closed loop, {_IN_FLIGHT} in flight: {row.answered_per_s:.0f} right answers per second")
        return self.options.rate or self.scenario.share * row.answered_per_s, row

    def report(
        self,
        run: Run,
        plan: Mapping[str, str],
        *,
        closed: Measured | None = None,
        step_ms: float | None = None,
        extra: Sequence[Check] = (),
    ) -> Report:
        rows, total = run.log.by_kind(), run.log.measured()
        capacity = closed.answered_per_s if closed else None
        checks = check_limits(self.limits, rows, total=total, step_ms=step_ms, capacity=capacity)
        start = {"server": " ".join(self.server.command[1:])} if self.server else {"server": "started by somebody else"}
        if self.cores:
            start["cores"] = f"server {sorted(self.cores)}, generator one other"
        if closed:
            start["closed loop"] = f"{closed.answered_per_s:.1f} right answers per second, {_IN_FLIGHT} in flight"
        return Report(
            title=f"modelyard loadtest {self.name}",
            plan={"scenario": self.scenario.summary, **plan, **start, "seed": str(self.options.seed)},
            measured=[*rows, total],
            checks=[*checks, *extra],
            run=run,
            notes=[*self.notes, *generator_notes(run)],
        )


def _simple(shape_of: Callable[[float, float], Shape]) -> Callable[[_Stage], Report]:
    """A scenario that is a shape of load and nothing else."""

    def run(stage: _Stage) -> Report:
        requests = stage.requests()

        async def main() -> Report:
            async with session(stage.load, requests, stage.images.class_names) as opened:
                rate, closed = await stage.rate(opened, requests)
                shape = shape_of(rate, stage.seconds)
                done = await opened.open(shape, requests, seed=stage.options.seed)
            return stage.report(done, _plan(shape), closed=closed)

        return run_precisely(main())

    return run


def _plan(shape: Shape) -> dict[str, str]:
    peak = max(max(segment.start, segment.end) for segment in shape.segments)
    return {
        "load": f"open loop, Poisson arrivals, {shape.requests / shape.seconds:.1f} requests per second on average, "
        f"{peak:.1f} at most, for {shape.seconds:g} s"
    }


def _spike(rate: float, seconds: float) -> Shape:
    """A third of the rate, all of it for a fifth of the time, and a third again."""
    parts = ((0.4, rate / 3), (0.2, rate), (0.4, rate / 3))
    return Shape(segments=tuple(Segment(seconds=seconds * share, start=each, end=each) for share, each in parts))


def _rollout(stage: _Stage) -> Report:
    if stage.server is None:
        raise ConfigurationError("rollout publishes versions into a copy of the repository: give --serve REPOSITORY.")
    requests = stage.requests()
    every = stage.options.every_s
    times = max(int((stage.seconds - 1) // every), 1)
    copy = stage.server.models[stage.server.model]
    side = publisher(copy, first_s=every / 2, every_s=every, times=times)

    async def main() -> tuple[Run, Measured, Shape]:
        async with session(stage.load, requests, stage.images.class_names) as opened:
            rate, closed = await stage.rate(opened, requests)
            shape = constant(rate, stage.seconds)
            return await opened.open(shape, requests, seed=stage.options.seed, sides=[side]), closed, shape

    run, closed, shape = run_precisely(main())
    with connect(stage.load.rest_url, ClientOptions(timeout_s=5.0)) as client:
        serving = [each.version for each in client.status(stage.load.model).versions if each.state.name == "AVAILABLE"]
    newest = max(int(each.name) for each in copy.iterdir() if each.name.isdecimal())
    check = Check(
        subject="rollout", name="newest_version", limit=newest, value=max(serving, default=0),
        kept=newest in serving and len(run.events) == times,
        text=f"{len(run.events)} versions were published; versions {serving} are served, expected {newest}",
    )  # fmt: skip
    events = [at for at, _ in run.events]
    plan = {**_plan(shape), "events": f"a new version every {every:g} s, {times} altogether"}
    return stage.report(run, plan, closed=closed, step_ms=latency_step(run.log, events), extra=[check])


def latency_step(log: Log, events: Sequence[float], around_s: float = _AROUND_S) -> float | None:
    """How much the 95th percentile is higher after events than elsewhere, in milliseconds.

    Args:
        log: The run.
        events: Seconds since its begin.
        around_s: How long after each is looked.

    Returns:
        The rise, 0 where there is none; None without events or answers on either side.
    """
    near = np.zeros(len(log.intended), dtype=bool)
    for at in events:
        near |= (log.intended >= at) & (log.intended < at + around_s)
    ok = log.ok
    if not (near & ok).any() or not (~near & ok).any():
        return None
    (after,) = percentiles(log.latency_ms[near & ok], (95,))
    (elsewhere,) = percentiles(log.latency_ms[~near & ok], (95,))
    return max(after - elsewhere, 0.0)


def _rolling_restart(stage: _Stage) -> Report:
    if stage.server is None or stage.options.repository is None:
        raise ConfigurationError("rolling-restart restarts servers that it started: give --serve REPOSITORY.")
    requests = stage.requests(("grpc image",))
    if {request.api for request in requests} - {"grpc"}:
        raise ConfigurationError("rolling-restart sends over gRPC, through modelyard's client.")
    options = ClientOptions(timeout_s=stage.load.timeout_s, retry=RetryOptions(attempts=5, budget=200))
    with served(stage.server.models, cores=stage.cores, flags=stage.options.server_flags) as second:
        both = [stage.server, second]
        every = min(stage.options.every_s, stage.seconds / 6)

        async def main() -> tuple[Run, Measured, Shape]:
            client = connect_async([each.grpc_url for each in both], options)
            async with client:
                senders = {"grpc": ClientSender(client)}
                async with session(stage.load, requests, stage.images.class_names, senders=senders) as opened:
                    rate, closed = await stage.rate(opened, requests)
                    shape = constant(rate, stage.seconds)
                    side = restarter(both, first_s=every, pause_s=every)
                    return await opened.open(shape, requests, seed=stage.options.seed, sides=[side]), closed, shape

        run, closed, shape = run_precisely(main())
    ready = sum("ready again" in text for _, text in run.events)
    check = Check(
        subject="restarts", name="restarted", limit=2, value=ready, kept=ready == 2,
        text=f"{ready} of 2 servers were restarted and ready within the run; a longer --seconds gives them more time",
    )  # fmt: skip
    plan = {**_plan(shape), "events": "two servers, restarted one after the other; the client retries on the other one"}
    return stage.report(run, plan, extra=[check])


def _overload(stage: _Stage) -> Report:
    requests = stage.requests(("grpc image_bytes",), rows=max(stage.load.rows, 8))

    async def main() -> tuple[Run, Measured, Shape]:
        async with session(stage.load, requests, stage.images.class_names) as opened:
            rate, closed = await stage.rate(opened, requests)
            shape = constant(rate, stage.seconds)
            return await opened.open(shape, requests, seed=stage.options.seed), closed, shape

    run, closed, shape = run_precisely(main())
    # What is answered after the last request was due is work of the run, too: the backlog counts as time.
    length = max(run.log.seconds, float(run.log.done[run.log.ok].max(initial=0.0)))
    run = dataclasses.replace(run, log=dataclasses.replace(run.log, seconds=length))
    total = run.log.measured()
    stage.notes.append(
        f"Of {total.requests} requests at {shape.requests / shape.seconds:.0f}/s the server refused {total.refused} "
        f"and answered {total.requests - total.failures} rightly, {total.answered_per_s:.1f}/s: "
        f"{total.answered_per_s / closed.answered_per_s:.1%} of the {closed.answered_per_s:.1f}/s of the closed loop."
    )
    return stage.report(run, _plan(shape), closed=closed)


def _slow(stage: _Stage) -> Report:
    requests = stage.requests()
    rest = next(
        (each for each in requests if each.api == "rest"),
        make_requests(dataclasses.replace(stage.load, rows=1), ["rest image"], stage.images, distinct=1)[0],
    )
    counts: list[tuple[int, int]] = []
    side: Side = slow_clients(
        endpoint(stage.load.grpc_url), endpoint(stage.load.rest_url), rest.body or b"", rest.path, count=50,
        tell=lambda sent, answered: counts.append((sent, answered)),
    )  # fmt: skip

    async def main() -> tuple[Run, Measured, Shape]:
        async with session(stage.load, requests, stage.images.class_names) as opened:
            rate, closed = await stage.rate(opened, requests)
            shape = constant(rate, stage.seconds)
            return await opened.open(shape, requests, seed=stage.options.seed, sides=[side]), closed, shape

    run, closed, shape = run_precisely(main())
    sent, answered = counts[0] if counts else (0, 0)
    check = Check(
        subject="slow clients", name="answered", limit=sent, value=answered, kept=bool(sent) and sent - answered <= 50,
        text=f"{answered} of {sent} requests that came in small pieces were answered before the run was over",
    )  # fmt: skip
    plan = {**_plan(shape), "events": "50 clients that send in pieces, say nothing, or do not read"}
    return stage.report(run, plan, closed=closed, extra=[check])


def _big(stage: _Stage) -> Report:
    kinds = [kind for kind in (stage.load.kinds or all_kinds(stage.load)) if kind.endswith(" image")]
    small = stage.requests(kinds)
    big = [
        dataclasses.replace(request, kind=f"{request.kind} x512")
        for request in make_requests(
            dataclasses.replace(stage.load, rows=512), kinds, stage.images, distinct=2, seed=stage.options.seed
        )
    ]

    async def main() -> tuple[Run, Measured, Shape]:
        async with session(stage.load, [*big, *small], stage.images.class_names) as opened:
            rate, closed = await stage.rate(opened, [*big, *small])
            shape = constant(rate, stage.seconds)
            return await opened.open(shape, [*big, *small], seed=stage.options.seed), closed, shape

    run, closed, shape = run_precisely(main())
    stage.notes.append(f"Large requests have {max(len(each.body or b'') for each in big) / 1e6:.1f} MB at most.")
    return stage.report(run, {**_plan(shape), "payloads": "one in some sixty requests has 512 rows"}, closed=closed)


def _mixed(stage: _Stage) -> Report:
    kinds = [
        f"{api} {payload}" for api in ("grpc", "rest", "grpc-v2", "rest-v2") for payload in ("image", "image_bytes")
    ]
    names = list(stage.server.models) if stage.server else [stage.load.model]
    requests = [
        dataclasses.replace(request, kind=f"{request.kind} of {name}")
        for name in names
        for request in make_requests(
            dataclasses.replace(stage.load, model=name), stage.load.kinds or kinds, stage.images, distinct=64,
            seed=stage.options.seed,
        )
    ]  # fmt: skip

    async def main() -> tuple[Run, Measured, Shape]:
        async with session(stage.load, requests, stage.images.class_names) as opened:
            rate, closed = await stage.rate(opened, requests)
            shape = constant(rate, stage.seconds)
            return await opened.open(shape, requests, seed=stage.options.seed), closed, shape

    run, closed, shape = run_precisely(main())
    return stage.report(run, {**_plan(shape), "models": ", ".join(names)}, closed=closed)


def _limits(**values: Any) -> Limits:
    return dataclasses.replace(Limits(min_agreement=0.4), **values)


SCENARIOS: Mapping[str, Scenario] = {
    "smoke": Scenario(
        summary="every API for ten seconds at a fifth of what the server can do", seconds=10, share=0.2,
        limits=_limits(max_p99_ms=250), run=_simple(constant),
    ),
    "steady": Scenario(
        summary="a minute at half of what the server can do", seconds=60, share=0.5,
        limits=_limits(max_p99_ms=250), run=_simple(constant),
    ),
    "spike": Scenario(
        summary="three times the usual rate at once, and back", seconds=30, share=0.75,
        limits=_limits(max_p99_ms=1000), run=_simple(_spike),
    ),
    "soak": Scenario(
        summary="an hour at two fifths of what the server can do", seconds=3600, share=0.4,
        limits=_limits(max_p99_ms=500), run=_simple(constant),
    ),
    "rollout": Scenario(
        summary="new versions of the model are published under load", seconds=40, share=0.3,
        limits=_limits(max_step_ms=100), run=_rollout, own_server=True,
    ),
    "rolling-restart": Scenario(
        summary="two servers are restarted one after the other under load", seconds=40, share=0.2,
        limits=_limits(max_p99_ms=2000), run=_rolling_restart, own_server=True,
    ),
    "overload": Scenario(
        summary="three times as much as the server can do", seconds=20, share=3.0,
        limits=_limits(refusals_allowed=True, min_goodput=0.9, max_p99_ms=5000), run=_overload,
    ),
    "slow-clients": Scenario(
        summary="fifty slow or silent clients beside the usual ones", seconds=20, share=0.2,
        limits=_limits(max_p99_ms=500), run=_slow,
    ),
    "big-payloads": Scenario(
        summary="requests of 512 rows among small ones", seconds=20, share=0.3,
        limits=_limits(max_p99_ms=2000), run=_big,
    ),
    "mixed-models": Scenario(
        summary="two models, all four APIs, both payloads", seconds=20, share=0.3,
        limits=_limits(max_p99_ms=500), run=_mixed,
    ),
}  # fmt: skip


def run_scenario(name: str, options: ScenarioOptions, images: Images) -> Report:
    """Runs a scenario, and the server that it needs.

    Args:
        name: One of :data:`SCENARIOS`.
        options: How.
        images: What to send.

    Raises:
        ConfigurationError: No such scenario, or it needs a repository.
        LoadTestError: The server does not start, or never answers.
    """
    scenario = SCENARIOS.get(name)
    if scenario is None:
        raise ConfigurationError(f"Unknown scenario {name!r}; expected one of {', '.join(SCENARIOS)}.")
    limits = dataclasses.replace(scenario.limits, **options.limits)
    with _server(name, scenario, options) as (server, load, cores):
        stage = _Stage(
            name=name, scenario=scenario, options=options, load=load, images=images, cores=cores, limits=limits,
            server=server,
        )  # fmt: skip
        return scenario.run(stage)


@contextlib.contextmanager
def _server(
    name: str, scenario: Scenario, options: ScenarioOptions
) -> Iterator[tuple[Served | None, LoadTestOptions, frozenset[int]]]:
    if options.repository is None:
        if scenario.own_server:
            raise ConfigurationError(f"{name} needs a server of its own: give --serve REPOSITORY.")
        yield None, options.load, frozenset()
        return
    source = model_dir(options.repository, options.load.model)
    with tempfile.TemporaryDirectory(prefix="modelyard-scenario-") as folder, split_cores(enabled=options.pin) as cores:
        models = {options.load.model: source}
        if name == "rollout":
            copy = Path(folder) / options.load.model
            newest = max((each for each in source.iterdir() if each.name.isdecimal()), key=lambda each: int(each.name))
            shutil.copytree(newest, copy / newest.name)
            models = {options.load.model: copy}
        elif name == "mixed-models":
            models[f"{options.load.model}-2"] = source
        with served(models, cores=cores, flags=options.server_flags) as server:
            load = dataclasses.replace(options.load, grpc_url=server.grpc_url, rest_url=server.rest_url)
            yield server, load, cores
