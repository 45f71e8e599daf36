"""How many requests each model version answered, and where their time went: what the statistics API reports.

The parts of a request are Triton's: waiting for a thread (queue), decoding (compute_input), the model (compute_infer)
and encoding (compute_output); and so are executions, of which one may answer several requests (Triton's "Statistics
Extension" of the Open Inference Protocol).
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from modelyard.serving.metrics._parts import Parts


@dataclass(slots=True)
class Duration:
    """A number of events and their time in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns


@dataclass(kw_only=True, slots=True)
class ExecutionStatistics:
    """What was measured of the executions of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(kw_only=True, slots=True)
class VersionStatistics:
    """What was measured for one version. The parts count successful requests only."""

    name: str
    version: int
    #: When the last request ended, in milliseconds since 1970; 0 for never.
    last_inference_ms: int = 0
    inference_count: int = 0
    #: Batches that were computed: fewer than successful requests, where requests share them. A request of Classify,
    #: Regress or MultiInference is one, too.
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: dict[int, ExecutionStatistics] = field(default_factory=dict)


#: Requests of any size are executions of as many sizes: so many are kept.
_MAX_SIZES = 256


class RequestTimes(NamedTuple):
    """Where the nanoseconds of one request went; the parts of one that failed do not count."""

    ok: bool
    total: int
    queue: int = 0
    input: int = 0
    infer: int = 0
    output: int = 0
    rows: int = 1


class Timing:
    """The times of one request, taken as it is decoded and computed."""

    __slots__ = ("_arrived", "_computed", "_decoded", "_started", "rows")

    def __init__(self, arrived_ns: int) -> None:
        self._arrived = arrived_ns
        self._started = self._decoded = self._computed = time.perf_counter_ns()
        #: Rows (examples) in the request.
        self.rows = 1

    def decoded(self, rows: int) -> None:
        """The inputs are arrays now, and fit."""
        self.rows = rows
        self._decoded = self._computed = time.perf_counter_ns()

    def computed(self) -> None:
        """The model is done."""
        self._computed = time.perf_counter_ns()

    def times(self, *, ok: bool) -> RequestTimes:
        """Where the time went until now."""
        ended = time.perf_counter_ns()
        return RequestTimes(
            ok,
            ended - self._arrived,
            self._started - self._arrived,
            self._decoded - self._started,
            self._computed - self._decoded,
            ended - self._computed,
            self.rows,
        )


class Execution(NamedTuple):
    """One batch that was computed."""

    rows: int
    #: Nanoseconds for decoding and checking.
    input: int
    infer: int
    output: int


class ModelStatistics:
    """Counts requests by model version; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[tuple[str, int], VersionStatistics] = {}
        #: Requests that forgotten versions have answered.
        self._forgotten = 0
        self._before_reading: list[Callable[[], None]] = []

    @contextmanager
    def measure(
        self, name: str, version: int, *, arrived_ns: int, executed: bool = True, parts: Parts | None = None
    ) -> Iterator[Timing]:
        """Measures one request, and records it whatever becomes of it."""
        timing = Timing(arrived_ns)
        ok = False
        try:
            yield timing
            ok = True
        finally:
            times = timing.times(ok=ok)
            executions = [Execution(times.rows, times.input, times.infer, times.output)] if ok and executed else []
            self.record(name, version, [times], executions, parts)
            if parts is not None and executions:
                parts.batch(rows=times.rows, padding=0, requests=1, infer_ns=times.infer)

    def record(
        self,
        name: str,
        version: int,
        requests: Sequence[RequestTimes],
        executions: Sequence[Execution] = (),
        parts: Parts | None = None,
    ) -> None:
        """Records requests that were computed together, and the batches that computed them."""
        for times in requests:
            if parts is not None and times.ok:
                parts.request(queue_ns=times.queue, input_ns=times.input, output_ns=times.output)
        with self._lock:
            row = self._row(name, version)
            row.last_inference_ms = time.time_ns() // 1_000_000
            for execution in executions:
                _count_execution(row, execution)
            good = [times for times in requests if times.ok]
            for times in requests:
                if not times.ok:
                    row.fail.add(times.total)
            if not good:
                return
            count = len(good)
            _, total, queue, read, infer, write, rows = map(sum, zip(*good, strict=True))
            row.inference_count += rows
            row.success.add(total, count)
            row.queue.add(queue, count)
            row.compute_input.add(read, count)
            row.compute_infer.add(infer, count)
            row.compute_output.add(write, count)

    def before_reading(self, fetch: Callable[[], None]) -> None:
        """Calls a function, without the lock, before the numbers are read: it adds what is counted elsewhere."""
        self._before_reading.append(fetch)

    def add_counted(self, found: Mapping[str, Any]) -> None:
        """Adds requests and executions that the native core has counted; see ``take_statistics`` in its stub."""
        with self._lock:
            row = self._row(found["model"], found["version"])
            # Not the later of both: the clock may have been set back.
            row.last_inference_ms = found["last_ms"] or row.last_inference_ms
            row.inference_count += found["rows"]
            count = found["succeeded"]
            row.success.add(found["total_ns"], count)
            row.queue.add(found["queue_ns"], count)
            row.compute_input.add(found["input_ns"], count)
            row.compute_infer.add(found["infer_ns"], count)
            row.compute_output.add(found["output_ns"], count)
            for rows, (times, *ns) in found["executions"].items():
                _count_execution(row, Execution(rows, *ns), times)

    def forget(self, name: str, version: int) -> None:
        """Drops what was measured for a version that is unloaded: it begins with zeros where it comes back."""
        self._fetch()
        with self._lock:
            row = self._versions.pop((name, version), None)
            self._forgotten += 0 if row is None else row.success.count

    @property
    def answered(self) -> int:
        """Requests that were answered by any version, those that were unloaded included."""
        self._fetch()
        with self._lock:
            return self._forgotten + sum(row.success.count for row in self._versions.values())

    def _fetch(self) -> None:
        for fetch in self._before_reading:
            fetch()

    def of(self, name: str, version: int) -> VersionStatistics:
        """A copy of what was measured for a version; zeros for one that was never asked."""
        self._fetch()
        with self._lock:
            row = self._versions.get((name, version))
            if row is None:
                return VersionStatistics(name=name, version=version)
            found = copy.deepcopy(row)
        found.batches = dict(sorted(found.batches.items()))
        return found

    def _row(self, name: str, version: int) -> VersionStatistics:
        row = self._versions.get((name, version))
        if row is None:
            row = self._versions[name, version] = VersionStatistics(name=name, version=version)
        return row


def _count_execution(row: VersionStatistics, execution: Execution, times: int = 1) -> None:
    row.execution_count += times
    found = row.batches.get(execution.rows)
    if found is None:
        if len(row.batches) >= _MAX_SIZES:
            return
        found = row.batches[execution.rows] = ExecutionStatistics()
    found.compute_input.add(execution.input, times)
    found.compute_infer.add(execution.infer, times)
    found.compute_output.add(execution.output, times)
