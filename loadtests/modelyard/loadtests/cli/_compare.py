"""``modelyard loadtest compare``: two servers or two builds."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.loadtests.cli._parts import tell
from modelyard.loadtests.compare import CompareOptions, compare
from modelyard.loadtests.generate import run_precisely, served, session, split_cores
from modelyard.loadtests.options import LoadTestOptions, check_limits, duration, model_dir, positive, whole
from modelyard.loadtests.report import Report
from modelyard.loadtests.traffic import Request, Traffic, find_traffic


def add_compare(parser: argparse.ArgumentParser) -> None:
    for name in ("A", "B"):
        parser.add_argument(
            name, help="address such as grpc://host:8500, or a Python interpreter whose modelyard serves --serve"
        )
    parser.add_argument("--rounds", type=whole, default=6, help="pairs of runs, 2 or more (default 6)")
    parser.add_argument("--round-s", type=duration, default=3.0, help="length of each half of a run (default 3)")
    parser.add_argument(
        "--open-rate", type=positive, help="of the open loop (default: half of what the slower one can do)"
    )
    parser.add_argument("--in-flight", type=whole, default=16, help="of the closed loop (default 16)")
    parser.add_argument("--min-throughput-ratio", type=positive, help="least B / A")
    parser.add_argument("--max-latency-ratio", type=positive, help="greatest B / A of p50, p95 and p99")


def run_compare(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    if args.rounds < 2:
        raise ConfigurationError(f"--rounds is {args.rounds}; one pair has no interval: expected 2 or more.")
    looking = CompareOptions(rounds=args.rounds, round_s=args.round_s, rate=args.open_rate, in_flight=args.in_flight)
    with contextlib.ExitStack() as stack:
        cores = stack.enter_context(split_cores(enabled=args.serve is not None and not args.no_pin))
        first, second = (_side(stack, args, options, text, cores) for text in (args.A, args.B))
        sources = [find_traffic(each, served=args.serve, seed=args.seed) for each in (first, second)]
        for text in dict.fromkeys(source.text for source in sources):
            tell(f"load test: {text}")
        sent = tuple(_requests(source, each, args.seed) for source, each in zip(sources, (first, second), strict=True))

        async def main() -> Report:
            async with (
                session(first, sent[0]) as one,
                session(second, sent[1]) as other,
            ):
                found = await compare(one, other, (sent[0], sent[1]), looking, tell=tell)
            checks = found.checks(
                min_throughput_ratio=args.min_throughput_ratio, max_latency_ratio=args.max_latency_ratio
            )
            checks += check_limits(options.limits, found.measured)
            rounds = [
                ", ".join(
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                    for key, value in each.items()
                )
                for each in found.rounds
            ]
            plan = {"A": args.A, "B": args.B, "requests": sources[0].text, "rounds": f"{args.rounds} pairs, A B B A"}
            plan |= {f"run {index + 1}": text for index, text in enumerate(rounds)}
            return Report(
                title="modelyard loadtest compare", plan=plan, measured=found.measured, checks=checks,
                verdict=found.text(), worse=found.worse, metrics=found.table(),
            )  # fmt: skip

        return run_precisely(main())


def _side(
    stack: contextlib.ExitStack,
    args: argparse.Namespace,
    options: LoadTestOptions,
    text: str,
    cores: frozenset[int],
) -> LoadTestOptions:
    if "://" in text:
        scheme = text.partition("://")[0]
        return dataclasses.replace(
            options,
            grpc_url=text if scheme.startswith("grpc") else "",
            rest_url=text if scheme.startswith("http") else "",
        )
    if args.serve is None or not Path(text).is_file():
        raise ConfigurationError(
            f"Cannot load {text!r}; expected an address such as grpc://host:8500, or, with --serve REPOSITORY, a "
            "Python interpreter."
        )
    directory = model_dir(args.serve, options.model)
    server = stack.enter_context(served({options.model: directory}, python=text, cores=cores, flags=args.server_flag))
    return dataclasses.replace(options, grpc_url=server.grpc_url, rest_url=server.rest_url)


def _requests(source: Traffic, options: LoadTestOptions, seed: int) -> list[Request]:
    # One kind where none is named: the mix of two would hide what became of each.
    one = (source.kind("grpc" if options.grpc_url else "rest", "image"),)
    return source.requests(options, source.kinds(options, one), seed=seed)
