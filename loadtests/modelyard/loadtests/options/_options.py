"""Options of a run: one definition for ``modelyard loadtest`` and for Locust's own command line."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.loadtests.options._limits import Limits, limits_from
from modelyard.loadtests.options._plan import read_plan
from modelyard.loadtests.options._repository import only_model
from modelyard.loadtests.options._shapes import Shape, parse_shape, seconds_of

DEFAULT_GRPC = "grpc://localhost:8500"
DEFAULT_REST = "http://localhost:8501"
#: Instead of a file with data.
RANDOM = Path("random")
#: The environment variable with a key or web token of the server's: everybody on the machine can read arguments.
TOKEN = "MODELYARD_TOKEN"


def token() -> str | None:
    """The server's key or web token; None without one. Options, which reports show, do not have it."""
    return os.environ.get(TOKEN) or None


@dataclass(frozen=True, kw_only=True)
class LoadTestOptions:
    """What to send where, and what to expect.

    Attributes:
        grpc_url: Where gRPC users connect; empty for no such users.
        rest_url: Where REST users connect; empty for no such users.
        model: Name of the model.
        rows: Rows per request.
        rate: Requests per second; with Locust, of each user.
        timeout_s: Deadline of a request, in seconds.
        kinds: Kinds of request, such as ``grpc`` or ``grpc image``; empty for
            TensorFlow Serving's APIs at the hosts given, with all there is to send.
        data: File with what to send, or :data:`RANDOM`; None for what is found of the model.
        repository: Repository, or folder of the model or of a version, with the requests that warm it up; None
            for none.
        shape: Requests per second over time; None for what the users make of it.
        replay: Recorded requests to send instead; None for none.
        junit: Where the limits are written as JUnit XML; None for nowhere.
        limits: What the run must keep.
    """

    grpc_url: str = DEFAULT_GRPC
    rest_url: str = DEFAULT_REST
    model: str = "fashion"
    rows: int = 1
    rate: float = 20.0
    timeout_s: float = 10.0
    kinds: tuple[str, ...] = ()
    data: Path | None = None
    repository: Path | None = None
    shape: Shape | None = None
    replay: Path | None = None
    junit: Path | None = None
    limits: Limits = field(default_factory=Limits)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options to a parser, ours or Locust's."""
    group = parser.add_argument_group("modelyard", "what to send, and the limits that a run must keep")
    group.add_argument(
        "--host-grpc", metavar="URL", help=f"gRPC server, such as {DEFAULT_GRPC} or localhost:8500; empty for none"
    )
    group.add_argument(
        "--host-rest", metavar="URL", help=f"REST server, such as {DEFAULT_REST} or localhost:8501; empty for none"
    )
    group.add_argument(
        "--model", help="name of the model (default: the only one of the repository that is named, else fashion)"
    )
    group.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="what to send: .npz, .npy, .jsonl, .csv, .tfrecord (PredictionLog or tf.Example), or the word random "
        "(default: the requests that warm the version up, where its folder is known; else random values)",
    )
    group.add_argument(
        "--repository", type=Path, metavar="FOLDER", help="repository, model or version whose warm-up requests to send"
    )
    group.add_argument("--rows", type=_rows, default=1, help="rows per request (default 1)")
    group.add_argument(
        "--rate", type=positive, default=20.0, help="requests per second; with Locust, of each user (default 20)"
    )
    group.add_argument("--timeout-s", type=duration, default=10.0, help="deadline of a request (default 10)")
    group.add_argument(
        "--kind",
        action="append",
        metavar="KIND",
        help="API (grpc, rest, grpc-v2 or rest-v2), alone or with a space and a payload: a signature's name, or of "
        "the demo's model image, image_bytes or example; may be given several times (default: grpc and rest)",
    )
    group.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="TOML or YAML with the shape of the load, limits, kinds: docs/loadtesting.md",
    )
    group.add_argument(
        "--replay", type=Path, metavar="FILE", help="send a recorded PredictionLog (TFRecord) instead, over gRPC"
    )
    group.add_argument("--junit", type=Path, metavar="FILE", help="write the limits as JUnit XML")
    for flags, kind, text in (
        (("--max-error-rate",), _share, "share of requests that may fail, 0 to 1 (default 0)"),
        (("--max-p50-ms",), positive, "limit of the 50th percentile of the latency"),
        (("--max-p95-ms",), positive, "limit of the 95th percentile of the latency"),
        (("--max-p99-ms", "--p99-ms"), positive, "limit of the 99th percentile of the latency"),
        (
            ("--min-agreement", "--min-accuracy"),
            _share,
            "share of answers that must agree with the expected ones, 0 to 1 (default 0.8; 0.4 in scenarios)",
        ),
        (("--min-requests",), whole, "requests of each kind to be answered (default 1)"),
        (("--min-throughput",), positive, "right answers per second, all kinds together"),
    ):
        group.add_argument(*flags, type=kind, help=text)


