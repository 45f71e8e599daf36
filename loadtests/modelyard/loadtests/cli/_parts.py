"""What the commands share: the server to load, what it is sent, and the report."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator

from modelyard.console import printable
from modelyard.loadtests.generate import Run, served, split_cores
from modelyard.loadtests.options import Limits, LoadTestOptions, check_limits, model_dir
from modelyard.loadtests.report import Report, generator_notes
from modelyard.loadtests.traffic import Traffic, find_traffic


def tell(text: str) -> None:
    """Prints lines; names in them, and what errors say, are the server's."""
    sys.stdout.write(f"{printable(text, keep=chr(10))}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does; both do it in a shell's background job, too, which ignores SIGINT."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminate = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, terminate)


def _terminate(*_: object) -> None:
    # Once: some programs send it to the process and to its group, and a second Ctrl-C ends at once.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def target(args: argparse.Namespace, options: LoadTestOptions) -> Iterator[tuple[LoadTestOptions, dict[str, str]]]:
    """The addresses to load (with ``--serve`` of a server that is started), and the report's lines about the server."""
    if args.serve is None:
        yield options, {"server": " and ".join(filter(None, (options.grpc_url, options.rest_url)))}
        return
    directory = model_dir(args.serve, options.model)
    with (
        split_cores(enabled=not args.no_pin) as cores,
        served({options.model: directory}, cores=cores, flags=args.server_flag) as server,
    ):
        plan = {"server": " ".join(server.command[1:])}
        if cores:
            plan["cores"] = f"server {sorted(cores)}, generator one other"
        yield dataclasses.replace(options, grpc_url=server.grpc_url, rest_url=server.rest_url), plan


def traffic(args: argparse.Namespace, options: LoadTestOptions) -> Traffic:
    """What to send; prints where it comes from."""
    found = find_traffic(options, served=args.serve, seed=args.seed)
    tell(f"load test: {found.text}")
    return found


def report_of(title: str, plan: dict[str, str], run: Run, limits: Limits) -> Report:
    """The report of one run."""
    rows, total = run.log.by_kind(), run.log.measured()
    return Report(
        title=title,
        plan=plan,
        measured=[*rows, total] if len(rows) > 1 else rows,
        checks=[*check_limits(limits, rows, total=total), *run.log.interruption()],
        run=run,
        notes=generator_notes(run),
    )
