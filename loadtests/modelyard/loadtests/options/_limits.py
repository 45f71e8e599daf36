"""Limits of a run as data, and which of them were kept."""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from modelyard.errors import ConfigurationError

EXIT_BROKEN = 1
#: It could not be measured: wrong usage, no server, no right answer.
EXIT_FAILED = 2
EXIT_INTERRUPTED = 130
#: Name of the limit that an interrupted run breaks.
_WHOLE = "whole_run"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run must keep.

    Attributes:
        max_error_rate: Share of requests, 0 to 1, that may fail or be answered wrongly.
        max_p50_ms: 50th percentile of the latency of each kind of request, in milliseconds; None for no limit.
        max_p95_ms: The same for the 95th percentile.
        max_p99_ms: The same for the 99th percentile.
        min_agreement: Share of examples, 0 to 1, whose answer must be the expected one.
        min_requests: Requests of each kind that must have been answered.
        min_throughput: Requests per second, of all kinds together, that must have been answered rightly.
        refusals_allowed: Requests that the server refused because it had too much to do are no failures.
        max_step_ms: How much the 95th percentile may rise around events of the
            run, such as a new version of the model, in milliseconds.
        min_goodput: Right answers per second as a share of the server's capacity, 0 to 1.
    """

    max_error_rate: float = 0.0
    max_p50_ms: float | None = None
    max_p95_ms: float | None = None
    max_p99_ms: float | None = None
    min_agreement: float = 0.8
    min_requests: int = 1
    min_throughput: float | None = None
    refusals_allowed: bool = False
    max_step_ms: float | None = None
    min_goodput: float | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One kind of request over the whole run.

    Attributes:
        name: Such as ``grpc image``.
        requests: How many were sent.
        failures: How many of them failed or were answered wrongly.
        p50_ms: 50th percentile of the latency, in milliseconds.
        p95_ms: 95th percentile of the latency, in milliseconds.
        p99_ms: 99th percentile of the latency, in milliseconds.
        known: Rows in right answers of which it is known how they must be answered.
        matches: How many of them were answered so.
        refused: How many of the failures were the server's refusal.
        seconds: Length of the run; 0 where it is not known.
    """

    name: str
    requests: int
    failures: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    known: int
    matches: int
    refused: int = 0
    seconds: float = 0.0

    @property
    def answered_per_s(self) -> float:
        """Requests per second that were answered rightly."""
        return (self.requests - self.failures) / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """One limit, held against what was measured."""

    #: What was measured, such as ``grpc image``.
    subject: str
    #: Name of the limit.
    name: str
    limit: float
    #: What was measured.
    value: float
    kept: bool
    #: A sentence about it.
    text: str


def check_limits(
    limits: Limits,
    measured: Sequence[Measured],
    *,
    total: Measured | None = None,
    step_ms: float | None = None,
    goodput: Sequence[float] = (),
) -> list[Check]:
    """A check for each limit and each kind of request.

    ``step_ms`` is the rise of the 95th percentile around events (None: no events), ``goodput`` in each round the right
    answers per second as a share of the capacity (empty: not measured).
    """
    found = [check for row in measured for check in _checks(limits, row)]
    if not measured:
        text = "no request was sent: is there a user class for a host?"
        found.append(
            Check(subject="all", name="min_requests", limit=limits.min_requests, value=0, kept=False, text=text)
        )
    good = total.answered_per_s if total else 0.0
    for name, limit, value, text in (
        ("min_throughput", limits.min_throughput, good, f"{good:.1f} right answers per second"),
        ("min_goodput", limits.min_goodput, statistics.median(goodput) if goodput else 0.0, _goodput_text(goodput)),
    ):
        if limit is not None:
            text = f"{text}; expected at least {limit:g}"
            found.append(Check(subject="all", name=name, limit=limit, value=value, kept=value >= limit, text=text))
    if limits.max_step_ms is not None:
        step = math.inf if step_ms is None else step_ms
        text = f"p95 rose by {step:.3g} ms around the events; the limit is {limits.max_step_ms:g} ms"
        if step_ms is None:
            text = "there was no event to look around, or no answer"
        found.append(
            Check(
                subject="all", name="max_step_ms", limit=limits.max_step_ms, value=step,
                kept=step <= limits.max_step_ms, text=text,
            )
        )  # fmt: skip
    return found


