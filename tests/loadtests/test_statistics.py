"""Intervals, and the pieces of HTTP/2's header compression that the generator has."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from modelyard.loadtests.compare._statistics import ratio, tail
from modelyard.loadtests.generate import Log, Outcome
from modelyard.loadtests.generate._server_metrics import parse_page, splits
from modelyard.loadtests.scenarios._events import latency_step


def log_of(latency_ms: np.ndarray, *, outcome: Outcome = Outcome.OK) -> Log:
    count = len(latency_ms)
    intended = np.linspace(0, 10, count, endpoint=False)
    return Log(
        kinds=("grpc image",),
        kind=np.zeros(count, np.uint16),
        intended=intended,
        sent=intended,
        done=intended + latency_ms / 1000,
        outcome=np.full(count, outcome, np.uint8),
        rows=np.ones(count, np.int64),
        matches=np.ones(count, np.int64),
        seconds=10,
    )


def test_equal_servers_are_equal_most_of_the_time() -> None:
    """Of 95 % intervals, 95 % hold the truth, by four standard errors; with 1.96 for Student's t, 89 % would."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(4000):
        pairs = [(math.exp(rng.normal()), 1.25 * math.exp(rng.normal())) for _ in range(6)]
        found = ratio(pairs)
        held += found.low <= 1.25 <= found.high
    assert held / 4000 == pytest.approx(0.95, abs=0.014)


def test_a_ratio_without_noise_is_exact() -> None:
    found = ratio([(2.0, 3.0), (20.0, 30.0)])
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.5, 1.5))


def test_the_tail_knows_how_sure_it_is() -> None:
    rng = np.random.default_rng(1)
    logs = [log_of(rng.exponential(10, 4000)) for _ in range(2)]
    truth = -10 * math.log(0.01)
    found = tail(logs, 99, limit_ms=truth)
    assert found.interval.low < truth < found.interval.high
    assert found.interval.value == pytest.approx(truth, rel=0.1)
    assert tail(logs, 99, limit_ms=truth * 1.5).below == 1
    assert tail(logs, 99, limit_ms=truth / 1.5).below == 0
    # Beside the limit, nobody knows.
    assert 0.05 < tail(logs, 99, limit_ms=found.interval.value).below < 0.95
    failed = dataclasses.replace(logs[1], outcome=np.full(4000, Outcome.TIMEOUT, np.uint8), done=logs[1].done + 9.0)
    assert tail([logs[0], failed], 99, limit_ms=truth) == tail(logs[:1], 99, limit_ms=truth)


def test_the_tail_of_latencies_that_depend_on_each_other_is_less_sure() -> None:
    """Forty moments, each with a hundred requests of one latency, are no four thousand latencies."""
    rng = np.random.default_rng(2)
    latency = rng.exponential(10, 40).repeat(100)
    together = tail([log_of(latency)], 90, limit_ms=1.0).interval
    apart = tail([log_of(rng.permutation(latency))], 90, limit_ms=1.0).interval
    assert together.value == pytest.approx(apart.value)
    assert together.high - together.low > 3 * (apart.high - apart.low)


def test_a_step_is_seen_after_events_only() -> None:
    latency = np.full(1000, 5.0)
    log = log_of(latency)
    latency[(log.intended >= 4) & (log.intended < 5)] = 80.0
    assert latency_step(log_of(latency), [4.0]) == pytest.approx(75)
    assert latency_step(log_of(latency), [8.0]) == 0
    # Not after them alone: an event is looked around for two seconds.
    assert latency_step(log_of(latency), [1.0]) == 0
    assert latency_step(log_of(latency), []) is None


def test_failures_have_no_latency() -> None:
    row = log_of(np.full(10, 1.0), outcome=Outcome.TIMEOUT).measured()
    assert (row.requests, row.failures, row.p99_ms, row.answered_per_s) == (10, 10, 0, 0)


PAGE = """\
# HELP :tensorflow:serving:request_latency x
:tensorflow:serving:request_latency_bucket{{model_name="m",le="10"}} 5
:tensorflow:serving:request_latency_sum{{model_name="m",API="Predict",entrypoint="GRPC"}} {a}
:tensorflow:serving:request_latency_count{{model_name="m",API="Predict",entrypoint="GRPC"}} {n}
:tensorflow:serving:request_latency_sum{{model_name="m",API="predict",entrypoint="REST"}} 0
:tensorflow:serving:request_latency_count{{model_name="m",API="predict",entrypoint="REST"}} 0
:tensorflow:serving:runtime_latency_sum{{model_name="m"}} {b}
:tensorflow:serving:batching_session:queuing_latency_sum{{model_name="m"}} {c}
"""


def test_the_servers_time_is_split() -> None:
    pages = [
        parse_page(PAGE.format(a=0, n=0, b=0, c=0), 0),
        parse_page(PAGE.format(a=8000, n=4, b=2000, c=4000), 1),
        parse_page(PAGE.format(a=8000, n=4, b=2000, c=4000), 2),
    ]
    (found,) = splits(pages)
    assert (found.requests, found.total_ms, found.compute_ms, found.queue_ms, found.rest_ms) == (4, 2, 0.5, 1, 0.5)


@pytest.mark.parametrize("value", ["abc", "NaN", "+Inf", "1e999", "-1", "1_", ""])
def test_what_is_no_number_on_the_server_s_page_is_left_out(value: str) -> None:
    page = PAGE.format(a=8000, n=4, b=2000, c=4000) + f":tensorflow:serving:request_latency_count {value}\n"
    assert parse_page(page, 1).counts == {":tensorflow:serving:request_latency": 4}
