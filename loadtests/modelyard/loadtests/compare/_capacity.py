"""The highest rate at which a server keeps its limits, by bisection over open-loop runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from modelyard.errors import LoadTestError
from modelyard.loadtests.compare._statistics import tail
from modelyard.loadtests.generate import Log, Run, Session
from modelyard.loadtests.options import Check, Limits, Measured, check_limits, constant
from modelyard.loadtests.report import Point
from modelyard.loadtests.traffic import Request

_SURE = 0.95
_CONFIRMATIONS = 3
#: A rate that is not confirmed is lowered by these factors, one after the other, and confirmed again.
_LOWER = (0.92, 0.85, 0.7, 0.5)
#: Of the requests that were due, so many must be answered before the run is over: the rest is a queue that grows.
_KEPT_UP = 0.97
#: Rates of the rest of the curve, as shares of the capacity.
_CURVE = (0.1, 0.25, 0.5, 0.7, 0.85, 1.15, 1.3)


@dataclass(frozen=True, kw_only=True)
class CapacityOptions:
    """How to search for the capacity."""

    #: With one of the 99th percentile, which the search is about.
    limits: Limits
    #: Length of a run, in seconds.
    probe_s: float = 5.0
    #: The search ends when it is known as exactly as this, as a share.
    resolution: float = 0.05
    #: Requests at the same time in the closed-loop run that gives the first estimate.
    in_flight: int = 32
    #: Whether to measure at rates far below it, and above, too.
    curve: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Capacity:
    """The capacity that was found."""

    #: Requests per second that were due, on average.
    rate: float
    #: The runs at that rate after the search, the median first: it kept every limit exactly where more than half of
    #: them did, and is what is reported.
    confirmations: tuple[Trial, ...]
    #: Lowest rate above that broke a limit; None where none did.
    broken_at: float | None
    #: Right answers per second in the closed loop.
    closed: float
    #: Every rate that was tried.
    points: tuple[Point, ...]

    @property
    def per_s(self) -> float:
        """The capacity: right answers per second of the median run; 0 where that run broke a limit."""
        return self.confirmations[0].measured.answered_per_s if self.confirmations[0].kept else 0.0

    def verdict(self) -> str:
        """The result in a sentence."""
        middle = self.confirmations[0]
        kept = sum(trial.kept for trial in self.confirmations)
        runs = f"{kept} of {len(self.confirmations)} runs at that rate kept every limit"
        if not middle.kept:
            return (
                f"no capacity: even at {self.rate:.1f} requests per second only {runs}. "
                "Longer runs (--probe-s) bear more with a machine that has other work."
            )
        return (
            f"capacity: {self.per_s:.1f} requests per second, with p99 {middle.measured.p99_ms:.2f} ms in the median "
            f"run; {runs}."
        )

    def notes(self) -> list[str]:
        """The confirmations, and the lowest rate that was too high."""
        texts = ", ".join(f"{trial.measured.p99_ms:.2f}" for trial in self.confirmations)
        found = [f"p99 of the runs at that rate: {texts} ms, the median run first."]
        if self.broken_at is not None:
            found.append(f"The lowest rate above that broke a limit: {self.broken_at:.0f}/s.")
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One run at one rate."""

    run: Run
    #: All its requests.
    measured: Measured
    checks: tuple[Check, ...]

    @property
    def kept(self) -> bool:
        """Whether every limit was kept."""
        return all(check.kept for check in self.checks)


async def find_capacity(
    session: Session, requests: Sequence[Request], options: CapacityOptions, *, tell: Callable[[str], None]
) -> Capacity:
    """Find the highest rate within the limits by bisection; 0 where there is none."""
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
        self._p99_ms = options.limits.max_p99_ms or math.inf

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
        found = False
        while high - low > options.resolution * high and rate >= 1:
            if await self._probe(rate):
                low, found = rate, True
            else:
                high = rate
            rate = (low + high) / 2
        if not found:
            # Where the search ends.
            low = 1.0
        for factor in (*_LOWER, None) if found else (None,):
            trials = [await self._once(low) for _ in range(_CONFIRMATIONS)]
            # In this order the middle one kept the limits exactly where more than half of them did.
            trials.sort(key=lambda trial: (not trial.kept, trial.measured.p99_ms))
            middle = trials.pop(_CONFIRMATIONS // 2)
            if middle.kept or factor is None:
                break
            self._broken.append(low)
            low *= factor
        if options.curve:
            for share in _CURVE:
                await self._once(max(share * low, 1.0))
        return Capacity(
            rate=low,
            confirmations=(middle, *trials),
            broken_at=min((rate for rate in self._broken if rate > low), default=None),
            closed=top,
            points=tuple(self._points),
        )

    async def _probe(self, rate: float) -> bool:
        """Tries a rate; once more where the first run leaves it open."""
        kept = (await self._once(rate)).kept
        if any(log.ok.any() for log in self._logs[rate]):
            found = tail(self._logs[rate], 99, self._p99_ms)
            if 1 - _SURE < found.below < _SURE:
                again = (await self._once(rate)).kept
                together = tail(self._logs[rate], 99, self._p99_ms)
                kept = (kept or again) and together.interval.value <= self._p99_ms
        if not kept:
            self._broken.append(rate)
        return kept

    async def _once(self, rate: float) -> Trial:
        self._seed += 1
        run = await self._session.open(constant(rate, self._options.probe_s), self._requests, seed=self._seed)
        measured = run.log.measured()
        share = float((run.log.done[run.log.ok] <= run.log.seconds).sum()) / max(measured.requests, 1)
        in_time = Check(
            subject="all", name="answered_in_time", limit=_KEPT_UP, value=share, kept=share >= _KEPT_UP,
            text=f"{share:.1%} of the requests were answered before the run was over; expected {_KEPT_UP:.0%} or more",
        )  # fmt: skip
        trial = Trial(run=run, measured=measured, checks=(*check_limits(self._options.limits, [measured]), in_time))
        self._logs.setdefault(rate, []).append(run.log)
        point = Point(
            rate=rate, answered_per_s=measured.answered_per_s, p50_ms=measured.p50_ms, p95_ms=measured.p95_ms,
            p99_ms=measured.p99_ms, kept=trial.kept,
        )  # fmt: skip
        self._points.append(point)
        self._tell(
            f"{rate:8.0f}/s: p50 {point.p50_ms:.2f}, p95 {point.p95_ms:.2f}, p99 {point.p99_ms:.2f} ms, "
            f"{measured.failures} failed: {'within limits' if trial.kept else 'limits broken'}"
        )
        return trial
