"""``modelyard loadtest COMMAND``: open-loop runs, capacity, comparison, scenarios, and h2load."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.loadtests._capacity import CapacityOptions, find_capacity
from modelyard.loadtests._compare import CompareOptions, compare
from modelyard.loadtests._decode import Checker
from modelyard.loadtests._h2load import H2loadOptions, find_h2load, run_h2load
from modelyard.loadtests._images import Images, load_images
from modelyard.loadtests._limits import Limits, check_limits
from modelyard.loadtests._options import LoadTestOptions, add_arguments, options_from, positive, whole
from modelyard.loadtests._plan import read_plan
from modelyard.loadtests._precise import run_precisely
from modelyard.loadtests._replay import read_recording
from modelyard.loadtests._report import Point, Report, checks_table, generator_notes, table, write_junit, write_report
from modelyard.loadtests._requests import Request
from modelyard.loadtests._scenarios import SCENARIOS, ScenarioOptions, run_scenario
from modelyard.loadtests._sender import endpoint
from modelyard.loadtests._servers import model_dir, served, split_cores
from modelyard.loadtests._session import Run, run_open, session
from modelyard.loadtests._shapes import Shape, constant
from modelyard.loadtests._traffic import all_kinds, make_requests

_EXIT_BROKEN = 1


def command(name: str, argv: list[str]) -> int:
    """Runs a command.

    Args:
        name: One of :data:`COMMANDS`.
        argv: Arguments behind it.

    Returns:
        0; 1 where a limit was broken.

    Raises:
        ModelyardError: The run could not be made.
    """
    summary, example, add, run = COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"modelyard loadtest {name}",
        description=summary,
        epilog=f"examples:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add(parser)
    group = parser.add_argument_group("server and report")
    group.add_argument("--serve", type=Path, metavar="REPOSITORY", help="start a server for this model repository")
    group.add_argument("--server-flag", action="append", default=[], metavar="FLAG", help="one more flag for it")
    group.add_argument("--no-pin", action="store_true", help="do not give generator and server cores of their own")
    group.add_argument("--report", type=Path, metavar="FOLDER", help="write JSON, CSV, JUnit XML and a page there")
    group.add_argument("--seed", type=int, default=0, help="of arrivals and choices (default 0)")
    add_arguments(parser)
    args = parser.parse_args(argv)
    return _finish(run(args, options_from(args)), args)


def _finish(report: Report, args: argparse.Namespace) -> int:
    _tell("\n" + table(report.measured))
    for note in report.notes:
        _tell(note)
    if report.checks:
        _tell("\n" + checks_table(report.checks))
    if args.report:
        write_report(report, args.report)
        _tell(f"\nreport: {args.report / 'report.html'}")
    if args.junit:
        write_junit(report.checks, report.title, args.junit)
    for check in report.checks:
        if not check.kept:
            sys.stderr.write(f"load test: LIMIT BROKEN: {check.subject}: {check.text}\n")
    return 0 if report.passed else _EXIT_BROKEN


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _target(args: argparse.Namespace, options: LoadTestOptions) -> Iterator[tuple[LoadTestOptions, dict[str, str]]]:
    """The addresses to load: of a server that is started for it, where one is asked for."""
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


def _traffic(options: LoadTestOptions, seed: int) -> tuple[list[Request], Images]:
    images = load_images()
    _tell(f"load test: images from {images.source}")
    return make_requests(options, options.kinds or all_kinds(options), images, seed=seed), images


# ---- run ------------------------------------------------------------------------------------------------------------


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-t", "--seconds", type=positive, default=10.0, help="length without a plan (default 10)")
    parser.add_argument("--arrivals", choices=("poisson", "constant"), help="of the requests (default poisson)")
    parser.add_argument("--speed", type=positive, default=1.0, help="with --replay: 2 is twice as fast as recorded")
    parser.add_argument("--at-rate", action="store_true", help="with --replay: at --rate, not when it was recorded")


def _run(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    load = read_plan(args.plan).get("load", {}) if args.plan else {}
    poisson = (args.arrivals or load.get("arrivals", "poisson")) == "poisson"
    seed = args.seed or load.get("seed", 0)
    shape = options.shape or constant(options.rate, args.seconds)
    with _target(args, options) as (target, plan):
        if options.replay:
            run, text = _replay(args, target, shape, poisson)
        else:
            requests, images = _traffic(target, seed)
            run = run_open(target, requests, images.class_names, shape, poisson=poisson, seed=seed)
            arrivals = "Poisson" if poisson else "constant"
            text = f"open loop, {arrivals} arrivals, {shape.requests:.0f} requests due in {shape.seconds:g} s"
    return _report("modelyard loadtest run", {"load": text, **plan, "seed": str(seed)}, run, options.limits)


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
        async with session(options, recording.requests[:64], (), warm_up=True) as opened:
            return await opened.play(arrivals, lambda: next(order), seconds=seconds)

    speed = f"at {options.rate:g}/s" if args.at_rate else f"at {args.speed:g} times the recorded speed"
    return run_precisely(main()), f"replay of {options.replay}: {count} requests {speed}"


def _report(title: str, plan: dict[str, str], run: Run, limits: Limits, curve: Sequence[Point] = ()) -> Report:
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


# ---- capacity -------------------------------------------------------------------------------------------------------


def _add_capacity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--probe-s", type=positive, default=5.0, help="length of each run (default 5)")
    parser.add_argument(
        "--resolution", type=positive, default=0.05, help="share at which the search ends (default 0.05)"
    )
    parser.add_argument("--in-flight", type=whole, default=32, help="of the closed loop at the beginning (default 32)")
    parser.add_argument("--min-capacity", type=positive, help="requests per second; less is a broken limit")


def _capacity(args: argparse.Namespace, options: LoadTestOptions) -> Report:
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
    )
    with _target(args, options) as (target, plan):
        requests, images = _traffic(target, args.seed)

        async def main() -> Report:
            async with session(target, requests, images.class_names) as opened:
                found = await find_capacity(opened, requests, looking, tell=_tell)
            _tell(found.text())
            limits = dataclasses.replace(options.limits, min_throughput=args.min_capacity)
            text = f"bisection over open loops of {args.probe_s:g} s, p99 within {p99:g} ms"
            report = _report("modelyard loadtest capacity", {"load": text, **plan}, found.last, limits, found.points)
            # The last run alone says little: more than half of the confirming runs kept every limit.
            checks = [check for check in report.checks if check.name == "min_throughput"]
            checks += check_limits(
                Limits(max_p99_ms=p99, max_error_rate=1, min_agreement=0),
                [dataclasses.replace(found.last.log.measured(), p99_ms=found.p99.value)],
            )
            return dataclasses.replace(report, checks=checks, notes=[found.text(), *report.notes])

        return run_precisely(main())


# ---- compare --------------------------------------------------------------------------------------------------------


def _add_compare(parser: argparse.ArgumentParser) -> None:
    for name in ("A", "B"):
        parser.add_argument(
            name, help="address such as grpc://host:8500, or a Python interpreter whose modelyard serves --serve"
        )
    parser.add_argument("--rounds", type=whole, default=6, help="pairs of runs, 2 or more (default 6)")
    parser.add_argument("--round-s", type=positive, default=3.0, help="length of each half of a run (default 3)")
    parser.add_argument(
        "--open-rate", type=positive, help="of the open loop (default: half of what the slower one can do)"
    )
    parser.add_argument("--in-flight", type=whole, default=16, help="of the closed loop (default 16)")
    parser.add_argument("--min-throughput-ratio", type=positive, help="least B / A")
    parser.add_argument("--max-latency-ratio", type=positive, help="greatest B / A of p50, p95 and p99")


def _compare(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    if args.rounds < 2:
        raise ConfigurationError(f"--rounds is {args.rounds}; one pair has no interval: expected 2 or more.")
    looking = CompareOptions(rounds=args.rounds, round_s=args.round_s, rate=args.open_rate, in_flight=args.in_flight)
    images = load_images()
    with contextlib.ExitStack() as stack:
        cores = stack.enter_context(split_cores(enabled=args.serve is not None and not args.no_pin))
        first, second = (_side(stack, args, options, text, cores) for text in (args.A, args.B))
        sent = tuple(
            make_requests(each, options.kinds or _comparable(each), images, seed=args.seed) for each in (first, second)
        )

        async def main() -> Report:
            async with (
                session(first, sent[0], images.class_names) as one,
                session(second, sent[1], images.class_names) as other,
            ):
                found = await compare(one, other, (sent[0], sent[1]), looking, tell=_tell)
            _tell("\n" + found.text())
            checks = found.checks(
                min_throughput_ratio=args.min_throughput_ratio, max_latency_ratio=args.max_latency_ratio
            )
            checks += check_limits(
                dataclasses.replace(options.limits, max_p50_ms=None, max_p95_ms=None, max_p99_ms=None), found.measured
            )
            rounds = [
                ", ".join(
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                    for key, value in each.items()
                )
                for each in found.rounds
            ]
            plan = {"A": args.A, "B": args.B, "rounds": f"{args.rounds} pairs, A B B A"}
            plan |= {f"run {index + 1}": text for index, text in enumerate(rounds)}
            return Report(
                title="modelyard loadtest compare", plan=plan, measured=found.measured, checks=checks,
                notes=found.text().splitlines(),
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


def _comparable(options: LoadTestOptions) -> tuple[str, ...]:
    """One kind: the mix of two would hide what became of each."""
    return ("grpc image",) if options.grpc_url else ("rest image",)


# ---- scenario -------------------------------------------------------------------------------------------------------


def _add_scenario(parser: argparse.ArgumentParser) -> None:
    texts = "; ".join(f"{name}: {each.summary}" for name, each in SCENARIOS.items())
    parser.add_argument("scenario", choices=tuple(SCENARIOS), help=texts)
    parser.add_argument("-t", "--seconds", type=positive, help="length (default: the scenario's own)")
    parser.add_argument(
        "--at-rate", action="store_true", help="at --rate, not at the scenario's share of what the server can do"
    )
    parser.add_argument("--every-s", type=positive, default=10.0, help="seconds between two events (default 10)")
    parser.add_argument(
        "--calibrate-s", type=positive, default=2.0, help="time to see what the server can do (default 2)"
    )
    parser.add_argument("--max-step-ms", type=positive, help="limit of the rise of p95 after events")
    parser.add_argument("--min-goodput", type=positive, help="right answers as a share of what the server can do")


def _scenario(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    images = load_images()
    given = {each.name: getattr(args, each.name, None) for each in dataclasses.fields(Limits)}
    return run_scenario(
        args.scenario,
        ScenarioOptions(
            load=options,
            repository=args.serve,
            seconds=args.seconds,
            rate=options.rate if args.at_rate else None,
            limits={name: value for name, value in given.items() if value is not None},
            calibrate_s=args.calibrate_s,
            every_s=args.every_s,
            pin=not args.no_pin,
            seed=args.seed,
            server_flags=args.server_flag,
            tell=_tell,
        ),
        images,
    )


# ---- h2load ---------------------------------------------------------------------------------------------------------


def _add_h2load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-t", "--seconds", type=whole, default=10, help="length (default 10)")
    parser.add_argument("--closed", action="store_true", help="as many requests as the server takes, instead of --rate")
    parser.add_argument("--clients", type=whole, default=8, help="connections (default 8)")
    parser.add_argument("--in-flight", type=whole, default=8, help="requests at the same time on each (default 8)")
    parser.add_argument("--warm-up-s", type=whole, default=1, help="time before the run (default 1)")


def _h2load(args: argparse.Namespace, options: LoadTestOptions) -> Report:
    find_h2load()
    if len(options.kinds) > 1:
        raise ConfigurationError(f"h2load sends one kind of request; received {', '.join(options.kinds)}.")
    with _target(args, options) as (target, plan):
        kinds = options.kinds or all_kinds(target)[:1]
        images = load_images()
        (request,) = make_requests(target, kinds, images, distinct=1, seed=args.seed)
        checker = _Sizes(images.class_names)

        async def first() -> None:
            async with session(target, [request], images.class_names, warm_up=False) as opened:
                opened.generator.checker = checker
                await opened.generator.warm_up([request])

        run_precisely(first())
        looking = H2loadOptions(
            rate=None if args.closed else options.rate, seconds=args.seconds, warm_up_s=args.warm_up_s,
            clients=args.clients, in_flight=args.in_flight,
        )  # fmt: skip
        where = endpoint(target.grpc_url if request.api.startswith("grpc") else target.rest_url)
        log = run_h2load(where, request, looking, answer_bytes=checker.size, hits=checker.last)
    load = "as many requests as the server takes" if args.closed else f"{options.rate:g} requests per second"
    text = f"h2load, {args.clients} connections, {args.in_flight} in flight on each, {load}, one body"
    report = _report("modelyard loadtest h2load", {"load": text, **plan}, Run(log=log), options.limits)
    note = "Latency counts from the moment at which h2load sent a request, not from the one at which it was due."
    return dataclasses.replace(report, notes=[note])


class _Sizes(Checker):
    """Remembers how long the last right answer was."""

    size = 0
    last = 0

    def hits(self, request: Request, body: bytes) -> int:
        """As the base class."""
        self.last = super().hits(request, body)
        self.size = len(body)
        return self.last


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
        _add_run,
        _run,
    ),
    "capacity": (
        "Finds the highest rate of an open loop within the limits.",
        "  modelyard loadtest capacity --p99-ms 20 --host-grpc localhost:8500 --kind 'grpc image'",
        _add_capacity,
        _capacity,
    ),
    "compare": (
        "Compares two servers, or two builds, in alternating rounds.",
        "  modelyard loadtest compare grpc://a:8500 grpc://b:8500\n"
        "  modelyard loadtest compare old/bin/python new/bin/python --serve demo/repository --max-latency-ratio 1.1",
        _add_compare,
        _compare,
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
        _add_h2load,
        _h2load,
    ),
}
