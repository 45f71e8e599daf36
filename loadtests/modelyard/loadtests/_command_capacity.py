"""``modelyard loadtest capacity``: the highest rate within the limits."""

from __future__ import annotations

import argparse
import dataclasses

from modelyard.errors import ConfigurationError
from modelyard.loadtests._capacity import CapacityOptions, find_capacity
from modelyard.loadtests._command_parts import report_of, target, tell, traffic
from modelyard.loadtests._limits import Limits, check_limits
from modelyard.loadtests._options import LoadTestOptions, positive, whole
from modelyard.loadtests._precise import run_precisely
from modelyard.loadtests._report import Report
from modelyard.loadtests._session import session


def add_capacity(parser: argparse.ArgumentParser) -> None:
    """Adds the command's own arguments.

    Args:
        parser: The command's.
    """
    parser.add_argument("--probe-s", type=positive, default=5.0, help="length of each run (default 5)")
    parser.add_argument(
        "--resolution", type=positive, default=0.05, help="share at which the search ends (default 0.05)"
    )
    parser.add_argument("--in-flight", type=whole, default=32, help="of the closed loop at the beginning (default 32)")
    parser.add_argument("--curve", action="store_true", help="also measure far below the capacity, and above it")
    parser.add_argument("--min-capacity", type=positive, help="requests per second; less is a broken limit")


def capacity(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    """Looks for the capacity.

    Args:
        args: What the command line says.
        options: The same, of what all commands share.

    Raises:
        ConfigurationError: No limit, or no server.
        LoadTestError: The server does not start, never answers, or keeps the limits at no rate.
    """
    p99 = options.limits.max_p99_ms
    if p99 is None:
        raise ConfigurationError("capacity needs the limit that it is about: give --p99-ms.")
    looking = CapacityOptions(
        p99_ms=p99,
        probe_s=args.probe_s,
        resolution=args.resolution,
        in_flight=args.in_flight,
        max_error_rate=options.limits.max_error_rate,
        min_agreement=options.limits.min_agreement,
        curve=args.curve,
    )
    with target(args, options) as (loaded, plan):
        requests, images = traffic(loaded, args.seed)

        async def main() -> Report:
            async with session(loaded, requests, images.class_names) as opened:
                found = await find_capacity(opened, requests, looking, tell=tell)
            limits = dataclasses.replace(options.limits, min_throughput=args.min_capacity)
            text = f"bisection over open loops of {args.probe_s:g} s, p99 within {p99:g} ms"
            report = report_of("modelyard loadtest capacity", {"load": text, **plan}, found.last, limits, found.points)
            # The last run alone says little: more than half of the confirming runs kept every limit.
            checks = [check for check in report.checks if check.name == "min_throughput"]
            checks += check_limits(
                Limits(max_p99_ms=p99, max_error_rate=1, min_agreement=0),
                [dataclasses.replace(found.last.log.measured(), p99_ms=found.p99.value)],
            )
            return dataclasses.replace(report, checks=checks, notes=[found.text(), *report.notes])

        return run_precisely(main())
