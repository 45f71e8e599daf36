"""What is counted of one target: requests and their latency, and the rows that it computed as a shadow."""

from __future__ import annotations

import bisect
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from modelyard.serving.metrics import LATENCY_BUCKETS_US, percentile


@dataclass(kw_only=True)
class Samples:
    """Counts of some time."""

    requests: int = 0
    failed: int = 0
    #: Of requests that were answered, and of those that were not by their deadline: they took no less.
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_US) + 1))
    #: Their microseconds.
    sum_us: float = 0.0
    rows: int = 0
    disagreed: int = 0
    max_error: float = 0.0

    @property
    def timed(self) -> int:
        """Requests whose latency is known."""
        return sum(self.latencies)

    @property
    def error_rate(self) -> float:
        """Failed requests of all; 0 of none."""
        return self.failed / self.requests if self.requests else 0.0

    @property
    def mean_ms(self) -> float:
        """Mean latency in milliseconds; 0 of none."""
        return self.sum_us / self.timed / 1e3 if self.timed else 0.0

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of the latency in milliseconds; 0 of none."""
        return (percentile(self.latencies, LATENCY_BUCKETS_US, 0.99) or 0.0) / 1e3

    @property
    def disagreement(self) -> float:
        """Rows that a shadow answered otherwise, of all; 0 of none."""
        return self.disagreed / self.rows if self.rows else 0.0

    def add(self, other: Samples) -> None:
        self.requests += other.requests
        self.failed += other.failed
        self.latencies = [mine + more for mine, more in zip(self.latencies, other.latencies, strict=True)]
        self.sum_us += other.sum_us
        self.rows += other.rows
        self.disagreed += other.disagreed
        self.max_error = max(self.max_error, other.max_error)


class Window:
    """Counts of the last seconds; safe to use from several threads."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._lock = threading.Lock()
        self._now = Samples()
        self._past: deque[tuple[float, Samples]] = deque()

    def request(self, *, ok: bool, seconds: float | None) -> None:
        """Counts one, and its latency where that says something."""
        with self._lock:
            self._now.requests += 1
            self._now.failed += not ok
            if seconds is not None:
                self._now.latencies[bisect.bisect_left(LATENCY_BUCKETS_US, seconds * 1e6)] += 1
                self._now.sum_us += seconds * 1e6

    def requests(self, latencies: Sequence[int], sum_us: float, *, late: int) -> None:
        """Counts requests by the bucket of their latency, and how many of them were not answered by their deadline."""
        if not latencies:
            # None of them took a time that says anything.
            return
        with self._lock:
            self._now.add(Samples(requests=sum(latencies), failed=late, latencies=list(latencies), sum_us=sum_us))

    def shadow(self, *, rows: int, disagreed: int, max_error: float) -> None:
        with self._lock:
            self._now.add(Samples(rows=rows, disagreed=disagreed, max_error=max_error))

    def move(self, now_s: float) -> None:
        """Begins another part of the window, and forgets those that are too old."""
        with self._lock:
            self._past.append((now_s, self._now))
            self._now = Samples()
            while self._past[0][0] < now_s - self._length_s:
                self._past.popleft()

    def clear(self) -> None:
        """Forgets everything: what comes is another version's."""
        with self._lock:
            self._past.clear()
            self._now = Samples()

    def total(self) -> Samples:
        total = Samples()
        with self._lock:
            for _, samples in self._past:
                total.add(samples)
            total.add(self._now)
        return total
