"""How many requests each model version answered, and where their time went: what the statistics API reports.

The parts of a request are Triton's: waiting for a thread (queue), decoding
(compute_input), the model (compute_infer) and encoding (compute_output); and so
are executions, of which one may answer several requests (Triton's "Statistics
Extension" of the Open Inference Protocol).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from modelyard.serving.metrics._parts import Parts


@dataclass
class Duration:
    """A number of events and their time in all.

    Attributes:
        count: How many.
        ns: Nanoseconds.
    """

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Adds events.

        Args:
            ns: How long they took, in nanoseconds in all.
            count: How many.
        """
        self.count += count
        self.ns += ns


@dataclass(kw_only=True)
class ExecutionStatistics:
    """What was measured of the executions of one batch size.

    Attributes:
        compute_input: Decoding and checking the inputs of a batch.
        compute_infer: The model.
        compute_output: Encoding the answers.
    """

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(kw_only=True)
class VersionStatistics:
    """What was measured for one version. The parts count successful requests only.

    Attributes:
        name: The model.
        version: Its version.
        last_inference_ms: When the last request ended, in milliseconds since 1970; 0 for never.
        inference_count: Rows (examples) in successful requests.
        execution_count: Batches that were computed: fewer than successful requests, where requests share them. A
            request of Classify, Regress or MultiInference is one, too.
        success: Successful requests, from arrival to the encoded answer.
        fail: Requests that the version refused or failed on.
        queue: Waiting for a thread.
        compute_input: Decoding and checking the inputs.
        compute_infer: The model.
        compute_output: Encoding the answer.
        batches: The executions by their rows (examples), of the first so many sizes that there were.
    """

    name: str
    version: int
    last_inference_ms: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    batches: dict[int, ExecutionStatistics] = field(default_factory=dict)


_T = TypeVar("_T", ExecutionStatistics, VersionStatistics)
#: Requests of any size are executions of as many sizes: strangers may not make the server remember them all.
_MAX_SIZES = 256


class RequestTimes(NamedTuple):
    """Where the nanoseconds of one request went; the parts of one that failed do not count.

    Attributes:
        ok: Whether it was answered.
        total: In all.
        queue: Waiting for a thread.
        input: Decoding and checking.
        infer: The model.
        output: Encoding.
        rows: Rows (examples) in the request.
    """

    ok: bool
    total: int
    queue: int = 0
    input: int = 0
    infer: int = 0
    output: int = 0
    rows: int = 1


class Timing:
    """The clock of one request; whoever computes it says where it stands.

    Args:
        arrived_ns: ``time.perf_counter_ns()`` at its arrival.
    """

    __slots__ = ("_arrived", "_computed", "_decoded", "_started", "rows")

    def __init__(self, arrived_ns: int) -> None:
        self._arrived = arrived_ns
        self._started = self._decoded = self._computed = time.perf_counter_ns()
        #: Rows (examples) in the request.
        self.rows = 1

    def decoded(self, rows: int) -> None:
        """The inputs are arrays now, and fit.

        Args:
            rows: Rows (examples) in the request.
        """
        self.rows = rows
        self._decoded = self._computed = time.perf_counter_ns()

    def computed(self) -> None:
        """The model is done."""
        self._computed = time.perf_counter_ns()

    def parts(self, ended_ns: int) -> tuple[int, int, int, int, int]:
        """Nanoseconds in all, in the queue, decoding, computing and encoding.

        Args:
            ended_ns: ``time.perf_counter_ns()`` at the end.
        """
        return (
            ended_ns - self._arrived,
            self._started - self._arrived,
            self._decoded - self._started,
            self._computed - self._decoded,
            ended_ns - self._computed,
        )


class Execution(NamedTuple):
    """One batch that was computed.

    Attributes:
        rows: Its rows (examples).
        input: Nanoseconds for decoding and checking.
        infer: For the model.
        output: For encoding.
    """

    rows: int
    input: int
    infer: int
    output: int


