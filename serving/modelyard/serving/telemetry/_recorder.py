"""Records of requests that Python's transports answer; the native core makes its own."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

from modelyard.serving.requests import Facts, trace_parent_of
from modelyard.serving.telemetry._records import RequestRecord

#: What is kept of a path, and of a trace context.
_MAX_PATH, _MAX_TRACEPARENT = 256, 64
#: Statuses where the caller has gone before there was an answer: nginx's in REST, gRPC's own.
_GONE = {"rest": 499, "grpc": 1}
#: Records that wait: some seconds' worth; more are lost, and counted.
MAX_RECORDS = 32_768


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which requests are recorded."""

    #: Share of them for the access log, from 0 to 1.
    share: float = 0.0
    #: All that take at least so many seconds; 0 for none.
    slow_s: float = 0.0
    traced: bool = False
    parents: bool = True


@dataclass(kw_only=True, slots=True, eq=False)
class Recording:
    """A request as it is answered."""

    #: ``grpc`` or ``rest``.
    api: str
    method: str
    path: str
    request_id: str
    traceparent: str
    client: str
    logged: bool
    traced: bool
    time_ns: int = field(default_factory=time.time_ns)
    arrived_ns: int = field(default_factory=time.perf_counter_ns)
    received_ns: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    #: None where its caller had gone.
    status: int | None = None
    facts: Facts = field(default_factory=Facts)

    def received(self, size: int) -> None:
        """The body is whole."""
        self.bytes_in, self.received_ns = size, time.perf_counter_ns()

    def record(self) -> RequestRecord:
        now, facts, arrived = time.perf_counter_ns(), self.facts, self.arrived_ns
        receive = (self.received_ns or now) - arrived
        queue = stack = compute = batch = write = 0
        if facts.ended_ns:
            receive, write = facts.decoded_ns - arrived, now - facts.ended_ns
            queue, stack, compute, batch = facts.durations()
        return RequestRecord(
            time_ns=self.time_ns, api=self.api, method=self.method, path=self.path,
            status=_GONE[self.api] if self.status is None else self.status, request_id=self.request_id,
            traceparent=self.traceparent, client=self.client, principal=facts.principal, model=facts.model,
            version=facts.version, signature=facts.signature, backend=facts.backend, rows=facts.rows,
            bytes_in=self.bytes_in, bytes_out=self.bytes_out, total_ns=now - arrived, receive_ns=receive,
            queue_ns=queue, stack_ns=stack, compute_ns=compute, batch_ns=batch, write_ns=write, batch=facts.batch,
            batch_rows=facts.batch_rows, batch_requests=facts.batch_requests, logged=self.logged, traced=self.traced,
        )  # fmt: skip


class Recorder:
    """Records requests until the records are fetched."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._lock = threading.Lock()
        self._records: list[RequestRecord] = []
        self._lost = 0

    def begin(
        self, *, api: str, method: str, path: str, request_id: str, traceparent: str, client: str
    ) -> Recording | None:
        """Begins a record of a request; None where it is not to be recorded."""
        wanted = self.wanted
        logged = wanted.share > 0 and random.random() < wanted.share
        traced = wanted.traced
        if traced and wanted.parents and (parent := trace_parent_of(traceparent)) is not None:
            traced = parent.recorded
        if not (logged or traced or wanted.slow_s):
            return None
        return Recording(
            api=api, method=method, path=path[:_MAX_PATH], request_id=request_id,
            traceparent=traceparent[:_MAX_TRACEPARENT], client=client, logged=logged, traced=traced,
        )  # fmt: skip

    def end(self, recording: Recording) -> None:
        """Keeps the record of a request that is over."""
        record = recording.record()
        slow = self.wanted.slow_s and record.total_ns >= self.wanted.slow_s * 1e9
        if not (record.logged or record.traced or slow):
            return
        with self._lock:
            if len(self._records) < MAX_RECORDS:
                self._records.append(record)
            else:
                self._lost += 1

    def take(self) -> tuple[list[RequestRecord], int]:
        """Records since the last call, and how many were lost."""
        with self._lock:
            records, self._records = self._records, []
            lost, self._lost = self._lost, 0
        return records, lost
