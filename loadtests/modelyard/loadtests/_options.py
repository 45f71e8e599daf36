"""Options of a run: one definition for ``modelyard loadtest`` and for Locust's own command line."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field

from modelyard.errors import ConfigurationError
from modelyard.loadtests._limits import Limits

DEFAULT_GRPC = "grpc://localhost:8500"
DEFAULT_REST = "http://localhost:8501"


@dataclass(frozen=True, kw_only=True)
class LoadTestOptions:
    """What to send where, and what to expect.

    Attributes:
        grpc_url: Where gRPC users connect; empty for no such users.
        rest_url: Where REST users connect; empty for no such users.
        model: Name of the model: a Fashion-MNIST classifier with the
            signatures ``serving_default`` and ``image_bytes``.
        rows: Images per request.
        rate: Requests per second of each user.
        timeout_s: Deadline of a request, in seconds.
        limits: What the run must keep.
    """

    grpc_url: str = DEFAULT_GRPC
    rest_url: str = DEFAULT_REST
    model: str = "fashion"
    rows: int = 1
    rate: float = 20.0
    timeout_s: float = 10.0
    limits: Limits = field(default_factory=Limits)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options to a parser, ours or Locust's.

    Args:
        parser: Where to add them.
    """
    group = parser.add_argument_group("modelyard", "what to send, and the limits that a run must keep")
    group.add_argument(
        "--host-grpc", metavar="URL", help=f"gRPC server, such as {DEFAULT_GRPC} or localhost:8500; empty for none"
    )
    group.add_argument(
        "--host-rest", metavar="URL", help=f"REST server, such as {DEFAULT_REST} or localhost:8501; empty for none"
    )
    group.add_argument("--model", default="fashion", help="name of the model (default fashion)")
    group.add_argument("--rows", type=_whole, default=1, help="images per request (default 1)")
    group.add_argument("--rate", type=_positive, default=20.0, help="requests per second of each user (default 20)")
    group.add_argument("--timeout-s", type=_positive, default=10.0, help="deadline of a request (default 10)")
    group.add_argument(
        "--max-error-rate", type=_share, default=0.0, help="share of requests that may fail, 0 to 1 (default 0)"
    )
    group.add_argument("--max-p95-ms", type=_positive, help="limit of the 95th percentile of the latency")
    group.add_argument("--max-p99-ms", type=_positive, help="limit of the 99th percentile of the latency")
    group.add_argument(
        "--min-accuracy", type=_share, default=0.8, help="share of images to classify right, 0 to 1 (default 0.8)"
    )
    group.add_argument(
        "--min-requests", type=_whole, default=1, help="requests of each kind to be answered (default 1)"
    )


def options_from(args: argparse.Namespace) -> LoadTestOptions:
    """Reads the options back.

    Where neither host is given, both are TensorFlow Serving's on this machine;
    where one is given, there are users for that one only.

    Args:
        args: Parsed arguments.

    Raises:
        ConfigurationError: Both hosts are empty.
    """
    neither = args.host_grpc is None and args.host_rest is None
    grpc_url = DEFAULT_GRPC if neither else _url(args.host_grpc, "grpc")
    rest_url = DEFAULT_REST if neither else _url(args.host_rest, "http")
    if not grpc_url and not rest_url:
        raise ConfigurationError("Both --host-grpc and --host-rest are empty; expected at least one server to load.")
    return LoadTestOptions(
        grpc_url=grpc_url,
        rest_url=rest_url,
        model=args.model,
        rows=args.rows,
        rate=args.rate,
        timeout_s=args.timeout_s,
        limits=Limits(
            max_error_rate=args.max_error_rate,
            max_p95_ms=args.max_p95_ms,
            max_p99_ms=args.max_p99_ms,
            min_accuracy=args.min_accuracy,
            min_requests=args.min_requests,
        ),
    )


def _url(host: str | None, scheme: str) -> str:
    if not host:
        return ""
    return host if "://" in host else f"{scheme}://{host}"


def _positive(text: str) -> float:
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a number above 0")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a share from 0 to 1")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a number")
    return value


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a whole number, 1 or more")
    return int(text)