class ModelStatistics:
    """Counts requests by model version; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[tuple[str, int], VersionStatistics] = {}
        self._before_reading: list[Callable[[], None]] = []

    @contextmanager
    def measure(
        self, name: str, version: int, *, arrived_ns: int, executed: bool = True, parts: Parts | None = None
    ) -> Iterator[Timing]:
        """Measures one request, and records it whatever becomes of it.

        Args:
            name: The model.
            version: The version that answers.
            arrived_ns: ``time.perf_counter_ns()`` when the request arrived.
            executed: As for :meth:`record`.
            parts: So, too.

        Yields:
            The request's clock.
        """
        timing = Timing(arrived_ns)
        ok = False
        try:
            yield timing
            ok = True
        finally:
            total, queue, decode, compute, encode = timing.parts(time.perf_counter_ns())
            self.record(
                name,
                version,
                ok=ok,
                total_ns=total,
                queue_ns=queue,
                input_ns=decode,
                infer_ns=compute,
                output_ns=encode,
                rows=timing.rows,
                executed=executed,
                parts=parts,
            )

    def record(
        self,
        name: str,
        version: int,
        *,
        ok: bool,
        total_ns: int,
        queue_ns: int = 0,
        input_ns: int = 0,
        infer_ns: int = 0,
        output_ns: int = 0,
        rows: int = 1,
        executed: bool = True,
        parts: Parts | None = None,
    ) -> None:
        """Records one request.

        Args:
            name: The model.
            version: The version that answered.
            ok: Whether it was answered; the parts of others are not recorded.
            total_ns: Nanoseconds in all.
            queue_ns: Waiting for a thread.
            input_ns: Decoding and checking.
            infer_ns: The model.
            output_ns: Encoding.
            rows: Rows (examples) in the request.
            executed: It was one execution of the model; else those are
                recorded by :meth:`record_execution`.
            parts: Where it is recorded by its signature, too.
        """
        times = RequestTimes(ok, total_ns, queue_ns, input_ns, infer_ns, output_ns, rows)
        execution = Execution(rows, input_ns, infer_ns, output_ns) if ok and executed else None
        self.record_all(name, version, [times], execution, parts)
        if parts is not None and execution is not None:
            parts.batch(rows=rows, padding=0, requests=1, infer_ns=infer_ns)

    def record_execution(self, name: str, version: int, *, rows: int, infer_ns: int) -> None:
        """Records a batch that others than those who record its requests have computed.

        Args:
            name: The model.
            version: The version.
            rows: Its rows (examples), those of padding among them.
            infer_ns: Nanoseconds that the model took.
        """
        with self._lock:
            _count_execution(self._row(name, version), Execution(rows, 0, infer_ns, 0))

    def record_all(
        self,
        name: str,
        version: int,
        requests: Sequence[RequestTimes],
        execution: Execution | None = None,
        parts: Parts | None = None,
    ) -> None:
        """Records requests that were computed together.

        Args:
            name: The model.
            version: The version that answered.
            requests: Their times.
            execution: What computed them; None where that failed, or where
                :meth:`record_execution` records it.
            parts: Where the requests are recorded by their signature, too.
        """
        for times in requests:
            if parts is not None and times.ok:
                parts.request(queue_ns=times.queue, input_ns=times.input, output_ns=times.output)
        with self._lock:
            row = self._row(name, version)
            row.last_inference_ms = time.time_ns() // 1_000_000
            if execution is not None:
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
        """Has somebody who counts by himself add his numbers before they are read.

        Args:
            fetch: Called without the lock.
        """
        self._before_reading.append(fetch)

    def add_counted(self, found: Mapping[str, Any]) -> None:
        """Adds requests and executions that were counted elsewhere.

        Args:
            found: ``model``, ``version``, ``succeeded`` and ``rows`` (counts), ``last_ms``, nanoseconds ``total_ns``,
                ``queue_ns``, ``input_ns``, ``infer_ns`` and ``output_ns``, and ``executions``: by their rows how many,
                and their nanoseconds for input, model and output.
        """
        with self._lock:
            row = self._row(found["model"], found["version"])
            row.last_inference_ms = max(row.last_inference_ms, found["last_ms"])
            row.inference_count += found["rows"]
            count = found["succeeded"]
            row.success.add(found["total_ns"], count)
            row.queue.add(found["queue_ns"], count)
            row.compute_input.add(found["input_ns"], count)
            row.compute_infer.add(found["infer_ns"], count)
            row.compute_output.add(found["output_ns"], count)
            for rows, (times, *ns) in found["executions"].items():
                _count_execution(row, Execution(rows, *ns), times)

    def of(self, name: str, version: int) -> VersionStatistics:
        """A copy of what was measured for a version; zeros for one that was never asked.

        Args:
            name: The model.
            version: The version.
        """
        for fetch in self._before_reading:
            fetch()
        with self._lock:
            row = self._versions.get((name, version))
            if row is None:
                return VersionStatistics(name=name, version=version)
            found = _copy(row)
            found.batches = {rows: _copy(row.batches[rows]) for rows in sorted(row.batches)}
            return found

    def _row(self, name: str, version: int) -> VersionStatistics:
        row = self._versions.get((name, version))
        if row is None:
            row = self._versions[name, version] = VersionStatistics(name=name, version=version)
        return row


def _copy(statistics: _T) -> _T:
    """A copy with durations of its own."""
    parts = {part.name: getattr(statistics, part.name) for part in fields(statistics)}
    own: dict[str, Any] = {name: replace(value) for name, value in parts.items() if isinstance(value, Duration)}
    return replace(statistics, **own)


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
