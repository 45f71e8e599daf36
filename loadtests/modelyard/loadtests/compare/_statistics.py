"""Intervals: what a measured number can mean, given how much it varies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modelyard.loadtests.generate import Log

#: 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
#: Latencies of neighbours depend on each other: they are drawn in blocks of this length.
_BLOCK_S = 0.25
_DRAWS = 300


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value and the 95 % interval around it."""

    #: The best guess.
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Tail:
    """A percentile of the latency, and how sure it is."""

    #: The percentile in milliseconds.
    interval: Interval
    #: Share of the draws in which it was within the limit.
    below: float


def tail(logs: Sequence[Log], percentile: float, limit_ms: float) -> Tail:
    """A percentile of several runs together, by a block bootstrap over time."""
    blocks = []
    for log in logs:
        latency, ok = log.latency_ms, log.ok
        number = (log.intended / _BLOCK_S).astype(int)
        for index in np.unique(number):
            values = latency[(number == index) & ok]
            if len(values):
                blocks.append(values)
    rng = np.random.default_rng(0)
    draws = np.array(
        [
            np.percentile(
                np.concatenate([blocks[index] for index in rng.integers(0, len(blocks), len(blocks))]), percentile
            )
            for _ in range(_DRAWS)
        ]
    )
    low, high = (float(each) for each in np.percentile(draws, (2.5, 97.5)))
    value = float(np.percentile(np.concatenate(blocks), percentile))
    return Tail(interval=Interval(value=value, low=low, high=high), below=float(np.mean(draws <= limit_ms)))


def ratio(pairs: Sequence[tuple[float, float]]) -> Interval:
    """The geometric mean of second / first of each pair (two or more), and Student's interval of its logarithm."""
    logs = [math.log(second / first) for first, second in pairs]
    mean = statistics.fmean(logs)
    half = statistics.stdev(logs) / math.sqrt(len(logs)) * _T[min(len(logs) - 2, len(_T) - 1)]
    return Interval(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))
