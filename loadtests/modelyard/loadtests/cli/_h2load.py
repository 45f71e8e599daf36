"""``modelyard loadtest h2load``: rates beyond what Python can send."""

from __future__ import annotations

import argparse
import dataclasses

from modelyard.errors import ConfigurationError
from modelyard.loadtests.cli._parts import report_of, target, traffic
from modelyard.loadtests.generate import H2loadOptions, Run, endpoint, find_h2load, run_h2load, run_precisely, session
from modelyard.loadtests.options import LoadTestOptions, whole, whole_duration
from modelyard.loadtests.report import Report
from modelyard.loadtests.traffic import Checker, Request


def add_h2load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-t", "--seconds", type=whole_duration, default=10, help="length, such as 30s (default 10)")
    parser.add_argument("--closed", action="store_true", help="as many requests as the server takes, instead of --rate")
    parser.add_argument("--clients", type=whole, default=8, help="connections (default 8)")
    parser.add_argument("--in-flight", type=whole, default=8, help="requests at the same time on each (default 8)")
    parser.add_argument("--warm-up-s", type=whole_duration, default=1, help="time before the run (default 1)")


def h2load(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    find_h2load()
    if len(options.kinds) > 1:
        raise ConfigurationError(f"h2load sends one kind of request; received {', '.join(options.kinds)}.")
    with target(args, options) as (loaded, plan):
        source = traffic(args, loaded)
        plan["requests"] = source.text
        request = source.requests(loaded, source.kinds(loaded)[:1], distinct=1, seed=args.seed)[0]
        checker = _Sizes()

        async def first() -> None:
            async with session(loaded, [request], warm_up=False) as opened:
                opened.generator.checker = checker
                await opened.generator.warm_up([request])

        run_precisely(first())
        looking = H2loadOptions(
            rate=None if args.closed else options.rate, seconds=args.seconds, warm_up_s=args.warm_up_s,
            clients=args.clients, in_flight=args.in_flight,
        )  # fmt: skip
        where = endpoint(loaded.grpc_url if request.api.startswith("grpc") else loaded.rest_url)
        log = run_h2load(where, request, looking, answer_bytes=checker.size, matches=checker.last)
    load = "as many requests as the server takes" if args.closed else f"{options.rate:g} requests per second"
    text = f"h2load, {args.clients} connections, {args.in_flight} in flight on each, {load}, one body"
    report = report_of("modelyard loadtest h2load", {"load": text, **plan}, Run(log=log), options.limits)
    note = "Latency counts from the moment at which h2load sent a request, not from the one at which it was due."
    return dataclasses.replace(report, notes=[note])


class _Sizes(Checker):
    """Remembers how long the last right answer was."""

    size = 0
    last = 0

    def matches(self, request: Request, body: bytes) -> int:
        self.last = super().matches(request, body)
        self.size = len(body)
        return self.last
