"""The Prometheus page, character by character."""

from __future__ import annotations

import pytest

from modelyard.serving.metrics import FAMILIES, LATENCY_BUCKETS_US, Metrics
from tests.support.metrics import page_of

COUNTER = ":tensorflow:serving:request_count"
HISTOGRAM = ":tensorflow:serving:request_example_counts"
GAUGE = ":modelyard:serving:requests_in_flight"
EXAMPLE_BUCKETS = next(family.buckets for family in FAMILIES if family.name == HISTOGRAM)
PADDING = ":tensorflow:serving:batching_session:wrapped_run_count"


def lines_of(metrics: Metrics, name: str) -> list[str]:
    # Of this family alone: its lines follow those that describe it.
    _, found, rest = page_of(metrics).partition(f"# HELP {name} ")
    return [
        found + line if index == 0 else line for index, line in enumerate(rest.partition("\n# HELP ")[0].splitlines())
    ]


def test_a_counter() -> None:
    metrics = Metrics()
    metrics.count(COUNTER, {"model_name": "abc", "status": "OK"})
    metrics.count(COUNTER, {"model_name": "abc", "status": "OK"})
    assert lines_of(metrics, COUNTER) == [
        f"# HELP {COUNTER} Requests by model and status.",
        f"# TYPE {COUNTER} counter",
        f'{COUNTER}{{model_name="abc",status="OK"}} 2',
    ]


def test_a_counter_without_labels() -> None:
    metrics = Metrics()
    metrics.count(PADDING, {}, 5)
    assert lines_of(metrics, PADDING)[-1] == f"{PADDING}{{}} 5"


def test_a_histogram() -> None:
    metrics = Metrics()
    for value in (2, 20, 200):
        metrics.observe(HISTOGRAM, {"model": "good"}, value)
    bounds = [f"{bound:g}" for bound in EXAMPLE_BUCKETS]
    counts = [sum(value <= bound for value in (2, 20, 200)) for bound in EXAMPLE_BUCKETS]
    assert lines_of(metrics, HISTOGRAM)[2:] == [
        *(f'{HISTOGRAM}_bucket{{model="good",le="{b}"}} {c}' for b, c in zip(bounds, counts, strict=True)),
        f'{HISTOGRAM}_bucket{{model="good",le="+Inf"}} 3',
        f'{HISTOGRAM}_sum{{model="good"}} 222',
        f'{HISTOGRAM}_count{{model="good"}} 3',
    ]


def test_upstream_s_buckets() -> None:
    assert len(LATENCY_BUCKETS_US) == 33
    assert [f"{bound:g}" for bound in LATENCY_BUCKETS_US[:6]] == ["10", "18", "32.4", "58.32", "104.976", "188.957"]
    assert LATENCY_BUCKETS_US[-1] == pytest.approx(10 * 1.8**32)
    (queue,) = (family.buckets for family in FAMILIES if family.name.endswith("batching_session:queuing_latency"))
    assert (len(queue), [f"{bound:g}" for bound in queue[:3]]) == (52, ["100", "120", "144"])


@pytest.mark.parametrize(
    ("value", "text"), [('"abc\\"', '\\"abc\\\\\\"'), ("a\nb", "a\\nb"), ("ü", "ü"), ("a,b}", "a,b}")]
)
def test_label_values_are_escaped(value: str, text: str) -> None:
    metrics = Metrics()
    metrics.count(PADDING, {"name": value})
    assert lines_of(metrics, PADDING)[-1] == f'{PADDING}{{name="{text}"}} 1'


def test_names_that_nobody_serves_share_a_series() -> None:
    metrics = Metrics()
    metrics.know("real")
    statuses = ("NOT_FOUND", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "FAILED_PRECONDITION")
    for number in range(100):
        for status in statuses:
            metrics.record_request(f"made up {number}", api="predict", entrypoint="REST", status=status, seconds=0.1)
    metrics.record_request("real", api="predict", entrypoint="REST", status="NOT_FOUND", seconds=0.1)
    assert lines_of(metrics, COUNTER)[2:] == [
        *(f'{COUNTER}{{model_name="",status="{status}"}} 100' for status in statuses),
        f'{COUNTER}{{model_name="real",status="NOT_FOUND"}} 1',
    ]


def test_every_family_is_on_the_page_from_the_start() -> None:
    text = page_of(Metrics())
    for family in FAMILIES:
        assert f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n" in text


def test_a_gauge_is_read_when_the_page_is() -> None:
    metrics, waiting = Metrics(), [1]
    metrics.watch(GAUGE, {}, lambda: len(waiting))
    waiting.append(2)
    assert f"{GAUGE}{{}} 2\n" in page_of(metrics)
