"""One series of a counter or a histogram, and where native buckets end."""

from __future__ import annotations

import bisect
import math
import threading
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Prometheus' native histograms have 2^3 buckets for each factor of two; the core counts in the same ones.
NATIVE_SCHEMA = 3
Labels = tuple[tuple[str, str], ...]
_FRACTIONS = tuple(0.5 * 2 ** (index / 8) for index in range(8))


class Native(NamedTuple):
    """Values in native buckets."""

    #: By their numbers, how many; a bucket's upper bound is 2^(number/8).
    buckets: Iterable[tuple[int, int]]
    zeros: int
    sum: float


class Exemplar(NamedTuple):
    """One value, and the trace that it belongs to."""

    trace: str
    value: float
    seconds: float


class HistogramValue(NamedTuple):
    """What a histogram holds: counts by bucket and above, the values in native buckets, exemplars by bucket."""

    counts: list[int]
    native: Native
    exemplars: dict[int, Exemplar]


class Counter:
    """One series of a counter; safe to use from several threads."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        with self._lock:
            self.value += amount


class Histogram:
    """One series of a histogram, in its buckets and in native ones; safe to use from several threads."""

    __slots__ = ("_bounds", "_counts", "_exemplars", "_lock", "_native", "_sum", "_zeros")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._lock = threading.Lock()
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._native: dict[int, int] = {}
        self._zeros = 0
        #: By bucket the newest value with a trace.
        self._exemplars: dict[int, Exemplar] = {}

    def add(self, value: float, times: int = 1, *, trace: str = "") -> None:
        index = bisect.bisect_left(self._bounds, value)
        number = native_bucket(value) if value > 0 else None
        with self._lock:
            self._counts[index] += times
            self._sum += value * times
            if number is None:
                self._zeros += times
            else:
                self._native[number] = self._native.get(number, 0) + times
            if trace:
                self._exemplars[index] = Exemplar(trace, value, time.time())

    def merge(self, native: Native, counts: Sequence[int] = (), exemplars: Iterable[tuple[int, Exemplar]] = ()) -> None:
        """Adds values that were counted elsewhere.

        Without ``counts`` (in the histogram's own buckets, and above) its bounds are native buckets' bounds, too.
        """
        with self._lock:
            self._sum += native.sum
            self._zeros += native.zeros
            for number, count in native.buckets:
                self._native[number] = self._native.get(number, 0) + count
                if not counts:
                    self._counts[bisect.bisect_left(self._bounds, 2 ** (number / 8))] += count
            if not counts:
                self._counts[0] += native.zeros
            for index, count in enumerate(counts):
                self._counts[index] += count
            self._exemplars.update(exemplars)

    def value(self) -> HistogramValue:
        with self._lock:
            native = Native(list(self._native.items()), self._zeros, self._sum)
            return HistogramValue(list(self._counts), native, dict(self._exemplars))


def percentile(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    """The value that a share of the values is below, as Prometheus reads it from buckets; None without a value.

    Within a bucket it is interpolated; what is above all bounds counts as the last of them.
    """
    wanted, below = share * sum(counts), 0
    for index, count in enumerate(counts):
        if count and below + count >= wanted:
            low = bounds[index - 1] if index else 0.0
            high = bounds[min(index, len(bounds) - 1)]
            return low + (high - low) * (wanted - below) / count
        below += count
    return None


def native_bucket(value: float) -> int:
    """The number of the native bucket that a value is in."""
    fraction, exponent = math.frexp(value)
    return bisect.bisect_left(_FRACTIONS, fraction) + (exponent - 1) * len(_FRACTIONS)