def interruption(seconds: float, planned: float) -> Check:
    """A broken limit: the run was interrupted after so many seconds of those that were planned."""
    text = f"interrupted after {seconds:.1f} of {planned:g} s; the numbers are of what was measured until then"
    return Check(subject="all", name=_WHOLE, limit=planned, value=seconds, kept=False, text=text)


def exit_code(checks: Sequence[Check]) -> int:
    """What a run that was measured ends with: 130 where it was interrupted, 1 for a broken limit, else 0."""
    broken = {check.name for check in checks if not check.kept}
    return EXIT_INTERRUPTED if _WHOLE in broken else EXIT_BROKEN if broken else 0


def _goodput_text(rounds: Sequence[float]) -> str:
    if not rounds:
        return "it was not measured what the server can do"
    text = f"right answers came at {statistics.median(rounds):.1%} of what the server can do"
    return text if len(rounds) == 1 else f"{text}, the median of {', '.join(f'{each:.0%}' for each in rounds)}"


def broken_limits(limits: Limits, measured: Sequence[Measured]) -> list[str]:
    """Finds what a run did not keep.

    Args:
        limits: The limits.
        measured: One for each kind of request that should have been sent.

    Returns:
        A sentence for each broken limit; empty where all were kept.
    """
    if not measured:
        return [check_limits(limits, measured)[0].text]
    return [f"{check.subject}: {check.text}" for check in check_limits(limits, measured) if not check.kept]


def _checks(limits: Limits, row: Measured) -> list[Check]:
    def check(name: str, limit: float, value: float, kept: bool, text: str) -> Check:
        return Check(subject=row.name, name=name, limit=limit, value=value, kept=kept, text=text)

    answered = row.requests - row.failures
    found = [
        check(
            "min_requests", limits.min_requests, answered, answered >= limits.min_requests,
            f"{answered} requests were answered; expected at least {limits.min_requests}",
        )
    ]  # fmt: skip
    if row.requests:
        failures = row.failures - (row.refused if limits.refusals_allowed else 0)
        rate = failures / row.requests
        found.append(
            check(
                "max_error_rate", limits.max_error_rate, rate, rate <= limits.max_error_rate,
                f"{failures} of {row.requests} requests failed ({rate:.2%}); the limit is {limits.max_error_rate:.2%}",
            )
        )  # fmt: skip
        for name, value, limit in (
            ("p50", row.p50_ms, limits.max_p50_ms),
            ("p95", row.p95_ms, limits.max_p95_ms),
            ("p99", row.p99_ms, limits.max_p99_ms),
        ):
            if limit is not None and answered:
                text = f"{name} is {value:g} ms; the limit is {limit:g} ms"
                found.append(check(f"max_{name}_ms", limit, value, value <= limit, text))
    if row.known:
        share = row.matches / row.known
        found.append(
            check(
                "min_agreement", limits.min_agreement, share, share >= limits.min_agreement,
                f"{row.matches} of {row.known} answers agree with the expected ones ({share:.2%}); "
                f"the limit is {limits.min_agreement:.2%}",
            )
        )  # fmt: skip
    return found


def limits_from(values: Mapping[str, Any], where: str) -> Limits:
    """Reads limits, as a TOML or YAML file has them."""
    known = {each.name: each for each in dataclasses.fields(Limits)}
    for name, value in values.items():
        if name not in known:
            raise ConfigurationError(f"{where}: unknown limit {name!r}; expected one of {', '.join(known)}.")
        if name == "refusals_allowed":
            if not isinstance(value, bool):
                raise ConfigurationError(f"{where}: {name} is {value!r}; expected true or false.")
            continue
        highest = 1.0 if name in ("max_error_rate", "min_agreement", "min_goodput") else sys.float_info.max
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        wrong = name == "min_requests" and not (isinstance(value, int) and value > 0)
        if wrong or not number or not 0 <= value <= highest:
            expected = "a share from 0 to 1" if highest == 1 else "a number, 0 or more"
            expected = "a whole number, 1 or more" if name == "min_requests" else expected
            raise ConfigurationError(f"{where}: {name} is {value!r}; expected {expected}.")
    return Limits(**values)
