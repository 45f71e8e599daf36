"""What a locustfile installs: options, shared state, and limits that decide the exit code."""

from __future__ import annotations

import logging
import sys
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner

from modelyard.clients import connect
from modelyard.errors import ModelyardError
from modelyard.loadtests._images import load_images
from modelyard.loadtests._limits import Measured, broken_limits
from modelyard.loadtests._options import LoadTestOptions, add_arguments, options_from
from modelyard.loadtests.users._state import KEY, State, state_of
from modelyard.loadtests.users._users import IMAGE_BYTES, GrpcUser, RestUser


def install(events: Any) -> None:
    """Makes a locustfile's process ready; the locustfile calls it once, at its top.

    gRPC is told to wait the way that gevent wants: without that, one call would
    stop every other user of the process.

    Args:
        events: ``locust.events``.
    """
    from grpc.experimental.gevent import init_gevent  # type: ignore[import-not-found]

    init_gevent()
    # Locust shows every message from INFO on, and httpx has one for each request.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    events.init_command_line_parser.add_listener(add_arguments)
    events.init.add_listener(_on_init)
    events.quitting.add_listener(_on_quitting)


def _on_init(environment: Environment, **_: Any) -> None:
    """Locust passes more arguments than these, and may pass others in later versions."""
    try:
        options = options_from(environment.parsed_options)
        for url in filter(None, (options.grpc_url, options.rest_url)):
            # A wrong URL is told now, and not by each user.
            connect(url).close()
        state = State(options=options, images=load_images())
    except ModelyardError as exc:
        sys.stderr.write(f"load test: {exc.message}\n")
        raise SystemExit(2) from exc
    sys.stdout.write(f"load test: images from {state.images.source}\n")
    setattr(environment, KEY, state)
    environment.user_classes = [
        kind
        for kind in environment.user_classes
        if not (issubclass(kind, GrpcUser) and not options.grpc_url)
        and not (issubclass(kind, RestUser) and not options.rest_url)
    ]
    if isinstance(environment.runner, WorkerRunner):
        environment.events.report_to_master.add_listener(lambda client_id, data: data.update({KEY: state.take()}))
    if isinstance(environment.runner, MasterRunner):
        environment.events.worker_report.add_listener(lambda client_id, data: state.add(data[KEY]))
    # gevent's clock stood still while this process imported and loaded; --run-time would count that time, too.
    gevent.get_hub().loop.update_now()


def _on_quitting(environment: Environment, **_: Any) -> None:
    """Prints what was measured, and sets the exit code of the process."""
    if isinstance(environment.runner, WorkerRunner) or getattr(environment, KEY, None) is None:
        return
    state = state_of(environment)
    measured = [_measured(environment, state, *kind) for kind in _kinds(state.options)]
    for row in measured:
        accuracy = f"{row.hits / row.images:.2%}" if row.images else "-"
        sys.stdout.write(
            f"load test: {row.name}: {row.requests} requests, {row.failures} failed, p95 {row.p95_ms:g} ms, "
            f"p99 {row.p99_ms:g} ms, accuracy {accuracy}\n"
        )
    broken = broken_limits(state.options.limits, measured)
    for text in broken:
        sys.stderr.write(f"load test: LIMIT BROKEN: {text}\n")
    environment.process_exit_code = 1 if broken else 0


def _kinds(options: LoadTestOptions) -> list[tuple[str, str]]:
    transports = [name for name, url in (("grpc", options.grpc_url), ("rest", options.rest_url)) if url]
    return [(transport, name) for transport in transports for name in ("image", IMAGE_BYTES)]


def _measured(environment: Environment, state: State, transport: str, name: str) -> Measured:
    entry = environment.stats.get(name, transport)
    kind = f"{transport} {name}"
    return Measured(
        name=kind,
        requests=entry.num_requests,
        failures=entry.num_failures,
        p95_ms=entry.get_response_time_percentile(0.95),
        p99_ms=entry.get_response_time_percentile(0.99),
        images=state.counted[kind],
        hits=state.hits[kind],
    )
