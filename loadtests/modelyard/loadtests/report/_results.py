"""The content of a report: a run, its limits, and the machine."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from modelyard.loadtests.generate import Run, percentiles
from modelyard.loadtests.options import EXIT_INTERRUPTED, Check, Measured, exit_code
from modelyard.loadtests.report._machine import describe_machine, describe_versions

_MOST_WINDOWS = 120


@dataclass(frozen=True, kw_only=True)
class Window:
    """What was due and what came within a part of a run; percentiles are of requests due in it, NaN without any."""

    begin_s: float
    due_per_s: float
    ok_per_s: float
    failed_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """One rate (requests per second that were due), what it came to, and whether the limits were kept."""

    rate: float
    answered_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    kept: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """A run, its limits, and the machine."""

    title: str
    #: What was done, as names and texts.
    plan: Mapping[str, str]
    #: A row for each kind of request, and one for all.
    measured: Sequence[Measured]
    checks: Sequence[Check]
    #: The run itself; None where there were several.
    run: Run | None = None
    #: Latency by throughput.
    curve: Sequence[Point] = ()
    #: What was found, in a sentence; empty where the limits say it all.
    verdict: str = ""
    #: In a few words what is bad although every limit was kept; empty for nothing.
    worse: str = ""
    #: What was compared: rows with the same columns.
    metrics: Sequence[Mapping[str, str]] = ()
    #: What a reader must know to judge the numbers.
    notes: Sequence[str] = ()
    #: Where it ran.
    machine: Mapping[str, str] = field(default_factory=describe_machine)
    #: With what.
    versions: Mapping[str, str] = field(default_factory=describe_versions)
    #: Begin of the run.
    when: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S %z"))

    @property
    def passed(self) -> bool:
        """Whether every limit was kept."""
        return all(check.kept for check in self.checks)

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return exit_code(self.checks)

    @property
    def badge(self) -> str:
        """How it ended, in two or three words."""
        if self.exit_code == EXIT_INTERRUPTED:
            return "interrupted"
        if not self.passed:
            return "limits broken"
        return self.worse or ("all limits kept" if self.checks else "no limits")


def windows(run: Run) -> list[Window]:
    """A run in windows of a quarter of a second or more."""
    log = run.log
    width = max(log.seconds / _MOST_WINDOWS, 0.25)
    count = max(math.ceil(log.seconds / width), 1)
    due = np.clip((log.intended / width).astype(int), 0, count - 1)
    came = np.clip((log.done / width).astype(int), 0, count - 1)
    ok, latency = log.ok, log.latency_ms
    found = []
    for index in range(count):
        length = min(width, log.seconds - index * width) or width
        inside = due == index
        values = latency[inside & ok]
        p50, p95, p99 = percentiles(values, (50, 95, 99)) if len(values) else [math.nan] * 3
        arrived = came == index
        found.append(
            Window(
                begin_s=index * width,
                due_per_s=int(inside.sum()) / length,
                ok_per_s=int((arrived & ok).sum()) / length,
                failed_per_s=int((arrived & ~ok).sum()) / length,
                p50_ms=p50,
                p95_ms=p95,
                p99_ms=p99,
            )
        )
    return found