def options_from(args: argparse.Namespace) -> LoadTestOptions:
    """The options of parsed arguments.

    Where neither host is given, both are TensorFlow Serving's on this machine;
    where one is given, there are users for that one only.
    """
    plan = read_plan(args.plan) if args.plan else {}
    limits = limits_from(plan.get("limits", {}), str(args.plan))
    given = {each.name: getattr(args, each.name, None) for each in dataclasses.fields(Limits)}
    load = plan.get("load", {})
    folder = args.repository or getattr(args, "serve", None)
    neither = args.host_grpc is None and args.host_rest is None
    grpc_url = DEFAULT_GRPC if neither else _url(args.host_grpc, "grpc")
    rest_url = DEFAULT_REST if neither else _url(args.host_rest, "http")
    if not grpc_url and not rest_url:
        raise ConfigurationError("Both --host-grpc and --host-rest are empty; expected at least one server to load.")
    return LoadTestOptions(
        grpc_url=grpc_url,
        rest_url=rest_url,
        model=args.model or (only_model(folder) if folder else "") or "fashion",
        data=args.data,
        repository=args.repository,
        rows=args.rows,
        rate=args.rate,
        timeout_s=args.timeout_s,
        kinds=tuple(args.kind or load.get("kinds", ())),
        shape=parse_shape(load["shape"], str(args.plan)) if "shape" in load else None,
        replay=args.replay,
        junit=args.junit,
        limits=dataclasses.replace(limits, **{name: value for name, value in given.items() if value is not None}),
    )


def _url(host: str | None, scheme: str) -> str:
    if not host:
        return ""
    return host if "://" in host else f"{scheme}://{host}"


def _number(accepted: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    """A type for argparse: numbers that are accepted, which NaN never is."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            if accepted(float(text)):
                return float(text)
        raise argparse.ArgumentTypeError(f"received {text!r}; expected {expected}")

    return read


positive = _number(lambda value: 0 < value < math.inf, "a number above 0")
_share = _number(lambda value: 0 <= value <= 1, "a share from 0 to 1")
fraction = _number(lambda value: 0 < value < 1, "a share above 0 and below 1, such as 0.05")


def _whole_from(least: int, most: int | None = None) -> Callable[[str], int]:
    """A type for argparse: whole numbers."""
    expected = f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"

    def read(text: str) -> int:
        with contextlib.suppress(ValueError):
            if text.isdecimal() and least <= int(text) <= (most or int(text)):
                return int(text)
        raise argparse.ArgumentTypeError(f"received {text!r}; expected {expected}")

    return read


# Each row is put into its request by itself: more take minutes, and no server takes such requests.
_rows = _whole_from(1, 1 << 20)
whole = _whole_from(1)
natural = _whole_from(0)


def duration(text: str) -> float:
    """Read a duration, in seconds, from a command line."""
    seconds = seconds_of(text)
    if not math.isfinite(seconds):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a duration above 0 such as 30, 30s, 1m30s or 1h")
    return seconds


def whole_duration(text: str) -> int:
    """Read a duration of whole seconds from a command line."""
    seconds = duration(text)
    if seconds != int(seconds):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected whole seconds, such as 30, 30s or 1m30s")
    return int(seconds)
