"""What becomes of records: logs and traces, written by a thread that no request waits for."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from modelyard.serving.config import Form, TelemetryOptions
from modelyard.serving.metrics import Metrics
from modelyard.serving.telemetry._lines import fields_of, line_of
from modelyard.serving.telemetry._recorder import Recorder, Wanted
from modelyard.serving.telemetry._records import RequestRecord
from modelyard.serving.telemetry._tracing import Spans, tracing_of

_LOG = logging.getLogger("modelyard.serving")
_SLOW = logging.getLogger("modelyard.serving.slow")

#: How often records are fetched.
_PERIOD_S = 0.1
#: How long the last records may take at a stop: the reader of the log may have stopped, too.
_LAST_S = 5.0
_LOST = ":modelyard:serving:request_records_dropped"

#: Records that wait, as tuples of :class:`RequestRecord`'s fields, and how many more were lost.
Take = Callable[[], tuple[Sequence[tuple[Any, ...]], int]]


class Sink(Protocol):
    """Does something with records."""

    def write(self, records: Sequence[RequestRecord]) -> None:
        """Takes records, on the thread that writes."""

    def close(self) -> None:
        """Finishes what was begun; nothing, where every record is written at once."""
        return


class AccessLog(Sink):
    """A line for each request of the access log's share."""

    def __init__(self, form: Form) -> None:
        self._form: Form = form

    def write(self, records: Sequence[RequestRecord]) -> None:
        lines = "".join(line_of(record, self._form) for record in records if record.logged)
        if lines:
            sys.stdout.write(lines)
            sys.stdout.flush()


class SlowLog(Sink):
    """A warning for each request that took long, with its times."""

    def __init__(self, limit_s: float) -> None:
        self._limit_ns = limit_s * 1e9

    def write(self, records: Sequence[RequestRecord]) -> None:
        for record in records:
            if record.total_ns >= self._limit_ns:
                fields = fields_of(record)
                # The line has a time of its own: when it was written.
                fields["came"] = fields.pop("time")
                _SLOW.warning("slow request", extra={"fields": fields})


class Telemetry:
    """Fetches records about ten times a second, and writes them to the sinks."""

    def __init__(
        self,
        options: TelemetryOptions,
        metrics: Metrics,
        environment: Mapping[str, str],
        *,
        sinks: Iterable[Sink] = (),
    ) -> None:
        self._sinks: list[Sink] = list(sinks)
        if options.access_share:
            self._sinks.append(AccessLog(options.access_form))
        if options.slow_s:
            self._sinks.append(SlowLog(options.slow_s))
        tracing = tracing_of(environment)
        if tracing is not None:
            self._sinks.append(Spans(tracing))
        wanted = Wanted(
            share=options.access_share,
            slow_s=options.slow_s,
            traced=tracing is not None,
            parents=tracing is not None and tracing.parents_decide,
        )
        #: For transports; None where no records are written.
        self.recorder = Recorder(wanted) if self._sinks else None
        self._takes: list[Take] = [] if self.recorder is None else [self.recorder.take]
        self._lost = metrics.counter(_LOST, {})
        self._complaints: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="modelyard-telemetry", daemon=True)

    def add_source(self, take: Take) -> None:
        self._takes.append(take)

    def start(self) -> None:
        if self.recorder is not None:
            self._thread.start()

    def stop(self) -> None:
        """Writes the last records."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_S)
            if self._thread.is_alive():
                _LOG.warning("the last requests are not in the log: its reader has stopped, too")

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(_PERIOD_S)
            self._fetch()
        for sink in self._sinks:
            self._try(sink.close)

    def _fetch(self) -> None:
        records: list[RequestRecord] = []
        for take in self._takes:
            found, lost = take()
            records.extend(map(RequestRecord._make, found))
            if lost:
                self._lost.add(lost)
        for sink in self._sinks if records else ():
            if not self._try(lambda sink=sink: sink.write(records)):  # type: ignore[misc]  # mypy: a lambda's default
                self._lost.add(len(records))

    def _try(self, work: Callable[[], None]) -> bool:
        """Does a sink's work: one that fails does not stop the others, and is logged once."""
        try:
            work()
        except Exception as exc:
            complaint = f"{type(exc).__name__}: {exc}"
            if complaint not in self._complaints:
                self._complaints.add(complaint)
                _LOG.exception("requests could not be logged or traced; this is said once")
            return False
        return True
