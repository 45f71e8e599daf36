"""The highest rate at which a server keeps its limits, by bisection over open-loop runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from modelyard.errors import LoadTestError
from modelyard.loadtests._limits import Limits, check_limits
from modelyard.loadtests._record import Log
from modelyard.loadtests._report import Point
from modelyard.loadtests._requests import Request
from modelyard.loadtests._session import Run, Session
from modelyard.loadtests._shapes import constant
from modelyard.loadtests._statistics import Interval, tail

_SURE = 0.95
_CONFIRMATIONS = 3
#: A rate that is not confirmed is lowered by this factor and confirmed again.
_LOWER = 0.92
_ATTEMPTS = 4
#: Of the requests that were due, so many must be answered before the run is over: the rest is a queue that grows.
_KEPT_UP = 0.97
#: Rates of the rest of the curve, as shares of the capacity.
_CURVE = (0.1, 0.25, 0.5, 0.7, 0.85, 1.15, 1.3)


@dataclass(frozen=True, kw_only=True)
class CapacityOptions:
    """How to look for it.

    Attributes:
        p99_ms: Limit of the 99th percentile, in milliseconds.
        probe_s: Length of a run, in seconds.
        resolution: The search ends when it is known as exactly as this, as a share.
        in_flight: Requests at the same time in the closed-loop run that tells where to begin.
        max_error_rate: Share of requests that may fail.
        min_agreement: Share of answers that must agree.
        curve: Whether to measure at rates far below it, and above, too.
    """

    p99_ms: float
    probe_s: float = 5.0
    resolution: float = 0.05
    in_flight: int = 32
    max_error_rate: float = 0.0
    min_agreement: float = 0.0
    curve: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Capacity:
    """What was found.

    Attributes:
        rate: Requests per second; 0 where no rate keeps the limits.
        p99: At that rate, over all runs with it.
        below: How sure it is that the percentile is within its limit, 0 to 1.
        confirmed: Runs at that rate that kept the limits after the search.
        confirmations: Runs at that rate after the search.
        broken_at: Lowest rate that broke a limit; None where none did.
        closed: Right answers per second in the closed loop.
        points: Every rate that was tried.
        last: The last run at that rate.
    """

    rate: float
    p99: Interval
    below: float
    confirmed: int
    confirmations: int
    broken_at: float | None
    closed: float
    points: tuple[Point, ...]
    last: Run

    def text(self) -> str:
        """What was found, in a sentence or two."""
        broken = f"; a limit broke at {self.broken_at:.0f}/s" if self.broken_at is not None else ""
        return (
            f"capacity {self.rate:.0f} requests per second: p99 {self.p99.value:.2f} ms "
            f"(95 % interval {self.p99.low:.2f} to {self.p99.high:.2f}), within its limit in {self.below:.0%} of the "
            f"resampled runs; confirmed by {self.confirmed} of {self.confirmations} more runs{broken}. "
            f"Closed loop: {self.closed:.0f}/s."
        )


async def find_capacity(
    session: Session, requests: Sequence[Request], options: CapacityOptions, *, tell: Callable[[str], None]
) -> Capacity:
    """Looks for it.

    Args:
        session: Connections to the server.
        requests: What to send.
        options: How to look.
        tell: Told what was found so far.

    Raises:
        LoadTestError: The server gives no right answer, or keeps the limits at no rate.
    """
    search = _Search(session, requests, options, tell)
    return await search.run()


class _Search:
    def __init__(
        self, session: Session, requests: Sequence[Request], options: CapacityOptions, tell: Callable[[str], None]
    ) -> None:
        self._session = session
        self._requests = requests
        self._options = options
        self._tell = tell
        self._points: list[Point] = []
        self._logs: dict[float, list[Log]] = {}
        self._broken: list[float] = []
        self._seed = 0
        self._limits = Limits(
            max_error_rate=options.max_error_rate, min_agreement=options.min_agreement, max_p99_ms=options.p99_ms
        )

    async def run(self) -> Capacity:
        options = self._options
        closed = await self._session.generator.closed(
            self._requests, in_flight=options.in_flight, seconds=max(options.probe_s / 2, 0.5)
        )
        top = closed.measured().answered_per_s
        if not top:
            raise LoadTestError("The server gave no right answer: nothing can be said about its capacity.")
        self._tell(f"closed loop, {options.in_flight} in flight: {top:.0f}/s")
        low, high, rate = 0.0, top * 1.3, top * 0.6
        best: Run | None = None
        while high - low > options.resolution * high and rate >= 1:
            run, kept = await self._probe(rate)
            if kept:
                low, best = rate, run
            else:
                high = rate
            rate = (low + high) / 2
        if best is None:
            raise LoadTestError(
                f"p99 is above {options.p99_ms:g} ms even at {self._points[-1].rate:.1f} requests per second "
                f"({self._points[-1].p99_ms:.2f} ms)."
            )
        for attempt in range(_ATTEMPTS):
            kept_runs = 0
            for _ in range(_CONFIRMATIONS):
                best, kept = await self._once(low)
                kept_runs += kept
            if kept_runs * 2 > _CONFIRMATIONS or attempt + 1 == _ATTEMPTS:
                break
            self._broken.append(low)
            low *= _LOWER
        found = tail(self._logs[low], 99, options.p99_ms)
        if options.curve:
            for share in _CURVE:
                await self._once(max(share * low, 1.0))
        return Capacity(
            rate=low,
            p99=found.interval,
            below=found.below,
            confirmed=kept_runs,
            confirmations=_CONFIRMATIONS,
            broken_at=min((rate for rate in self._broken if rate > low), default=None),
            closed=top,
            points=tuple(self._points),
            last=best,
        )

    async def _probe(self, rate: float) -> tuple[Run, bool]:
        """Tries a rate; once more where the first run leaves it open."""
        run, kept = await self._once(rate)
        if any(log.ok.any() for log in self._logs[rate]):
            found = tail(self._logs[rate], 99, self._options.p99_ms)
            if 1 - _SURE < found.below < _SURE:
                run, again = await self._once(rate)
                together = tail(self._logs[rate], 99, self._options.p99_ms)
                kept = (kept or again) and together.interval.value <= self._options.p99_ms
        if not kept:
            self._broken.append(rate)
        return run, kept

    async def _once(self, rate: float) -> tuple[Run, bool]:
        self._seed += 1
        run = await self._session.open(constant(rate, self._options.probe_s), self._requests, seed=self._seed)
        measured = run.log.measured()
        self._logs.setdefault(rate, []).append(run.log)
        in_time = float((run.log.done[run.log.ok] <= run.log.seconds).sum()) / max(measured.requests, 1)
        kept = all(check.kept for check in check_limits(self._limits, [measured])) and in_time >= _KEPT_UP
        point = Point(
            rate=rate, answered_per_s=measured.answered_per_s, p50_ms=measured.p50_ms, p95_ms=measured.p95_ms,
            p99_ms=measured.p99_ms, kept=kept,
        )  # fmt: skip
        self._points.append(point)
        self._tell(
            f"{rate:8.0f}/s: p50 {point.p50_ms:.2f}, p95 {point.p95_ms:.2f}, p99 {point.p99_ms:.2f} ms, "
            f"{measured.failures} failed: {'within limits' if kept else 'limits broken'}"
        )
        return run, kept
