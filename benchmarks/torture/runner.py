"""Runs cases, and looks at the server after each."""

from __future__ import annotations

import contextlib
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import psutil

from benchmarks.torture.cases import Case, Fault, Result, Scratch, Target, memory_mb, serving
from benchmarks.torture.honest import Calls, Honest, honest

#: An honest client's p99 beside an attack, in those of a quiet server.
MAX_RATIO = 5.0
#: A p99 below this is nobody's harm, whatever the ratio: schedulers alone take that on a busy machine.
HARMLESS_MS = 25.0
#: No call of an honest client takes longer.
MAX_STALL_MS = 1000.0
#: What may stay of an attack: heaps are not given back to the byte.
MAX_GROWTH_MB = 64.0
#: Descriptors that may be more: connections of the honest client come and go.
MAX_DESCRIPTORS = 4
QUIET_S, AFTER_S = 2.0, 0.3
#: How long memory and descriptors have to come back.
SETTLE_S = 10.0
#: How long an honest call is waited for that an attack holds up: longer than its own deadline.
WAIT_S = 30.0


@dataclass(kw_only=True)
class Outcome:
    """What came of a case."""

    case: Case
    transport: str
    result: Result
    seconds: float
    problems: list[str] = field(default_factory=list)
    quiet: Calls = field(default_factory=Calls)
    beside: Calls = field(default_factory=Calls)
    growth_mb: float = 0.0

    @property
    def ratio(self) -> float:
        """The honest client's p99 beside the case, in those of the quiet server."""
        return self.beside.p99_ms / self.quiet.p99_ms if self.quiet.p99_ms else 0.0


def run_all(cases: list[Case], *, short: bool) -> Iterator[Outcome]:
    """Runs cases, those of one family on one server, and yields what came of each."""
    plan = [(each, transport) for each in cases for transport in each.transports[: 1 if short else None]]
    for (_, transport, own), group in groupby(
        sorted(plan, key=lambda pair: (pair[0].family, pair[1], pair[0].own)),
        key=lambda pair: (pair[0].family, pair[1], pair[0].own),
    ):
        with tempfile.TemporaryDirectory(prefix="torture-") as name, contextlib.ExitStack() as stack:
            folder = Path(name)
            if own:
                for number, (each, _) in enumerate(group):
                    scratch = Scratch(folder=folder / str(number), short=short, transport=transport)
                    scratch.folder.mkdir()
                    yield _timed(each, scratch)
                continue
            server = stack.enter_context(serving(folder, transport=transport))
            client = stack.enter_context(honest(server.grpc_port, server.rest_port))
            for number, (each, _) in enumerate(group):
                own_folder = folder / f"case-{number}"
                own_folder.mkdir()
                target = Target(folder=own_folder, short=short, transport=transport, server=server)
                yield watched(each, target, client, quiet_s=0.1 if short else QUIET_S)


def _timed(each: Case, scratch: Scratch) -> Outcome:
    started = time.monotonic()
    result, problems = Result(inputs=0), []
    try:
        result = each.run(scratch)
    except Fault as exc:
        problems.append(str(exc))
    except Exception:  # Whatever it is, the other cases are run.
        problems.append(traceback.format_exc(limit=-3))
    return Outcome(
        case=each, transport=scratch.transport, result=result, seconds=time.monotonic() - started, problems=problems
    )


def watched(each: Case, target: Target, client: Honest, *, quiet_s: float) -> Outcome:
    """Runs a case beside an honest client, and looks at the server afterwards."""
    process = psutil.Process(target.server.process.pid)
    log_size = target.server.log.stat().st_size
    quiet = client.over(quiet_s)
    memory, descriptors = memory_mb(process.pid), process.num_fds()
    outcome = _timed(each, target)
    # What ends an attack costs something, too.
    time.sleep(0.05 if target.short else AFTER_S)
    # A call that is held up ends, and is known, after the attack that holds it up.
    goes_on = client.next(WAIT_S)
    outcome.quiet, outcome.beside = quiet, client.take()
    problems = outcome.problems
    if not goes_on:
        problems.append(f"{WAIT_S:.0f} s later no honest call had ended")
    if target.server.process.poll() is not None:
        problems.append(f"the server ended with {target.server.process.returncode}: {target.server.log_text()[-500:]}")
        return outcome
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        outcome.growth_mb = memory_mb(process.pid) - memory
        if outcome.growth_mb < MAX_GROWTH_MB and process.num_fds() <= descriptors + MAX_DESCRIPTORS:
            break
        time.sleep(0.1)
    else:
        problems.append(
            f"{SETTLE_S:.0f} s later: {outcome.growth_mb:+.0f} MB, {process.num_fds() - descriptors:+} descriptors"
        )
    problems += _harm(outcome, short=target.short)
    said = target.server.log.read_bytes()[log_size:].decode(errors="replace")
    if (at := said.find("Traceback")) >= 0:
        problems.append(f"in the log: {said[at : at + 2000]}")
    return outcome


def _harm(outcome: Outcome, *, short: bool) -> Iterator[str]:
    """What the honest client had to suffer; tests share their machine, and look for stalls only."""
    beside = outcome.beside
    if beside.failed:
        yield f"{len(beside.failed)} of {len(beside.seconds)} honest calls failed: {beside.failed[0][:300]}"
    if not (short or outcome.case.at_capacity) and outcome.ratio > MAX_RATIO and beside.p99_ms > HARMLESS_MS:
        yield f"the honest client's p99 was {outcome.quiet.p99_ms:.1f} ms and became {beside.p99_ms:.1f} ms"
    # A busy machine makes quiet calls slow, too.
    limit = max(3 * MAX_STALL_MS, 30 * outcome.quiet.worst_ms) if short else MAX_STALL_MS
    if beside.worst_ms > limit:
        yield f"an honest call took {beside.worst_ms:.0f} ms"
