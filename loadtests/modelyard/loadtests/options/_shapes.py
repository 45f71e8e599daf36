"""Shapes of load: rates over time, and the moments at which requests are due."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError

_CHUNK = 1 << 14
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")
#: Line segments that a day curve is made of.
_DAY_PARTS = 48


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of time in which the rate goes in a straight line."""

    seconds: float
    #: Requests per second at its begin.
    start: float
    #: Requests per second at its end.
    end: float


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Requests per second over time."""

    #: One after the other.
    segments: tuple[Segment, ...]

    @property
    def seconds(self) -> float:
        """Length of the whole."""
        return sum(segment.seconds for segment in self.segments)

    @property
    def requests(self) -> float:
        """Requests that are due over the whole."""
        return sum((segment.start + segment.end) / 2 * segment.seconds for segment in self.segments)

    def rate(self, at_s: float) -> float:
        """Requests per second at a moment; 0 before and after."""
        for segment in self.segments:
            if 0 <= at_s < segment.seconds:
                return segment.start + (segment.end - segment.start) * at_s / segment.seconds
            at_s -= segment.seconds
        return 0.0

    def arrivals(self, *, poisson: bool, seed: int = 0) -> Iterator[npt.NDArray[np.float64]]:
        """When requests are due: seconds since the begin, float64 ``[n]``, rising, in chunks.

        Poisson arrivals are independent, as those of many users are; the others are evenly spaced.
        """
        rng = np.random.default_rng(seed)
        count = 0.0
        while True:
            # The n-th request is due when the integral of the rate has reached n (or a sum of n exponentials).
            if poisson:
                targets = count + np.cumsum(rng.exponential(size=_CHUNK))
                count = float(targets[-1])
            else:
                targets = count + np.arange(_CHUNK, dtype=np.float64)
                count += _CHUNK
            times = self._times(targets)
            if len(times):
                yield times
            if len(times) < _CHUNK:
                return

    def _times(self, targets: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Where the integral of the rate reaches the targets; those beyond its end are left out."""
        parts, begin, done = [], 0.0, 0.0
        for segment in self.segments:
            total = (segment.start + segment.end) / 2 * segment.seconds
            inside = targets[(targets >= done) & (targets < done + total)] - done
            slope = (segment.end - segment.start) / segment.seconds
            root = np.sqrt(np.maximum(segment.start**2 + 2 * slope * inside, 0))
            # This form of the quadratic's solution is stable where the slope is zero, too.
            with np.errstate(invalid="ignore"):
                offsets = np.where(inside > 0, 2 * inside / (segment.start + root), 0.0)
            parts.append(begin + offsets)
            begin += segment.seconds
            done += total
        return np.concatenate(parts)


def constant(rate: float, seconds: float) -> Shape:
    """A constant rate."""
    return Shape(segments=(Segment(seconds=seconds, start=rate, end=rate),))


def _ramp(phase: _Phase) -> list[Segment]:
    return [Segment(seconds=phase.number("seconds"), start=phase.number("from"), end=phase.number("to"))]


def _constant(phase: _Phase) -> list[Segment]:
    rate = phase.number("rate")
    return [Segment(seconds=phase.number("seconds"), start=rate, end=rate)]


def _soak(phase: _Phase) -> list[Segment]:
    rate = phase.number("rate")
    return [Segment(seconds=phase.number("hours") * 3600, start=rate, end=rate)]


def _step(phase: _Phase) -> list[Segment]:
    seconds = phase.number("seconds_each")
    return [Segment(seconds=seconds, start=rate, end=rate) for rate in phase.numbers("rates")]


def _spike(phase: _Phase) -> list[Segment]:
    base, peak = phase.number("base"), phase.number("peak")
    lengths = phase.number("before_seconds"), phase.number("spike_seconds"), phase.number("after_seconds")
    return [
        Segment(seconds=seconds, start=rate, end=rate)
        for seconds, rate in zip(lengths, (base, peak, base), strict=True)
    ]


def _day(phase: _Phase) -> list[Segment]:
    low, high, seconds = phase.number("low"), phase.number("high"), phase.number("seconds")
    rates = [
        low + (high - low) * (1 - math.cos(2 * math.pi * index / _DAY_PARTS)) / 2 for index in range(_DAY_PARTS + 1)
    ]
    return [
        Segment(seconds=seconds / _DAY_PARTS, start=start, end=end)
        for start, end in zip(rates[:-1], rates[1:], strict=True)
    ]


#: Each kind of phase: its fields, and what it becomes.
PHASES: Mapping[str, tuple[tuple[str, ...], Callable[[_Phase], list[Segment]]]] = {
    "constant": (("rate", "seconds"), _constant),
    "ramp": (("from", "to", "seconds"), _ramp),
    "step": (("rates", "seconds_each"), _step),
    "spike": (("base", "peak", "before_seconds", "spike_seconds", "after_seconds"), _spike),
    "soak": (("rate", "hours"), _soak),
    "day": (("low", "high", "seconds"), _day),
}


@dataclass(frozen=True, kw_only=True)
class _Phase:
    where: str
    values: Mapping[str, object]

    def number(self, name: str) -> float:
        return self._checked(name, self.values[name])

    def numbers(self, name: str) -> list[float]:
        values = self.values[name]
        if not isinstance(values, list) or not values:
            raise ConfigurationError(f"{self.where}: {name} is {values!r}; expected a list of numbers.")
        return [self._checked(name, value) for value in values]

    def _checked(self, name: str, value: object) -> float:
        lengths = name.startswith("seconds") or name.endswith("_seconds") or name == "hours"
        number: Any = value
        if lengths and isinstance(value, str):
            number = seconds_of(value) / (3600 if name == "hours" else 1)
        numeric = isinstance(number, (int, float)) and not isinstance(number, bool)
        # Whole numbers may be larger than any float.
        if not numeric or not 0 <= number <= sys.float_info.max:
            expected = "a number above 0, or a duration such as '1m30s'" if lengths else "a number, 0 or more"
            raise ConfigurationError(f"{self.where}: {name} is {value!r}; expected {expected}.")
        if lengths and not number:
            raise ConfigurationError(f"{self.where}: {name} is 0; expected more than that.")
        return float(number)


def seconds_of(text: str) -> float:
    """Reads a duration as Locust writes it: ``30``, ``30s``, ``1m30s`` or ``1h``; NaN for anything else and for 0."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return math.nan
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds or math.nan


def parse_shape(phases: Sequence[Mapping[str, object]], where: str) -> Shape:
    """Reads the phases of a shape, as a TOML or YAML file has them."""
    segments: list[Segment] = []
    for number, values in enumerate(phases, 1):
        here = f"{where}: phase {number}"
        kind = values.get("kind") if isinstance(values, Mapping) else None
        if not isinstance(kind, str) or kind not in PHASES:
            raise ConfigurationError(f"{here}: kind is {kind!r}; expected one of {', '.join(PHASES)}.")
        fields, make = PHASES[kind]
        given = set(map(str, values)) - {"kind"}
        if given != set(fields):
            raise ConfigurationError(
                f"{here}: a {kind} has the fields {', '.join(fields)}; received {', '.join(sorted(given)) or 'none'}."
            )
        segments += make(_Phase(where=here, values=values))
    shape = Shape(segments=tuple(segments))
    if not shape.requests:
        raise ConfigurationError(f"{where}: the shape has no request at all; expected a rate above 0 somewhere.")
    return shape
