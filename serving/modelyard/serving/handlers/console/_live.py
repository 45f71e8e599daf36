"""What the server does now: differences between samples of its counters, which are taken when the page is read."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from modelyard.serving.handlers.rest import statuses_of
from modelyard.serving.machine import resident_bytes
from modelyard.serving.metrics import (
    LATENCY_BUCKETS_US,
    HistogramValue,
    Metrics,
    ModelStatistics,
    VersionStatistics,
    percentile,
)
from modelyard.serving.repository import ModelManager

_REQUESTS = ":tensorflow:serving:request_count"
_LATENCY = ":tensorflow:serving:request_latency"
_IN_FLIGHT = ":modelyard:serving:requests_in_flight"
#: Counters are read at most so often, rates are of so long, and so much is kept, in seconds.
_STEP_S, _WINDOW_S, _KEPT_S = 1.0, 10.0, 300.0
#: What may stand in a chart, in the units of its view box.
_WIDTH, _HEIGHT = 600.0, 140.0


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """Counters at one moment."""

    at: float
    #: Requests answered by all versions, those that are gone included.
    answered: int
    versions: Mapping[tuple[str, int], VersionStatistics]
    #: Requests by bucket of their latency.
    latency: Sequence[int]
    #: Requests by model and status.
    statuses: Mapping[tuple[str, str], float]
    in_flight: float


@dataclass(frozen=True, kw_only=True)
class BatchView:
    """Batches of one size, since the version was loaded."""

    rows: int
    count: int
    #: Of the most frequent size's, 0 to 100.
    share: float


@dataclass(frozen=True, kw_only=True)
class VersionLive:
    """One version."""

    model: str
    version: int
    total: int
    failed: int
    rate: float
    rows_rate: float
    #: Rows per batch; None where there was none.
    rows: float | None
    #: Time of a request, from arrival to the encoded answer; None where there was none.
    mean_ms: float | None
    queue_ms: float | None
    compute_ms: float | None
    batches: Sequence[BatchView] = ()


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart."""

    name: str
    #: For a polyline; several where there are gaps.
    points: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    top: float
    lines: Sequence[Line]
    summary: str


@dataclass(frozen=True, kw_only=True)
class LiveView:
    """What the page shows."""

    #: What rates are of; 0 at the first look.
    window_s: float
    rate: float
    refused_rate: float
    #: Milliseconds by percentile; empty where there was no request.
    percentiles: Mapping[int, float]
    in_flight: int
    #: Bytes of the process; None where that is not known.
    memory: int | None
    versions: Sequence[VersionLive]
    statuses: Sequence[tuple[str, str, int, float]]
    charts: Sequence[Chart] = field(default=())


class Live:
    """Looks at counters; safe to use from several threads."""

    def __init__(self, manager: ModelManager, metrics: Metrics, statistics: ModelStatistics) -> None:
        self._manager = manager
        self._metrics = metrics
        self._statistics = statistics
        self._lock = threading.Lock()
        self._samples: deque[_Sample] = deque()

    def look(self) -> LiveView:
        """What happened in the last seconds, or since the last look where that is longer ago."""
        with self._lock:
            now = time.monotonic()
            if not self._samples or now - self._samples[-1].at >= _STEP_S:
                self._samples.append(self._read(now))
            while now - self._samples[0].at > _KEPT_S:
                self._samples.popleft()
            samples = list(self._samples)
        last = samples[-1]
        # The newest one that is at least a window old; or the oldest.
        first = next((each for each in reversed(samples) if last.at - each.at >= _WINDOW_S), samples[0])
        seconds = last.at - first.at
        statuses = _statuses(first, last, seconds)
        return LiveView(
            window_s=seconds,
            rate=_rate(last.answered - first.answered, seconds),
            refused_rate=sum(rate for *_, rate in statuses),
            percentiles=_percentiles(first.latency, last.latency),
            in_flight=int(last.in_flight),
            memory=resident_bytes(),
            versions=[_version(row, first.versions.get(key), seconds) for key, row in sorted(last.versions.items())],
            statuses=statuses,
            charts=_charts(samples),
        )

    def _read(self, now: float) -> _Sample:
        snapshot = self._metrics.snapshot()
        latency = [0] * (len(LATENCY_BUCKETS_US) + 1)
        for _, value in snapshot[_LATENCY]:
            if isinstance(value, HistogramValue):
                latency = [mine + more for mine, more in zip(latency, value.counts, strict=True)]
        statuses: dict[tuple[str, str], float] = {}
        for labels, count in snapshot[_REQUESTS]:
            names = dict(labels)
            if names["status"] != "OK" and not isinstance(count, HistogramValue):
                key = (names["model_name"], names["status"])
                statuses[key] = statuses.get(key, 0.0) + count
        versions = {}
        for name in self._manager.names:
            for status in statuses_of(self._manager, name):
                row = self._statistics.of(name, status.version)
                if row.success.count or row.fail.count:
                    versions[name, status.version] = row
        in_flight = sum(value for _, value in snapshot[_IN_FLIGHT] if not isinstance(value, HistogramValue))
        return _Sample(
            at=now, answered=self._statistics.answered, versions=versions, latency=latency, statuses=statuses,
            in_flight=in_flight,
        )  # fmt: skip


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _version(row: VersionStatistics, before: VersionStatistics | None, seconds: float) -> VersionLive:
    # One that was unloaded and came back has begun with zeros.
    if before is None or before.success.count > row.success.count:
        before = VersionStatistics(name=row.name, version=row.version)
    answered = row.success.count - before.success.count
    # Without a request in the window, what is known of all of them.
    since = before if answered else VersionStatistics(name=row.name, version=row.version)
    count = row.success.count - since.success.count
    executions = row.execution_count - since.execution_count
    sizes = {rows: each.compute_infer.count for rows, each in row.batches.items()}
    most = max(sizes.values(), default=0)

    def mean(part: str) -> float | None:
        spent: int = getattr(row, part).ns - getattr(since, part).ns
        return spent / count / 1e6 if count else None

    return VersionLive(
        model=row.name,
        version=row.version,
        total=row.success.count,
        failed=row.fail.count,
        rate=_rate(answered, seconds),
        rows_rate=_rate(row.inference_count - before.inference_count, seconds),
        rows=(row.inference_count - since.inference_count) / executions if executions else None,
        mean_ms=mean("success"),
        queue_ms=mean("queue"),
        compute_ms=mean("compute_infer"),
        batches=[BatchView(rows=rows, count=count, share=100 * count / most) for rows, count in sizes.items() if count],
    )


