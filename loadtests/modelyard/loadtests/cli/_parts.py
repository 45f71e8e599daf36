"""What the commands share: the server to load, what it is sent, and the report."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence

from modelyard.loadtests.generate import Run, served, split_cores
from modelyard.loadtests.options import Limits, LoadTestOptions, check_limits, model_dir
from modelyard.loadtests.report import Point, Report, generator_notes
from modelyard.loadtests.traffic import Traffic, find_traffic


def tell(text: str) -> None:
    """Says how it goes.

    Args:
        text: What to say.
    """
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def target(args: argparse.Namespace, options: LoadTestOptions) -> Iterator[tuple[LoadTestOptions, dict[str, str]]]:
    """The addresses to load: of a server that is started for it, where one is asked for.

    Args:
        args: What the command line says.
        options: The same, of what all commands share.

    Yields:
        The options with the addresses, and what the report says of the server.

    Raises:
        ConfigurationError: There is nothing to serve.
        LoadTestError: The server does not start.
    """
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
    """What to send; says where it comes from.

    Args:
        args: What the command line says.
        options: The same, of what all commands share, with the addresses.

    Raises:
        ModelyardError: The data cannot be used, or the server does not answer.
    """
    found = find_traffic(options, served=args.serve, seed=args.seed)
    tell(f"load test: {found.text}")
    return found


def report_of(title: str, plan: dict[str, str], run: Run, limits: Limits, curve: Sequence[Point] = ()) -> Report:
    """The report of one run.

    Args:
        title: Its title.
        plan: What was done.
        run: What came of it.
        limits: What it must keep.
        curve: What other rates came to.
    """
    rows, total = run.log.by_kind(), run.log.measured()
    return Report(
        title=title,
        plan=plan,
        measured=[*rows, total] if len(rows) > 1 else rows,
        checks=check_limits(limits, rows, total=total),
        run=run,
        curve=curve,
        notes=generator_notes(run),
    )
