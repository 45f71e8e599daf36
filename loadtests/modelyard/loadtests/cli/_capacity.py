"""``modelyard loadtest capacity``: the highest rate within the limits."""

from __future__ import annotations

import argparse

from modelyard.errors import ConfigurationError
from modelyard.loadtests.cli._parts import target, tell, traffic
from modelyard.loadtests.compare import Capacity, CapacityOptions, find_capacity
from modelyard.loadtests.generate import run_precisely, session
from modelyard.loadtests.options import Check, LoadTestOptions, duration, fraction, positive, whole
from modelyard.loadtests.report import Report, generator_notes


def add_capacity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--probe-s", type=duration, default=5.0, help="length of each run (default 5)")
    parser.add_argument(
        "--resolution", type=fraction, default=0.05, help="share at which the search ends (default 0.05)"
    )
    parser.add_argument("--in-flight", type=whole, default=32, help="of the closed loop at the beginning (default 32)")
    parser.add_argument("--curve", action="store_true", help="also measure far below the capacity, and above it")
    parser.add_argument("--min-capacity", type=positive, help="requests per second; less is a broken limit")


def capacity(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    """Search for the capacity."""
    p99 = options.limits.max_p99_ms
    if p99 is None:
        raise ConfigurationError("capacity needs the limit that it is about: give --p99-ms.")
    looking = CapacityOptions(
        limits=options.limits,
        probe_s=args.probe_s,
        resolution=args.resolution,
        in_flight=args.in_flight,
        curve=args.curve,
    )
    with target(args, options) as (loaded, plan):
        source = traffic(args, loaded)
        requests = source.requests(loaded, source.kinds(loaded), seed=args.seed)

        async def main() -> Capacity:
            async with session(loaded, requests) as opened:
                return await find_capacity(opened, requests, looking, tell=tell)

        found = run_precisely(main())
    middle = found.confirmations[0]
    checks = list(middle.checks)
    if args.min_capacity is not None:
        text = f"the capacity is {found.per_s:.1f} requests per second; expected {args.min_capacity:g} or more"
        kept = found.per_s >= args.min_capacity
        checks.append(
            Check(
                subject="all", name="min_capacity", limit=args.min_capacity, value=found.per_s, kept=kept, text=text
            )
        )  # fmt: skip
    return Report(
        title="modelyard loadtest capacity",
        verdict=found.verdict(),
        plan={
            "load": f"bisection over open loops of {args.probe_s:g} s, p99 within {p99:g} ms",
            "requests": source.text,
            "closed loop": f"{found.closed:.1f} right answers per second, {args.in_flight} in flight",
            **plan,
        },
        measured=[middle.measured],
        checks=checks,
        run=middle.run,
        curve=found.points,
        notes=[*found.notes(), *generator_notes(middle.run)],
    )
