"""Limits are broken by what breaks them, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from modelyard.loadtests import Limits, Measured, broken_limits
from modelyard.loadtests.options import check_limits


def measured(**changes: Any) -> Measured:
    values: dict[str, Any] = {
        "name": "grpc image", "requests": 100, "failures": 0, "p50_ms": 5.0, "p95_ms": 10.0, "p99_ms": 20.0,
        "known": 100, "matches": 90,
    }  # fmt: skip
    return Measured(**{**values, **changes})


@pytest.mark.parametrize(
    "limits",
    [
        Limits(),
        Limits(max_p95_ms=10, max_p99_ms=20, min_agreement=0.9, min_requests=100),
    ],
)
def test_kept(limits: Limits) -> None:
    assert broken_limits(limits, [measured(), measured(name="rest image")]) == []


@pytest.mark.parametrize(
    ("limits", "changes", "text"),
    [
        (Limits(), {"failures": 1}, "1 of 100 requests failed (1.00%); the limit is 0.00%"),
        (Limits(max_error_rate=0.01), {"failures": 2}, "2 of 100 requests failed"),
        (Limits(max_error_rate=0.01), {"failures": 2, "refused": 2}, "2 of 100 requests failed"),
        (Limits(refusals_allowed=True), {"failures": 3, "refused": 2}, "1 of 100 requests failed"),
        (Limits(max_p50_ms=4.9), {}, "p50 is 5 ms; the limit is 4.9 ms"),
        (Limits(max_p95_ms=9.9), {}, "p95 is 10 ms; the limit is 9.9 ms"),
        (Limits(max_p99_ms=19), {}, "p99 is 20 ms; the limit is 19 ms"),
        (
            Limits(min_agreement=0.91),
            {},
            "90 of 100 answers agree with the expected ones (90.00%); the limit is 91.00%",
        ),
        (Limits(min_requests=101), {}, "100 requests were answered; expected at least 101"),
        (Limits(max_error_rate=1), {"failures": 100}, "0 requests were answered; expected at least 1"),
        (Limits(), {"requests": 0, "known": 0, "matches": 0}, "0 requests were answered; expected at least 1"),
    ],
)
def test_broken(limits: Limits, changes: dict[str, Any], text: str) -> None:
    (broken,) = broken_limits(limits, [measured(**changes)])
    assert broken.startswith(f"grpc image: {text}")


def test_the_allowed_share_of_errors_is_allowed() -> None:
    assert broken_limits(Limits(max_error_rate=0.02), [measured(failures=2)]) == []
    assert broken_limits(Limits(refusals_allowed=True), [measured(failures=2, refused=2)]) == []


def test_every_kind_of_request_is_held_to_the_limits() -> None:
    rows = [measured(), measured(name="rest image", p95_ms=50.0)]
    assert broken_limits(Limits(max_p95_ms=20), rows) == ["rest image: p95 is 50 ms; the limit is 20 ms"]


def test_a_run_without_requests_proves_nothing() -> None:
    assert broken_limits(Limits(), []) == ["no request was sent: is there a user class for a host?"]


@pytest.mark.parametrize(
    ("limits", "total", "step_ms", "text"),
    [
        (Limits(min_throughput=9.0), measured(seconds=10.0, failures=10), None, ""),
        (
            Limits(min_throughput=9.1),
            measured(seconds=10.0, failures=10),
            None,
            "9.0 right answers per second; expecte",
        ),
        (Limits(min_throughput=0.1), None, None, "0.0 right answers per second; expected at least 0.1"),
        (Limits(max_step_ms=5.0), None, 5.0, ""),
        (Limits(max_step_ms=5.0), None, 5.1, "p95 rose by 5.1 ms around the events; the limit is 5 ms"),
        (Limits(max_step_ms=5.0), None, None, "there was no event to look around, or no answer"),
    ],
)
def test_limits_of_a_whole_run(limits: Limits, total: Measured | None, step_ms: float | None, text: str) -> None:
    checks = check_limits(limits, [measured()], total=total, step_ms=step_ms)
    (check,) = (each for each in checks if each.subject == "all")
    assert check.kept is not bool(text)
    assert check.text.startswith(text)
