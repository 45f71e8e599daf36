"""Scenarios that ship: each is one command, starts what it needs, and has limits."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.loadtests.generate import Served, endpoint, run_precisely, served, split_cores
from modelyard.loadtests.options import Check, Limits, LoadTestOptions, Segment, Shape, constant, model_dir
from modelyard.loadtests.report import Report
from modelyard.loadtests.scenarios._disturb import slow_clients
from modelyard.loadtests.scenarios._events import rolling_restart, rollout
from modelyard.loadtests.scenarios._overload import overload
from modelyard.loadtests.scenarios._stage import Scenario, ScenarioOptions, Stage
from modelyard.loadtests.traffic import APIS, find_traffic


def _simple(shape_of: Callable[[float, float], Shape]) -> Callable[[Stage], Report]:
    """A scenario that is a shape of load and nothing else."""

    def scenario(stage: Stage) -> Report:
        run, plan, closed = run_precisely(stage.measure(stage.requests(), shape_of))
        return stage.report(run, plan, closed=closed)

    return scenario


def _spike(rate: float, seconds: float) -> Shape:
    """A third of the rate, all of it for a fifth of the time, and a third again."""
    parts = ((0.4, rate / 3), (0.2, rate), (0.4, rate / 3))
    return Shape(segments=tuple(Segment(seconds=seconds * share, start=each, end=each) for share, each in parts))


def _slow(stage: Stage) -> Report:
    requests = stage.requests()
    kind = stage.traffic.kind("rest", "image")
    reason = stage.traffic.refused(*kind.split(" ", 1))
    if reason:
        raise ConfigurationError(f"slow-clients send over REST: {reason}.")
    rest = stage.traffic.requests(stage.load, [kind], rows=1, distinct=1)[0]
    counts: list[tuple[int, int]] = []
    side = slow_clients(
        endpoint(stage.load.grpc_url), endpoint(stage.load.rest_url), rest.body or b"", rest.path, count=50,
        tell=lambda sent, answered: counts.append((sent, answered)),
    )  # fmt: skip
    run, plan, closed = run_precisely(stage.measure(requests, sides=[side]))
    sent, answered = counts[0] if counts else (0, 0)
    check = Check(
        subject="slow clients", name="answered", limit=sent, value=answered, kept=bool(sent) and sent - answered <= 50,
        text=f"{answered} of {sent} requests that came in small chunks were answered before the run was over",
    )  # fmt: skip
    plan |= {"events": "50 clients that send slowly, send nothing, or do not read"}
    return stage.report(run, plan, closed=closed, extra=[check])


def _big(stage: Stage) -> Report:
    # 512 PNG files are much work and few bytes.
    kinds = [kind for kind in stage.traffic.kinds(stage.load) if not kind.endswith(" image_bytes")]
    if not stage.traffic.takes_rows(kinds):
        raise ConfigurationError(f"big-payloads send 512 rows at once, which {', '.join(kinds)} cannot have.")
    seed = stage.options.seed
    small = stage.traffic.requests(stage.load, kinds, seed=seed)
    big = [
        dataclasses.replace(request, kind=f"{request.kind} x512")
        for request in stage.traffic.requests(stage.load, kinds, rows=512, distinct=2, seed=seed)
    ]
    run, plan, closed = run_precisely(stage.measure([*big, *small]))
    stage.notes.append(f"Large requests have {max(len(each.body or b'') for each in big) / 1e3:.1f} kB at most.")
    return stage.report(run, plan | {"payloads": "one in some sixty requests has 512 rows"}, closed=closed)


def _mixed(stage: Stage) -> Report:
    kinds = stage.traffic.kinds(stage.load, tuple(APIS))
    names = list(stage.server.models) if stage.server else [stage.load.model]
    requests = [
        dataclasses.replace(request, kind=f"{request.kind} of {name}")
        for name in names
        for request in stage.traffic.requests(
            dataclasses.replace(stage.load, model=name), kinds, distinct=64, seed=stage.options.seed
        )
    ]
    run, plan, closed = run_precisely(stage.measure(requests))
    return stage.report(run, plan | {"models": ", ".join(names)}, closed=closed)


SCENARIOS: Mapping[str, Scenario] = {
    "smoke": Scenario(
        summary="TensorFlow Serving's two APIs for ten seconds at a fifth of what the server can do",
        seconds=10, share=0.2, limits=Limits(min_agreement=0.4, max_p99_ms=250), run=_simple(constant),
    ),
    "steady": Scenario(
        summary="a minute at half of what the server can do", seconds=60, share=0.5,
        limits=Limits(min_agreement=0.4, max_p99_ms=250), run=_simple(constant),
    ),
    "spike": Scenario(
        summary="three times the usual rate at once, and back", seconds=30, share=0.75,
        limits=Limits(min_agreement=0.4, max_p99_ms=1000), run=_simple(_spike),
    ),
    "soak": Scenario(
        summary="an hour at two fifths of what the server can do", seconds=3600, share=0.4,
        limits=Limits(min_agreement=0.4, max_p99_ms=500), run=_simple(constant),
    ),
    "rollout": Scenario(
        summary="new versions of the model are published under load", seconds=40, share=0.3,
        limits=Limits(min_agreement=0.4, max_step_ms=100), run=rollout, own_server=True,
    ),
    "rolling-restart": Scenario(
        summary="two servers are restarted one after the other under load", seconds=40, share=0.2,
        limits=Limits(min_agreement=0.4, max_p99_ms=2000), run=rolling_restart, own_server=True,
    ),
    "overload": Scenario(
        summary="three times as much as the server can do", seconds=20, share=3.0,
        limits=Limits(min_agreement=0.4, refusals_allowed=True, min_goodput=0.9, max_p99_ms=5000), run=overload,
    ),
    "slow-clients": Scenario(
        summary="fifty slow or silent clients beside the usual ones", seconds=20, share=0.2,
        limits=Limits(min_agreement=0.4, max_p99_ms=500), run=_slow,
    ),
    "big-payloads": Scenario(
        summary="requests of 512 rows among small ones", seconds=20, share=0.3,
        limits=Limits(min_agreement=0.4, max_p99_ms=2000), run=_big,
    ),
    "mixed-models": Scenario(
        summary="two models, all four APIs, both payloads", seconds=20, share=0.3,
        limits=Limits(min_agreement=0.4, max_p99_ms=500), run=_mixed,
    ),
}  # fmt: skip


def run_scenario(name: str, options: ScenarioOptions) -> Report:
    """Runs a scenario, and the server that it needs."""
    scenario = SCENARIOS.get(name)
    if scenario is None:
        raise ConfigurationError(f"Unknown scenario {name!r}; expected one of {', '.join(SCENARIOS)}.")
    limits = dataclasses.replace(scenario.limits, **options.limits)
    with _server(name, scenario, options) as (server, load, cores):
        traffic = find_traffic(load, served=options.repository, seed=options.seed)
        options.tell(f"load test: {traffic.text}")
        stage = Stage(
            name=name, scenario=scenario, options=options, load=load, traffic=traffic, cores=cores, limits=limits,
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
