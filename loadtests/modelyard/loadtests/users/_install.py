"""What a locustfile installs: options, shared state, and limits that decide the exit code."""

from __future__ import annotations

import logging
import math
import signal
import sys
from pathlib import Path

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.event import Events
from locust.runners import STATE_RUNNING, STATE_SPAWNING, MasterRunner, WorkerRunner

from modelyard.clients import connect
from modelyard.console import printable, write_error
from modelyard.errors import ModelyardError
from modelyard.loadtests.options import (
    EXIT_BROKEN,
    EXIT_FAILED,
    LoadTestOptions,
    Measured,
    add_arguments,
    check_limits,
    exit_code,
    interruption,
    options_from,
)
from modelyard.loadtests.report import checks_table, write_broken, write_junit
from modelyard.loadtests.traffic import find_traffic, read_recording
from modelyard.loadtests.users._shape import PlanShape
from modelyard.loadtests.users._state import KEY, State, state_of
from modelyard.loadtests.users._users import GrpcUser, GrpcV2User, ReplayUser, RestUser, RestV2User

_USERS = (GrpcUser, RestUser, GrpcV2User, RestV2User)


def install(events: Events) -> None:
    """Makes a locustfile's process ready; the locustfile calls it once, at its top, with ``locust.events``.

    gRPC is told to wait the way that gevent wants: without that, one call would stop every other user of the process.
    """
    from grpc.experimental.gevent import init_gevent  # type: ignore[import-not-found]

    init_gevent()
    # Locust shows every message from INFO on, and httpx has one for each request.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # See state_of().
    setattr(events, KEY, Event())
    events.init_command_line_parser.add_listener(add_arguments)
    events.init.add_listener(_on_init)
    events.quitting.add_listener(_on_quitting)


def _on_init(environment: Environment, **_: object) -> None:
    """Locust passes more arguments than these, and may pass others in later versions."""
    try:
        options = options_from(environment.parsed_options)
        for url in filter(None, (options.grpc_url, options.rest_url)):
            # A wrong URL is told now, and not by each user.
            connect(url).close()
        state = _state(options)
    except ModelyardError as exc:
        write_error("loadtest", exc.message)
        raise SystemExit(EXIT_FAILED) from exc
    sys.stdout.write(printable(f"load test: {state.text}") + "\n")
    setattr(environment, KEY, state)
    apis = {kind.partition(" ")[0] for kind in state.kinds}
    environment.user_classes = [kind for kind in environment.user_classes if _wanted(kind, apis, bool(state.recorded))]
    if options.shape is not None and environment.shape_class is None:
        environment.shape_class = PlanShape(options.shape, options.rate)
        environment.shape_class.runner = environment.runner
    if isinstance(environment.runner, WorkerRunner):
        environment.events.report_to_master.add_listener(lambda client_id, data: data.update({KEY: state.take()}))
    if isinstance(environment.runner, MasterRunner):
        # A worker reports as soon as it is connected; counts are in it once its requests are loaded.
        environment.events.worker_report.add_listener(lambda client_id, data: state.add(data.get(KEY, {})))
        # Locust sends the master's options to its workers, and its messages hold no paths.
        given = vars(environment.parsed_options)
        given.update({name: str(value) for name, value in given.items() if isinstance(value, Path)})
    # The last one is called first: before that of a master, which stops its runner.
    environment.events.quitting.add_listener(_note_interruption)
    if not isinstance(environment.runner, WorkerRunner):
        # Python raises it in whichever user is at work, who would leave a traceback; here Locust itself gets it.
        hub = gevent.get_hub()
        gevent.signal_handler(signal.SIGINT, hub.handle_system_error, KeyboardInterrupt, KeyboardInterrupt())
    # gevent's clock stood still while this process imported and loaded; --run-time would count that time, too.
    gevent.get_hub().loop.update_now()
    getattr(environment.events, KEY).set()


def _on_quitting(environment: Environment, **_: object) -> None:
    """Prints what was measured, and sets the exit code of the process."""
    if isinstance(environment.runner, WorkerRunner) or getattr(environment, KEY, None) is None:
        return
    state = state_of(environment)
    measured = [_measured(environment, state, kind) for kind in state.kinds]
    for row in measured:
        agreement = f"{row.matches / row.known:.2%}" if row.known else "-"
        text = (
            f"load test: {row.name}: {row.requests} requests, {row.failures} failed, p50 {row.p50_ms:g} ms, "
            f"p95 {row.p95_ms:g} ms, p99 {row.p99_ms:g} ms, agreement {agreement}"
        )
        sys.stdout.write(printable(text) + "\n")
    total = environment.stats.total
    together = Measured(
        name="all", requests=total.num_requests, failures=total.num_failures, p50_ms=0, p95_ms=0, p99_ms=0, known=0,
        matches=0, seconds=max((total.last_request_timestamp or 0) - (total.start_time or 0), 0),
    )  # fmt: skip
    checks = check_limits(state.options.limits, measured, total=together)
    if state.interrupted:
        planned = state.options.shape.seconds if state.options.shape else environment.parsed_options.run_time
        checks.append(interruption(together.seconds, planned or math.inf))
    sys.stdout.write(printable(checks_table(checks), keep="\n") + "\n")
    write_broken(checks)
    if state.options.junit:
        write_junit(checks, "modelyard loadtest", state.options.junit)
    code = exit_code(checks)
    dead = [row.name for row in measured if row.requests and row.failures == row.requests]
    if code == EXIT_BROKEN and dead:
        code = EXIT_FAILED
        sys.stderr.write(
            f"load test: no request {' and no request '.join(map(repr, dead))} was answered rightly; the table of "
            "errors has the reasons. Is the server that --host-grpc and --host-rest name there, with --model?\n"
        )
    environment.process_exit_code = code


def _note_interruption(environment: Environment, **_: object) -> None:
    shape = environment.shape_class
    # Locust stops its runner itself after Ctrl-C under a plan.
    cut = isinstance(shape, PlanShape) and not shape.ended
    state_of(environment).interrupted = cut or environment.runner.state in (STATE_SPAWNING, STATE_RUNNING)


def _state(options: LoadTestOptions) -> State:
    if options.replay:
        recorded = read_recording(options.replay).requests
        kinds = tuple(sorted({request.kind for request in recorded}))
        return State(options=options, text=f"replay of {options.replay}", kinds=kinds, recorded=recorded)
    traffic = find_traffic(options)
    kinds = traffic.kinds(options)
    requests = {kind: traffic.requests(options, [kind]) for kind in kinds}
    return State(options=options, text=traffic.text, kinds=kinds, requests=requests)


def _wanted(kind: type, apis: set[str], replay: bool) -> bool:
    """Whether a user class has something to do; those of the locustfile's own always have."""
    if issubclass(kind, ReplayUser):
        return replay
    ours = [each for each in _USERS if issubclass(kind, each)]
    return not ours or (not replay and ours[0].transport in apis)


def _measured(environment: Environment, state: State, kind: str) -> Measured:
    api, _, name = kind.partition(" ")
    entry = environment.stats.get(name, api)
    return Measured(
        name=kind,
        requests=entry.num_requests,
        failures=entry.num_failures,
        p50_ms=entry.get_response_time_percentile(0.5),
        p95_ms=entry.get_response_time_percentile(0.95),
        p99_ms=entry.get_response_time_percentile(0.99),
        known=state.counted[kind],
        matches=state.matches[kind],
    )
