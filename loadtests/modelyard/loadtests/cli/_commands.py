"""``modelyard loadtest COMMAND``: open-loop runs, capacity, comparison, scenarios, and h2load."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

from modelyard.console import make_command
from modelyard.errors import ConfigurationError, MissingDependencyError
from modelyard.loadtests.cli._capacity import add_capacity, capacity
from modelyard.loadtests.cli._compare import add_compare, run_compare
from modelyard.loadtests.cli._h2load import add_h2load, h2load
from modelyard.loadtests.cli._parts import stoppable, tell
from modelyard.loadtests.cli._run import add_run, run
from modelyard.loadtests.options import (
    Limits,
    LoadTestOptions,
    add_arguments,
    duration,
    natural,
    options_from,
    positive,
    read_plan,
)
from modelyard.loadtests.report import (
    Report,
    checks_table,
    metrics_table,
    table,
    write_broken,
    write_junit,
    write_report,
)
from modelyard.loadtests.scenarios import SCENARIOS, ScenarioOptions, run_scenario


def command(name: str, argv: list[str]) -> int:
    """Run one of :data:`COMMANDS`; returns 1 where a limit was broken, 130 where it was interrupted, else 0."""
    summary, example, add, main = COMMANDS[name]
    parser = make_command(f"modelyard loadtest {name}", summary, f"examples:\n{example}", allow_abbrev=False)
    add(parser)
    group = parser.add_argument_group("server and report")
    group.add_argument("--serve", type=Path, metavar="REPOSITORY", help="start a server for this model repository")
    group.add_argument("--server-flag", action="append", default=[], metavar="FLAG", help="one more flag for it")
    group.add_argument("--no-pin", action="store_true", help="do not give generator and server cores of their own")
    group.add_argument("--report", type=Path, metavar="FOLDER", help="write JSON, CSV, JUnit XML and a page there")
    group.add_argument("--seed", type=natural, help="of arrivals and choices (default: the plan's, or 0)")
    add_arguments(parser)
    args = parser.parse_args(argv)
    options = options_from(args)
    load = read_plan(args.plan).get("load", {}) if args.plan else {}
    if args.seed is None:
        args.seed = load.get("seed", 0)
    if name != "run" and "arrivals" in load:
        raise ConfigurationError(f"modelyard loadtest {name} has no use for a plan's arrivals: only run sends by them.")
    for flag, reason in _UNUSED.get(name, {}).items():
        if _is_given(options, flag):
            raise ConfigurationError(f"modelyard loadtest {name} has no use for {flag}: {reason}.")
    if args.report and importlib.util.find_spec("jinja2") is None:
        # Not after the run.
        raise MissingDependencyError(package="jinja2", extra="loadtests", purpose="--report")
    with stoppable():
        return _finish(main(args, options), args)


_RATE_LIMITS = "a rate has few requests because it is low, not because the server is slow"
_RATIOS = "two servers are compared by --max-latency-ratio and --min-throughput-ratio"
#: Of the flags that all commands share, those of which one makes nothing, by what stands for them in a plan, too.
_UNUSED: dict[str, dict[str, str]] = {
    "capacity": {
        "--replay": "it sends at rates of its own",
        "a plan's shape": "it sends at rates of its own",
        "--min-requests": _RATE_LIMITS,
        "--min-throughput": "--min-capacity is that limit",
    },
    "compare": {
        "--replay": "it sends at rates of its own",
        "a plan's shape": "it sends at rates of its own",
        **dict.fromkeys(("--max-p50-ms", "--max-p95-ms", "--max-p99-ms", "--min-throughput"), _RATIOS),
    },
    "scenario": {
        "--replay": "it sends what the model is made for",
        "a plan's shape": "each scenario has its own, and --seconds and --at-rate change it",
    },
    "h2load": {
        "--replay": "it repeats one request",
        "a plan's shape": "it sends at one rate",
    },
}


def _is_given(options: LoadTestOptions, flag: str) -> bool:
    if flag == "a plan's shape":
        return options.shape is not None
    if flag == "--replay":
        return options.replay is not None
    name = flag.removeprefix("--").replace("-", "_")
    return bool(getattr(options.limits, name) != getattr(Limits(), name))


def _finish(report: Report, args: argparse.Namespace) -> int:
    tell(f"\n{report.verdict}\n" if report.verdict else "")
    tell(metrics_table(report.metrics) if report.metrics else table(report.measured))
    for note in report.notes:
        tell(note)
    if report.checks:
        tell("\n" + checks_table(report.checks))
    if args.report:
        write_report(report, args.report)
        tell(f"\nreport: {args.report / 'report.html'}")
    if args.junit:
        write_junit(report.checks, report.title, args.junit)
    write_broken(report.checks)
    return report.exit_code


def _add_scenario(parser: argparse.ArgumentParser) -> None:
    texts = "; ".join(f"{name}: {each.summary}" for name, each in SCENARIOS.items())
    parser.add_argument("scenario", choices=tuple(SCENARIOS), help=texts)
    parser.add_argument("-t", "--seconds", type=duration, help="length, such as 1m30s (default: the scenario's own)")
    parser.add_argument(
        "--at-rate", action="store_true", help="at --rate, not at the scenario's share of what the server can do"
    )
    parser.add_argument("--every-s", type=duration, default=10.0, help="seconds between two events (default 10)")
    parser.add_argument(
        "--calibrate-s", type=duration, default=2.0, help="time to see what the server can do (default 2)"
    )
    parser.add_argument("--max-step-ms", type=positive, help="limit of the rise of p95 after events")
    parser.add_argument("--min-goodput", type=positive, help="right answers as a share of what the server can do")


def _scenario(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    planned = read_plan(args.plan).get("limits", {}) if args.plan else {}
    given = {each.name: getattr(args, each.name, None) for each in dataclasses.fields(Limits)}
    return run_scenario(
        args.scenario,
        ScenarioOptions(
            load=options,
            repository=args.serve,
            seconds=args.seconds,
            rate=options.rate if args.at_rate else None,
            limits=planned | {name: value for name, value in given.items() if value is not None},
            calibrate_s=args.calibrate_s,
            every_s=args.every_s,
            pin=not args.no_pin,
            seed=args.seed,
            server_flags=args.server_flag,
            tell=tell,
        ),
    )


COMMANDS: dict[
    str,
    tuple[
        str,
        str,
        Callable[[argparse.ArgumentParser], None],
        Callable[[argparse.Namespace, LoadTestOptions], Report],
    ],
] = {
    "run": (
        "Sends requests at given moments, whatever became of the ones before: an open loop.",
        "  modelyard loadtest run --host-grpc localhost:8500 --rate 200 -t 30 --max-p99-ms 20 --report out\n"
        "  modelyard loadtest run --plan day.toml --serve demo/repository --report out\n"
        "  modelyard loadtest run --replay requests.tfrecord --speed 2 --host-grpc localhost:8500",
        add_run,
        run,
    ),
    "capacity": (
        "Finds the highest rate of an open loop within the limits.",
        "  modelyard loadtest capacity --p99-ms 20 --host-grpc localhost:8500 --kind 'grpc image'",
        add_capacity,
        capacity,
    ),
    "compare": (
        "Compares two servers, or two builds, in alternating rounds.",
        "  modelyard loadtest compare grpc://a:8500 grpc://b:8500\n"
        "  modelyard loadtest compare old/bin/python new/bin/python --serve demo/repository --max-latency-ratio 1.1",
        add_compare,
        run_compare,
    ),
    "scenario": (
        "Runs a scenario that ships, against a server that it starts or one that is there.",
        "  modelyard loadtest scenario smoke --serve demo/repository\n"
        "  modelyard loadtest scenario overload --host-grpc localhost:8500 --host-rest localhost:8501",
        _add_scenario,
        _scenario,
    ),
    "h2load": (
        "Loads a server with h2load (Debian package nghttp2-client), beyond what Python can send.",
        "  modelyard loadtest h2load --host-grpc localhost:8500 --rate 5000 -t 30\n"
        "  modelyard loadtest h2load --host-rest localhost:8501 --closed --kind 'rest-v2 image'",
        add_h2load,
        h2load,
    ),
}
