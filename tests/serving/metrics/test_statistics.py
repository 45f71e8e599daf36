"""Statistics of model versions: counts, parts of the time, and many threads at once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from modelyard.serving import ModelConfig, ServerOptions
from modelyard.serving.metrics import Duration, Execution, ExecutionStatistics, Metrics, ModelStatistics, RequestTimes
from modelyard.serving.runtime._version_loader import VersionLoader
from tests.support.models import publish_affine


def test_a_version_that_was_never_asked_has_zeros() -> None:
    row = ModelStatistics().of("m", 1)
    assert (row.name, row.version, row.last_inference_ms, row.execution_count) == ("m", 1, 0, 0)
    assert row.success == Duration()


def test_successes_and_failures_are_apart() -> None:
    statistics = ModelStatistics()
    statistics.record("m", 1, [RequestTimes(True, 10, 1, 2, 3, 4, 8)], [Execution(8, 2, 3, 4)])
    statistics.record("m", 1, [RequestTimes(False, 5, 1)])
    statistics.record("m", 2, [RequestTimes(True, 7)])
    row = statistics.of("m", 1)
    assert (row.inference_count, row.execution_count) == (8, 1)
    assert (row.success, row.fail) == (Duration(count=1, ns=10), Duration(count=1, ns=5))
    parts = (row.queue, row.compute_input, row.compute_infer, row.compute_output)
    assert [(part.count, part.ns) for part in parts] == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert statistics.of("m", 2).success.ns == 7


def test_requests_that_share_a_batch_are_one_execution() -> None:
    statistics = ModelStatistics()
    times = [RequestTimes(True, 100, 10, 2, 60, 6, 3), RequestTimes(True, 90, 5, 3, 60, 6, 1)]
    statistics.record("m", 1, [*times, RequestTimes(False, 70)], [Execution(4, 5, 60, 6)])
    statistics.record("m", 1, [RequestTimes(False, 5)])
    row = statistics.of("m", 1)
    assert (row.inference_count, row.execution_count, row.success.count, row.fail.count) == (4, 1, 2, 2)
    one = Duration(count=1, ns=60)
    assert row.batches == {
        4: ExecutionStatistics(compute_input=Duration(count=1, ns=5), compute_infer=one, compute_output=Duration(1, 6))
    }
    statistics.record("m", 1, times[:1], [Execution(8, 0, 50, 0)])
    assert (statistics.of("m", 1).execution_count, statistics.of("m", 1).inference_count) == (2, 7)
    assert statistics.of("m", 1).batches[8].compute_infer == Duration(count=1, ns=50)
    assert row.batches.keys() == {4}, "a copy changed"


def test_a_version_that_was_loaded_anew_keeps_its_statistics_when_the_old_one_ends(tmp_path: Path) -> None:
    statistics = ModelStatistics()
    loader = VersionLoader(ServerOptions(), Metrics(), statistics)
    old, new = (
        loader.load(ModelConfig(name="m", base_path=place), 1, place / "1")
        for place in (tmp_path / "a", tmp_path / "b")
        if publish_affine(place, slope=1.0, intercept=0.0)
    )
    statistics.record("m", 1, [RequestTimes(True, 10)])
    old.close()
    assert statistics.of("m", 1).success.count == 1
    new.close()
    assert statistics.of("m", 1).success.count == 0


def test_strangers_cannot_make_it_remember_any_number_of_sizes() -> None:
    statistics = ModelStatistics()
    for rows in range(1, 1001):
        statistics.record("m", 1, [RequestTimes(True, 1, rows=rows)], [Execution(rows, 0, 1, 0)])
    row = statistics.of("m", 1)
    assert (row.execution_count, row.inference_count) == (1000, 500_500)
    assert len(row.batches) == 256


def test_a_version_that_is_unloaded_is_forgotten_with_what_was_not_fetched_yet() -> None:
    statistics = ModelStatistics()
    uncounted = [RequestTimes(True, 1)]

    def fetch() -> None:
        while uncounted:
            statistics.record("m", 1, [uncounted.pop()])

    statistics.before_reading(fetch)
    statistics.record("m", 2, [RequestTimes(True, 1)])
    statistics.forget("m", 1)
    statistics.forget("m", 3)
    assert not uncounted
    assert [statistics.of("m", version).success.count for version in (1, 2)] == [0, 1]
    assert statistics.answered == 2


def test_a_copy_does_not_change() -> None:
    statistics = ModelStatistics()
    statistics.record("m", 1, [RequestTimes(True, 1)])
    row = statistics.of("m", 1)
    statistics.record("m", 1, [RequestTimes(True, 1)])
    assert (row.success.count, statistics.of("m", 1).success.count) == (1, 2)


def test_the_parts_of_a_request_are_its_whole() -> None:
    statistics = ModelStatistics()
    arrived = time.perf_counter_ns()
    with statistics.measure("m", 1, arrived_ns=arrived) as timing:
        timing.decoded(3)
        timing.computed()
    row = statistics.of("m", 1)
    assert row.inference_count == 3
    assert row.queue.ns + row.compute_input.ns + row.compute_infer.ns + row.compute_output.ns == row.success.ns


def test_an_exception_is_a_failure_and_goes_on() -> None:
    statistics = ModelStatistics()
    with pytest.raises(KeyError), statistics.measure("m", 1, arrived_ns=time.perf_counter_ns()):
        raise KeyError("x")
    row = statistics.of("m", 1)
    assert (row.fail.count, row.success.count, row.inference_count) == (1, 0, 0)


def test_no_count_is_lost_between_threads() -> None:
    statistics = ModelStatistics()

    def work() -> None:
        for _ in range(500):
            statistics.record("m", 1, [RequestTimes(True, 1, rows=2)], [Execution(2, 0, 1, 0)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = statistics.of("m", 1)
    assert (row.execution_count, row.inference_count, row.success.ns) == (2000, 4000, 2000)


def test_the_time_of_the_last_request_follows_the_clock() -> None:
    """It may have been set back; without a request it stays."""
    statistics = ModelStatistics()
    zeros = dict.fromkeys(("rows", "succeeded", "total_ns", "queue_ns", "input_ns", "infer_ns", "output_ns"), 0)
    seen = []
    for last_ms in (5000, 3000, 0):
        statistics.add_counted({"model": "m", "version": 1, "last_ms": last_ms, "executions": {}, **zeros})
        seen.append(statistics.of("m", 1).last_inference_ms)
    assert seen == [5000, 3000, 3000]
