"""Records of requests that Python's transports answer; the native core makes its own."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from modelyard.serving.requests import Facts
from modelyard.serving.telemetry._records import RequestRecord

#: What is kept of a path, and of a trace context.
_MAX_PATH, _MAX_TRACEPARENT = 256, 64
#: Whoever has gone before there was an answer: nginx's number in REST, gRPC's own.
_GONE = {"rest": 499, "grpc": 1}
#: Records that wait: some seconds' worth; more are lost, and counted.
MAX_RECORDS = 32_768


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which requests are recorded.

    Attributes:
        share: Share of them for the access log, from 0 to 1.
        slow_s: All that take at least so many seconds; 0 for none.
        traced: All that are to be traced.
        parents: Of these, none whose caller traces others, but not this one.
    """

    share: float = 0.0
    slow_s: float = 0.0
    traced: bool = False
    parents: bool = True


class Recording:
    """A request as it is answered.

    Args:
        api: ``grpc`` or ``rest``.
        method: HTTP's.
        path: Of the URL, or of the gRPC method.
        request_id: Its name.
        traceparent: Its caller's trace context.
        client: Its caller's address.
        logged: It is for the access log.
        traced: It may be traced.
    """

    def __init__(
        self, *, api: str, method: str, path: str, request_id: str, traceparent: str, client: str, logged: bool,
        traced: bool,
    ) -> None:  # fmt: skip
        self._api = api
        self._method = method
        self._path = path[:_MAX_PATH]
        self._request_id = request_id
        self._traceparent = traceparent[:_MAX_TRACEPARENT]
        self._client = client
        self.logged = logged
        self.traced = traced
        self._time_ns = time.time_ns()
        self._arrived_ns = time.perf_counter_ns()
        self._received_ns = 0
        self.bytes_in = 0
        self.bytes_out = 0
        #: None where its caller had gone.
        self.status: int | None = None
        self.facts = Facts()

    def received(self, size: int) -> None:
        """The body is whole.

        Args:
            size: Its bytes.
        """
        self.bytes_in, self._received_ns = size, time.perf_counter_ns()

    def record(self) -> RequestRecord:
        """The record of a request that is over."""
        now, facts, arrived = time.perf_counter_ns(), self.facts, self._arrived_ns
        receive = (self._received_ns or now) - arrived
        queue = stack = compute = batch = write = 0
        if facts.ended_ns:
            receive, write = facts.decoded_ns - arrived, now - facts.ended_ns
            queue, stack, compute, batch = facts.durations()
        return RequestRecord(
            time_ns=self._time_ns, api=self._api, method=self._method, path=self._path,
            status=_GONE[self._api] if self.status is None else self.status, request_id=self._request_id,
            traceparent=self._traceparent, client=self._client, principal=facts.principal, model=facts.model,
            version=facts.version, signature=facts.signature, backend=facts.backend, rows=facts.rows,
            bytes_in=self.bytes_in, bytes_out=self.bytes_out, total_ns=now - arrived, receive_ns=receive,
            queue_ns=queue, stack_ns=stack, compute_ns=compute, batch_ns=batch, write_ns=write, batch=facts.batch,
            batch_rows=facts.batch_rows, batch_requests=facts.batch_requests, logged=self.logged, traced=self.traced,
        )  # fmt: skip


class Recorder:
    """Records requests until somebody takes them.

    Args:
        wanted: Which of them.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._lock = threading.Lock()
        self._records: list[RequestRecord] = []
        self._lost = 0

    def begin(
        self, *, api: str, method: str, path: str, request_id: str, traceparent: str, client: str
    ) -> Recording | None:
        """Begins a record, if anybody wants one; see :class:`Recording`."""
        wanted = self.wanted
        logged = wanted.share > 0 and random.random() < wanted.share
        traced = wanted.traced and not (wanted.parents and _is_untraced(traceparent))
        if not (logged or traced or wanted.slow_s):
            return None
        return Recording(
            api=api, method=method, path=path, request_id=request_id, traceparent=traceparent, client=client,
            logged=logged, traced=traced,
        )  # fmt: skip

    def end(self, recording: Recording) -> None:
        """Keeps the record of a request that is over.

        Args:
            recording: The request.
        """
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
        """Records that nobody has taken yet, and how many were lost."""
        with self._lock:
            records, self._records = self._records, []
            lost, self._lost = self._lost, 0
        return records, lost


def _is_untraced(traceparent: str) -> bool:
    """Whether the last bit of a trace context's flags says that its request is not traced."""
    parts = traceparent.split("-")
    try:
        return len(parts) >= 4 and not int(parts[3], 16) & 1
    except ValueError:
        return False
