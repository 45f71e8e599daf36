"""Ten minutes at 70 % of the server's capacity, over all APIs, while versions and configurations change.

TORTURE_SOAK_SECONDS=3600 makes an hour of it. The last minute's memory is compared with the second's, means of a look
every second. Memory at rest, when all connections are closed, is told as well: before the long run and after it.

All connections that the load may need are opened in the beginning, and the server keeps them: a REST connection costs
about 35 kB, and with each small stall the load would open some more, which is no growth of the server's.

Server and load share the processors of a machine that has other guests, and that changes its pace within seconds. So
what changes cost is measured in pairs, a quiet run and one with changes in turn. Of the long run it is told what its
p99 was, that of its median minute, and how late the load itself was.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from benchmarks.torture.cases import Result, Scratch, case, expect, memory_mb
from modelyard.artifact import RowsCheck, collect
from modelyard.clients import ModelConfig, connect
from modelyard.loadtests.compare import CapacityOptions, find_capacity
from modelyard.loadtests.generate import Log, Mark, Run, run_precisely, session
from modelyard.loadtests.options import Limits, LoadTestOptions, constant
from modelyard.loadtests.traffic import APIS, find_traffic
from tests.support.admin import config_text, model_text
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

SHARE = 0.7
#: Capacity is what `modelyard loadtest capacity` means by it: the highest rate at which these are kept.
LIMITS = Limits(max_p99_ms=20)
SWAP_S, RELOAD_S = 5.0, 20.0
#: Length of a run in the search for the capacity.
PROBE_S = 20.0
#: How often a quiet run is compared with one with changes, and how long each is.
PAIRS, PAIR_S = 4, 30.0
#: Enough for each API to open all of its connections, and for how long.
ALL_IN_FLIGHT, OPENING_S = 2048, 2.0
#: Until what connections and requests had is freed, and returned to the operating system.
REST_S = 12.0
#: Of the last minute, in the second's; and with changes, in the quiet run's.
MAX_MEMORY, MAX_P99 = 1.05, 1.5


#: Says what to do, and returns when it is done.
Order = Callable[[str], None]


@dataclass(kw_only=True)
class _Soak:
    """What runs beside the load."""

    server: RunningServer
    order: Order
    swaps: int = 0
    reloads: int = 0
    #: When, by the monotonic clock, and megabytes.
    memory: list[tuple[float, float]] = field(default_factory=list)

    async def swap(self) -> None:
        """Has a version published, and old ones removed, again and again."""
        while True:
            await asyncio.sleep(SWAP_S)
            await asyncio.to_thread(self.order, "publish")
            self.swaps += 1

    async def reload(self) -> None:
        """Has the configuration sent, with another version policy each time."""
        while True:
            await asyncio.sleep(RELOAD_S)
            self.reloads += 1
            await asyncio.to_thread(self.order, f"reload {1 + self.reloads % 2}")

    async def beside(self, mark: Mark) -> None:
        """Does both."""
        await asyncio.gather(self.swap(), self.reload())

    async def watch(self, mark: Mark) -> None:
        """Looks at the memory of the server, which has no other processes, every second."""
        self.memory.clear()
        server = psutil.Process(self.server.process.pid)
        expect(not server.children(), "the server has processes, which are not looked at")
        while True:
            # To look for processes takes milliseconds, in which the load would send nothing.
            self.memory.append((time.monotonic(), server.memory_info().rss / 1e6))
            await asyncio.sleep(1)

    def growth(self, minute_s: float) -> float:
        """The last minute's memory in the second's."""
        began, ended = self.memory[0][0], self.memory[-1][0]
        second = [mb for at, mb in self.memory if minute_s <= at - began < 2 * minute_s]
        last = [mb for at, mb in self.memory if at > ended - minute_s]
        return statistics.fmean(last) / statistics.fmean(second)

    async def memory_at_rest_mb(self) -> float:
        """The server's memory when nothing was asked for a while."""
        await asyncio.sleep(REST_S)
        return memory_mb(self.server.process.pid)


