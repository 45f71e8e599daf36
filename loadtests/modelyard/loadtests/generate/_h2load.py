"""The second generator: h2load (Debian package nghttp2-client), for rates beyond Python's reach.

It sends one request again and again and looks at HTTP statuses only. Answers are checked all the same: the request is
answered and checked once before the run, and h2load's count of bytes tells whether all others were as long.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from modelyard.errors import ConfigurationError, LoadTestError, MissingDependencyError
from modelyard.loadtests.generate._outcomes import HTTP_REFUSALS, Outcome
from modelyard.loadtests.generate._record import Log
from modelyard.loadtests.generate._sender import Endpoint
from modelyard.loadtests.options import TOKEN
from modelyard.loadtests.traffic import Request

_DATA = re.compile(r"\((\d+)\) data")
_GRACE_S = 30.0
_GRPC_PREFIX = 5


@dataclass(frozen=True, kw_only=True)
class H2loadOptions:
    """How to run h2load."""

    #: Requests per second; None for as many as the server takes (closed loop).
    rate: float | None = None
    #: Length of the run; h2load takes whole seconds.
    seconds: int = 10
    #: Time before it, in whole seconds.
    warm_up_s: int = 1
    #: Connections.
    clients: int = 8
    #: Requests at the same time on each; HTTP/1.1 has one.
    in_flight: int = 8


def find_h2load() -> str:
    """Path of h2load."""
    found = shutil.which("h2load")
    if found is None:
        error = MissingDependencyError(package="h2load", extra="loadtests", purpose="This generator")
        error.message = "h2load is not installed. On Debian and Ubuntu: apt-get install nghttp2-client"
        error.args = (error.message,)
        raise error
    return found


def run_h2load(endpoint: Endpoint, request: Request, options: H2loadOptions, *, answer_bytes: int, matches: int) -> Log:
    """Run h2load with a request that was answered rightly, by so many bytes, of which so many rows agreed.

    Latency counts from the moment at which h2load sent a request, not from the one at which it was due.
    """
    if endpoint.headers:
        raise ConfigurationError(
            f"h2load takes header fields as arguments, which everybody on the machine can read, and {TOKEN} is set; "
            "use modelyard loadtest run."
        )
    program = find_h2load()
    with tempfile.TemporaryDirectory(prefix="modelyard-h2load-") as name:
        body, log = Path(name) / "body", Path(name) / "log"
        body.write_bytes(_framed(request))
        command = [
            program,
            *arguments(request, options),
            f"--data={body}",
            f"--log-file={log}",
            _url(endpoint, request),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False,
                timeout=options.seconds + options.warm_up_s + _GRACE_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            raise LoadTestError(f"h2load did not end within {exc.timeout:g} s.") from exc
        if done.returncode or not log.is_file():
            raise LoadTestError(f"h2load failed with {done.returncode}: {(done.stderr or done.stdout)[-500:]}")
        found = _read(log, request, options, matches)
    return _short_answers(found, done.stdout, answer_bytes + _GRPC_PREFIX * (request.api.startswith("grpc")))


def arguments(request: Request, options: H2loadOptions) -> list[str]:
    """The command line, without files and URL."""
    grpc = request.api.startswith("grpc")
    headers = [("content-type", "application/grpc"), ("te", "trailers")] if grpc else list(request.headers)
    found = [
        f"--clients={options.clients}", "--threads=1", f"--duration={options.seconds}",
        f"--warm-up-time={options.warm_up_s}", f"--max-concurrent-streams={options.in_flight if grpc else 1}",
        *(f"--header={name}: {value}" for name, value in headers),
    ]  # fmt: skip
    if not grpc:
        found.append("--h1")
    if options.rate is not None:
        found.append(f"--rps={options.rate / options.clients:g}")
    return found


def _url(endpoint: Endpoint, request: Request) -> str:
    return f"{'https' if endpoint.tls else 'http'}://{endpoint.authority}{endpoint.prefix}{request.path}"


def _framed(request: Request) -> bytes:
    body = request.body or b""
    return b"\x00" + len(body).to_bytes(4, "big") + body if request.api.startswith("grpc") else body


def _read(path: Path, request: Request, options: H2loadOptions, matches: int) -> Log:
    """The log: begin in microseconds, HTTP status (-1 for none), and duration in microseconds."""
    rows = np.loadtxt(path, dtype=np.int64, ndmin=2)
    if not len(rows):
        raise LoadTestError("h2load sent nothing.")
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    sent = (rows[:, 0] - rows[0, 0]) / 1e6
    status = rows[:, 1]
    outcome = np.full(len(rows), int(Outcome.FAILED), dtype=np.uint8)
    outcome[status == 200] = Outcome.OK
    outcome[np.isin(status, HTTP_REFUSALS)] = Outcome.REFUSED
    outcome[status < 0] = Outcome.UNREACHABLE
    ok = outcome == Outcome.OK
    reasons = {
        f"{request.kind}: HTTP status {code}": int((status == code).sum()) for code in np.unique(status[~ok]).tolist()
    }
    return Log(
        kinds=(request.kind,),
        kind=np.zeros(len(rows), dtype=np.uint16),
        intended=sent,
        sent=sent,
        done=sent + rows[:, 2] / 1e6,
        outcome=outcome,
        rows=np.where(ok, request.known_rows, 0),
        matches=np.where(ok, matches, 0),
        seconds=options.seconds,
        reasons=reasons,
    )


def _short_answers(log: Log, text: str, expected: int) -> Log:
    """Errors of gRPC have HTTP status 200, and no bytes: the count of bytes tells how many there were."""
    match = _DATA.search(text)
    if match is None:
        raise LoadTestError(f"h2load did not say how much it received: {text[-500:]}")
    right = int(log.ok.sum())
    missing = right - min(round(int(match[1]) / expected), right)
    if not missing:
        return log
    # Which ones they were is not known: the fastest, as a refusal is faster than a prediction.
    outcome = log.outcome.copy()
    fastest = np.argsort(np.where(log.ok, log.latency_ms, np.inf))[:missing]
    outcome[fastest] = Outcome.FAILED
    rows, matches = log.rows.copy(), log.matches.copy()
    rows[fastest] = matches[fastest] = 0
    reasons = {**log.reasons, f"{log.kinds[0]}: answers shorter than the right one (gRPC errors)": missing}
    return dataclasses.replace(log, outcome=outcome, rows=rows, matches=matches, reasons=reasons)
