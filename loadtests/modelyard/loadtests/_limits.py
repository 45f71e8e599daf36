"""Limits of a run, and which of them were broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run must keep.

    Attributes:
        max_error_rate: Share of requests, 0 to 1, that may fail or be answered wrongly.
        max_p95_ms: 95th percentile of the latency of each kind of request, in
            milliseconds; None for no limit.
        max_p99_ms: The same for the 99th percentile.
        min_accuracy: Share of images, 0 to 1, whose class must be right.
        min_requests: Requests of each kind that must have been answered.
    """

    max_error_rate: float = 0.0
    max_p95_ms: float | None = None
    max_p99_ms: float | None = None
    min_accuracy: float = 0.8
    min_requests: int = 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One kind of request over the whole run.

    Attributes:
        name: Such as ``grpc image``.
        requests: How many were sent.
        failures: How many of them failed or were answered wrongly.
        p95_ms: 95th percentile of the latency, in milliseconds.
        p99_ms: 99th percentile of the latency, in milliseconds.
        images: Images in correct answers.
        hits: How many of them were given the right class.
    """

    name: str
    requests: int
    failures: int
    p95_ms: float
    p99_ms: float
    images: int
    hits: int


def broken_limits(limits: Limits, measured: Sequence[Measured]) -> list[str]:
    """Finds what a run did not keep.

    Args:
        limits: The limits.
        measured: One for each kind of request that should have been sent.

    Returns:
        A sentence for each broken limit; empty where all were kept.
    """
    if not measured:
        return ["no request was sent: is there a user class for a host?"]
    return [f"{row.name}: {text}" for row in measured for text in _broken(limits, row)]


def _broken(limits: Limits, row: Measured) -> list[str]:
    answered = row.requests - row.failures
    found = []
    if answered < limits.min_requests:
        found.append(f"{answered} requests were answered; expected at least {limits.min_requests}")
    if row.requests and row.failures / row.requests > limits.max_error_rate:
        found.append(
            f"{row.failures} of {row.requests} requests failed ({row.failures / row.requests:.2%}); "
            f"the limit is {limits.max_error_rate:.2%}"
        )
    for name, value, limit in (("p95", row.p95_ms, limits.max_p95_ms), ("p99", row.p99_ms, limits.max_p99_ms)):
        if limit is not None and row.requests and value > limit:
            found.append(f"{name} is {value:g} ms; the limit is {limit:g} ms")
    if row.images and row.hits / row.images < limits.min_accuracy:
        found.append(
            f"{row.hits} of {row.images} images were classified right ({row.hits / row.images:.2%}); "
            f"the limit is {limits.min_accuracy:.2%}"
        )
    return found