@contextmanager
def _operator(model: Path, address: str) -> Iterator[Order]:
    """Publishes versions and reloads when it is told to, in a process of its own: here it would hold up the load."""
    command = [sys.executable, "-m", "benchmarks.torture.soak", str(model), address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise OSError("the operator has no pipes")
        requests, answers = process.stdin, process.stdout
        turn = threading.Lock()

        def order(text: str) -> None:
            with turn:
                print(text, file=requests, flush=True)
                expect(answers.readline() == f"{text}\n", "the operator has ended")

        yield order


def _median_minute_p99_ms(log: Log) -> float:
    """The p99 latency of the median minute, in milliseconds."""
    latency, minutes = log.latency_ms[log.ok], (log.intended[log.ok] // 60).astype(int)
    return statistics.median(float(np.percentile(latency[minutes == each], 99)) for each in np.unique(minutes))


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What came of it: the load's rate, the long run, and how much memory grew at rest."""

    rate: float
    #: The p99 of a quiet run, and of one with changes right after it, in milliseconds.
    pairs: list[tuple[float, float]]
    long: Run
    growth_at_rest: float


async def _run(soak: _Soak, options: LoadTestOptions, seconds: float) -> _Seen:
    traffic = find_traffic(options)
    requests = traffic.requests(options, traffic.kinds(options, tuple(APIS)), rows=1)
    sides = [soak.beside]
    async with session(options, requests) as opened:
        await opened.generator.closed(requests, in_flight=ALL_IN_FLIGHT, seconds=OPENING_S)
        found = await find_capacity(opened, requests, CapacityOptions(limits=LIMITS, probe_s=PROBE_S), tell=print)
        expect(found.confirmations[0].kept, found.verdict())
        rate = SHARE * found.rate
        pairs = []
        for _ in range(PAIRS):
            quiet = await opened.open(constant(rate, PAIR_S), requests)
            changing = await opened.open(constant(rate, PAIR_S), requests, sides=sides)
            pairs.append((quiet.log.measured().p99_ms, changing.log.measured().p99_ms))
    before = await soak.memory_at_rest_mb()
    async with session(options, requests) as opened:
        await opened.generator.closed(requests, in_flight=ALL_IN_FLIGHT, seconds=OPENING_S)
        long = await opened.open(constant(rate, seconds), requests, sides=[*sides, soak.watch])
    return _Seen(rate=rate, pairs=pairs, long=long, growth_at_rest=await soak.memory_at_rest_mb() / before)


@case("soak", "70 % of capacity over all APIs, versions and configurations changing", own=True, short=False)
def soak(scratch: Scratch) -> Result:
    """A new version every 5 s, a reload every 20 s: none failed, memory and p99 as in the beginning."""
    seconds = float(os.environ.get("TORTURE_SOAK_SECONDS", 600))
    model, config = scratch.folder / "m", scratch.folder / "config"
    _publish(model)
    config.write_text(config_text(model_text("m", model)))
    flags = [f"--transport={scratch.transport}", f"--model_config_file={config}", "--idle_timeout_seconds=0"]
    with (
        serve(None, model="m", log_dir=scratch.folder, flags=flags) as server,
        _operator(model, server.grpc_address) as order,
    ):
        beside = _Soak(server=server, order=order)
        options = LoadTestOptions(
            grpc_url=f"grpc://{server.grpc_address}",
            rest_url=server.rest_url,
            model="m",
            repository=model,
            timeout_s=10,
        )
        seen = run_precisely(_run(beside, options, seconds))
        _, traceback, stack = server.log_text().partition("Traceback")
    total = seen.long.log.measured()
    expect(total.failures == 0, f"{total.failures} of {total.requests} failed: {seen.long.log.by_kind()}")
    quiet, changing = (statistics.median(each) for each in zip(*seen.pairs, strict=True))
    ratio = statistics.median(changing / quiet for quiet, changing in seen.pairs)
    late = float(np.percentile(seen.long.log.late_ms, 99))
    growth = beside.growth(min(60.0, seconds / 4))
    memory = f"memory grew by {growth:.3f}, at rest by {seen.growth_at_rest:.3f}"
    expect(growth <= MAX_MEMORY, memory)
    expect(
        ratio <= MAX_P99,
        f"p99 was {quiet:.1f} ms and became {changing:.1f} ms, {ratio:.2f} times as much in the median pair, {memory}",
    )
    expect(not traceback, f"{memory}; {traceback}{stack[:2000]}")
    return Result(
        inputs=total.requests,
        text=(f"{seconds:,.0f} s at {seen.rate:,.0f} requests/s, {beside.swaps} versions, {beside.reloads} reloads"),
        figures={
            "quiet_p99_ms": quiet,
            "p99_ms_with_changes": changing,
            "ratio_of_the_median_pair": ratio,
            "long_run's_p99_ms": total.p99_ms,
            "its_median_minute's": _median_minute_p99_ms(seen.long.log),
            "load_late_by_p99_ms": late,
            "memory_ratio": growth,
            "memory_ratio_at_rest": seen.growth_at_rest,
        },
    )


def main() -> None:
    """Does what each line of standard input says."""
    model, address = Path(sys.argv[1]), sys.argv[2]
    # Operators and exports have machines of their own: here they would take the processor of server and load.
    os.nice(19)
    with connect(f"grpc://{address}") as client:
        for line in sys.stdin:
            match line.split():
                case ["publish"]:
                    _publish(model)
                    collect(model, keep=2)
                case ["reload", latest]:
                    client.reload_config([ModelConfig(name="m", base_path=str(model), latest=int(latest))])
            print(line, end="", flush=True)


def _publish(model: Path) -> None:
    """Publishes a version as an export does, which knows that requests may share batches: no server tries it."""
    publish_affine(model, slope=2.0, intercept=1.0, rows=RowsCheck(verdict="independent"))


if __name__ == "__main__":
    main()