def _statuses(first: _Sample, last: _Sample, seconds: float) -> list[tuple[str, str, int, float]]:
    return [
        (model, status, int(count), _rate(count - first.statuses.get((model, status), 0.0), seconds))
        for (model, status), count in sorted(last.statuses.items())
    ]


def _percentiles(before: Sequence[int], after: Sequence[int]) -> dict[int, float]:
    """Milliseconds of the median and of the slow requests between two samples."""
    counts = [new - old for new, old in zip(after, before, strict=True)]
    found = {percent: percentile(counts, LATENCY_BUCKETS_US, percent / 100) for percent in (50, 90, 99)}
    return {percent: value / 1e3 for percent, value in found.items() if value is not None}


def _charts(samples: Sequence[_Sample]) -> list[Chart]:
    if len(samples) < 2:
        return []
    end = samples[-1].at
    rates: list[tuple[float, float | None]] = []
    latencies: dict[int, list[tuple[float, float | None]]] = {50: [], 99: []}
    for one, other in pairwise(samples):
        rates.append((end - other.at, _rate(other.answered - one.answered, other.at - one.at)))
        found = _percentiles(one.latency, other.latency)
        for percent, points in latencies.items():
            points.append((end - other.at, found.get(percent)))
    return [
        _chart("Requests per second", {"answered": rates}),
        _chart("Latency in milliseconds", {"median": latencies[50], "99th percentile": latencies[99]}),
    ]


def _chart(title: str, lines: Mapping[str, Sequence[tuple[float, float | None]]]) -> Chart:
    values = {name: [value for _, value in points if value is not None] for name, points in lines.items()}
    top = _round_up(max((value for each in values.values() for value in each), default=0.0))
    parts = [
        f"{name} between {min(each):.3g} and {max(each):.3g}, last {each[-1]:.3g}"
        for name, each in values.items()
        if each
    ]
    return Chart(
        title=title,
        top=top,
        lines=[Line(name=name, points=_points(points, top)) for name, points in lines.items()],
        summary=f"{title}: {'; '.join(parts) or 'no requests'}.",
    )


def _points(points: Sequence[tuple[float, float | None]], top: float) -> list[str]:
    """Polylines; one ends where there was nothing to measure."""
    found: list[list[str]] = [[]]
    for age, value in points:
        if value is None:
            found.append([])
            continue
        x = _WIDTH * (1 - age / _KEPT_S)
        found[-1].append(f"{x:.1f},{_HEIGHT * (1 - value / top):.1f}")
    # A line of one point shows nothing.
    return [" ".join(each if len(each) > 1 else each * 2) for each in found if each]


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    if value <= 0:
        return 1.0
    step = 10.0 ** math.floor(math.log10(value))
    return next(factor * step for factor in (1, 2, 5, 10) if factor * step >= value)
