"""Scenarios in which something happens to the server under load: new versions, restarts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modelyard.clients import ClientOptions, RetryOptions, connect, connect_async
from modelyard.errors import ConfigurationError
from modelyard.loadtests.generate import ClientSender, Log, Run, percentiles, run_precisely, served
from modelyard.loadtests.options import Check, Measured, token
from modelyard.loadtests.report import Report
from modelyard.loadtests.scenarios._disturb import publisher, restarter
from modelyard.loadtests.scenarios._stage import Stage

#: After an event, so long is looked for a rise of the latency.
_AROUND_S = 2.0


def rollout(stage: Stage) -> Report:
    if stage.server is None:
        raise ConfigurationError("rollout publishes versions into a copy of the repository: give --serve REPOSITORY.")
    requests = stage.requests()
    every = stage.options.every_s
    times = max(int((stage.seconds - 1) // every), 1)
    copy = stage.server.models[stage.server.model]
    side = publisher(copy, first_s=every / 2, every_s=every, times=times)
    run, plan, closed = run_precisely(stage.measure(requests, sides=[side]))
    with connect(stage.load.rest_url, ClientOptions(timeout_s=5.0, token=token())) as client:
        serving = [each.version for each in client.status(stage.load.model).versions if each.state.name == "AVAILABLE"]
    newest = max(int(each.name) for each in copy.iterdir() if each.name.isdecimal())
    check = Check(
        subject="rollout", name="newest_version", limit=newest, value=max(serving, default=0),
        kept=newest in serving and len(run.events) == times,
        text=f"{len(run.events)} versions were published; versions {serving} are served, expected {newest}",
    )  # fmt: skip
    events = [at for at, _ in run.events]
    plan |= {"events": f"a new version every {every:g} s, {times} altogether"}
    return stage.report(run, plan, closed=closed, step_ms=latency_step(run.log, events), extra=[check])


def latency_step(log: Log, events: Sequence[float]) -> float | None:
    """How many milliseconds the 95th percentile is higher after events; None without answers on either side."""
    near = np.zeros(len(log.intended), dtype=bool)
    for at in events:
        near |= (log.intended >= at) & (log.intended < at + _AROUND_S)
    ok = log.ok
    if not (near & ok).any() or not (~near & ok).any():
        return None
    (after,) = percentiles(log.latency_ms[near & ok], (95,))
    (elsewhere,) = percentiles(log.latency_ms[~near & ok], (95,))
    return max(after - elsewhere, 0.0)


def rolling_restart(stage: Stage) -> Report:
    """Restarts two servers, one after the other, under load."""
    if stage.server is None or stage.options.repository is None:
        raise ConfigurationError("rolling-restart restarts servers that it started: give --serve REPOSITORY.")
    requests = stage.requests((stage.traffic.kind("grpc", "image"),))
    if not all(request.api == "grpc" and request.inputs for request in requests):
        raise ConfigurationError("rolling-restart sends predictions over gRPC, through modelyard's client.")
    options = ClientOptions(timeout_s=stage.load.timeout_s, retry=RetryOptions(attempts=5, budget=200), token=token())
    with served(stage.server.models, cores=stage.cores, flags=stage.options.server_flags) as second:
        both = [stage.server, second]
        every = min(stage.options.every_s, stage.seconds / 6)

        async def main() -> tuple[Run, dict[str, str], Measured]:
            async with connect_async([each.grpc_url for each in both], options) as client:
                side = restarter(both, first_s=every, pause_s=every)
                return await stage.measure(requests, sides=[side], senders={"grpc": ClientSender(client)})

        run, plan, _ = run_precisely(main())
    ready = sum("ready again" in text for _, text in run.events)
    check = Check(
        subject="restarts", name="restarted", limit=2, value=ready, kept=ready == 2,
        text=f"{ready} of 2 servers were restarted and ready within the run; a longer --seconds gives them more time",
    )  # fmt: skip
    plan |= {"events": "two servers, restarted one after the other; the client retries on the other one"}
    return stage.report(run, plan, extra=[check])
