"""``modelyard loadtest run``: one open loop, by a plan or at one rate, or a replay."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.loadtests.cli._parts import report_of, target, traffic
from modelyard.loadtests.generate import Run, run_open, run_precisely, session
from modelyard.loadtests.options import LoadTestOptions, Shape, constant, duration, positive, read_plan
from modelyard.loadtests.report import Report
from modelyard.loadtests.traffic import read_recording


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-t", "--seconds", "--run-time", type=duration, default=10.0,
        help="length without a plan, such as 30s or 1m30s (default 10)",
    )  # fmt: skip
    parser.add_argument("--arrivals", choices=("poisson", "constant"), help="of the requests (default poisson)")
    parser.add_argument("--speed", type=positive, default=1.0, help="with --replay: 2 is twice as fast as recorded")
    parser.add_argument("--at-rate", action="store_true", help="with --replay: at --rate, not when it was recorded")


def run(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    load = read_plan(args.plan).get("load", {}) if args.plan else {}
    poisson = (args.arrivals or load.get("arrivals", "poisson")) == "poisson"
    shape = options.shape or constant(options.rate, args.seconds)
    with target(args, options) as (loaded, plan):
        if options.replay:
            done, text = _replay(args, loaded, shape, poisson)
        else:
            source = traffic(args, loaded)
            requests = source.requests(loaded, source.kinds(loaded), seed=args.seed)
            plan["requests"] = source.text
            done = run_open(loaded, requests, shape, poisson=poisson, seed=args.seed)
            done = replace(done, log=done.log.expecting(request.kind for request in requests))
            arrivals = "Poisson" if poisson else "constant"
            text = f"open loop, {arrivals} arrivals, {shape.requests:.0f} requests due in {shape.seconds:g} s"
    return report_of("modelyard loadtest run", {"load": text, **plan, "seed": str(args.seed)}, done, options.limits)


def _replay(args: argparse.Namespace, options: LoadTestOptions, shape: Shape, poisson: bool) -> tuple[Run, str]:
    recording = read_recording(options.replay or Path())
    if not options.grpc_url:
        raise ConfigurationError("A recording is sent over gRPC: give --host-grpc.")
    if args.at_rate:
        arrivals = list(shape.arrivals(poisson=poisson, seed=args.seed))
        seconds = shape.seconds
    else:
        arrivals = [recording.arrivals(args.speed)]
        seconds = float(arrivals[0][-1]) + 0.001
    count = sum(map(len, arrivals))
    order = iter(recording.requests[index % len(recording.requests)] for index in range(count))

    async def main() -> Run:
        async with session(options, recording.requests[:64]) as opened:
            return await opened.play(arrivals, lambda: next(order), seconds=seconds, partial=True)

    speed = f"at {options.rate:g}/s" if args.at_rate else f"at {args.speed:g} times the recorded speed"
    return run_precisely(main()), f"replay of {options.replay}: {count} requests {speed}"
