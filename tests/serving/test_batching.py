"""Batching, without a server: what is merged, padded, split, refused; and that neighbours never matter."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelyard.errors import (
    ConfigurationError,
    DeadlineExceededError,
    InternalError,
    InvalidInputError,
    ModelNotReadyError,
    ModelyardError,
    PredictionError,
    RequestCancelledError,
    UnavailableError,
)
from modelyard.serving._batch_parameters import BatchParameters, read_batch_parameters
from modelyard.serving._batching import BatchScheduler
from modelyard.serving._metrics import Metrics
from modelyard.serving._requests import Caller

Arrays = dict[str, npt.NDArray[Any]]
PREFIX = ":tensorflow:serving:batching_session:"


class HalfPlusTwo:
    """y = x / 2 + 2, remembering what it was run with; refuses 13 and breaks on 14."""

    def __init__(self) -> None:
        self.batches: list[npt.NDArray[Any]] = []
        self.entered = threading.Event()
        self.open = threading.Event()
        self.open.set()

    def __call__(self, inputs: Mapping[str, npt.NDArray[Any]]) -> Arrays:
        self.entered.set()
        self.open.wait(30)
        x = inputs["x"]
        self.batches.append(x)
        if (x == 13).any():
            raise PredictionError("13 is not computed")
        if (x == 14).any():
            raise RuntimeError("boom")
        return {"y": x / 2 + 2}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def scheduler(metrics: Metrics) -> Iterator[BatchScheduler]:
    scheduler = BatchScheduler(threads=1, metrics=metrics)
    yield scheduler
    scheduler.close()


def x_of(*values: float) -> Arrays:
    return {"x": np.array(values, np.float32)}


def together(
    scheduler: BatchScheduler, model: HalfPlusTwo, parameters: BatchParameters, requests: list[Arrays]
) -> list[Future[Arrays]]:
    """Sends requests that wait for each other: the only thread is busy until all are queued, in this order."""
    pool = ThreadPoolExecutor(len(requests) + 1)
    model.open.clear()
    busy = pool.submit(scheduler.compute, "busy", x_of(0.0), BatchParameters(), model)
    assert model.entered.wait(30)
    futures = []
    for number, request in enumerate(requests, start=1):
        futures.append(pool.submit(scheduler.compute, "model", request, parameters, model))
        while scheduler.queued < number and not futures[-1].done():
            time.sleep(0.001)
    model.open.set()
    busy.result(30)
    model.batches = [batch for batch in model.batches if batch.tolist() != [0.0]]
    pool.shutdown(wait=False)
    return futures


def test_requests_are_merged_in_order(scheduler: BatchScheduler, metrics: Metrics) -> None:
    model = HalfPlusTwo()
    futures = together(scheduler, model, BatchParameters(), [x_of(1, 2), x_of(3), x_of(4, 5, 6)])
    assert [future.result(30)["y"].tolist() for future in futures] == [[2.5, 3.0], [3.5], [4.0, 4.5, 5.0]]
    assert [batch.tolist() for batch in model.batches if batch[0] != 0] == [[1, 2, 3, 4, 5, 6]]
    page = metrics.render()
    assert f"{PREFIX}wrapped_run_count{{}} 2" in page
    assert f"{PREFIX}input_batch_size_count{{}} 4" in page
    assert f"{PREFIX}processed_batch_size_sum{{}} 7" in page
    assert f'{PREFIX}queuing_latency_count{{thread_pool_name="batch_threads"}} 4' in page


@pytest.mark.parametrize(
    ("allowed", "rows", "computed"),
    [((1, 3, 4), 1, 1), ((1, 3, 4), 2, 3), ((1, 3, 4), 3, 3), ((1, 3, 4), 4, 4), ((), 2, 2), ((4,), 1, 4)],
)
def test_padding_to_allowed_sizes(
    scheduler: BatchScheduler, metrics: Metrics, allowed: tuple[int, ...], rows: int, computed: int
) -> None:
    model = HalfPlusTwo()
    values = [float(value + 1) for value in range(rows)]
    answer = scheduler.compute(
        "model", x_of(*values), BatchParameters(max_batch_size=4, allowed_batch_sizes=allowed), model
    )
    assert answer["y"].tolist() == [value / 2 + 2 for value in values]
    # Padding repeats the first row of the last request.
    assert model.batches[0].tolist() == values + [1.0] * (computed - rows)
    padding = f'{PREFIX}padding_size_sum{{execution_batch_size="{computed}"}} {computed - rows}'
    assert padding in metrics.render()


def test_padding_repeats_the_last_request_s_first_row(scheduler: BatchScheduler) -> None:
    model = HalfPlusTwo()
    parameters = BatchParameters(max_batch_size=8, allowed_batch_sizes=(8,))
    futures = together(scheduler, model, parameters, [x_of(1, 2), x_of(3, 4)])
    assert [future.result(30)["y"].tolist() for future in futures] == [[2.5, 3.0], [3.5, 4.0]]
    assert model.batches[-1].tolist() == [1, 2, 3, 4, 3, 3, 3, 3]


def test_a_request_larger_than_a_batch(scheduler: BatchScheduler) -> None:
    model = HalfPlusTwo()
    with pytest.raises(InvalidInputError, match="Task size 3 is larger than maximum input batch size 2"):
        scheduler.compute("model", x_of(1, 2, 3), BatchParameters(max_batch_size=2), model)
    assert model.batches == []


def test_a_large_request_is_split(scheduler: BatchScheduler) -> None:
    model = HalfPlusTwo()
    parameters = BatchParameters(
        max_batch_size=10, split_large=True, max_execution_batch_size=2, allowed_batch_sizes=(1, 2)
    )
    answer = scheduler.compute("model", x_of(1, 2, 3, 4, 5), parameters, model)
    assert answer["y"].tolist() == [2.5, 3.0, 3.5, 4.0, 4.5]
    assert [batch.tolist() for batch in model.batches] == [[1, 2], [3, 4], [5]]


def test_an_empty_request_is_computed(scheduler: BatchScheduler) -> None:
    parameters = BatchParameters(max_batch_size=4, allowed_batch_sizes=(2, 4))
    assert scheduler.compute("model", x_of(), parameters, HalfPlusTwo())["y"].shape == (0,)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"a": np.zeros(1), "b": np.zeros(2)}, "must have equal 0th-dimension size"),
        ({"a": np.zeros(())}, "must have at least one dimension"),
    ],
)
def test_inputs_that_cannot_be_batched(
    scheduler: BatchScheduler, metrics: Metrics, inputs: Arrays, message: str
) -> None:
    before = metrics.render()
    with pytest.raises(InvalidInputError, match=f"Batching Run\\(\\) input tensors {message}"):
        scheduler.compute("model", inputs, BatchParameters(), HalfPlusTwo())
    assert metrics.render() == before


def test_an_output_without_a_batch_dimension(scheduler: BatchScheduler) -> None:
    with pytest.raises(ModelNotReadyError, match="Batched output tensor 'sum' .* 0th dimension does not equal the sum"):
        scheduler.compute("model", x_of(1, 2), BatchParameters(), lambda inputs: {"sum": np.sum(inputs["x"])})


def test_the_queue_is_bounded(scheduler: BatchScheduler) -> None:
    model = HalfPlusTwo()
    parameters = BatchParameters(max_batch_size=2, max_enqueued_batches=2)
    futures = together(scheduler, model, parameters, [x_of(1, 2), x_of(3), x_of(4), x_of(5), x_of(6, 7)])
    assert [future.result(30)["y"].tolist() for future in futures[:3]] == [[2.5, 3.0], [3.5], [4.0]]
    for future in futures[3:]:
        with pytest.raises(
            UnavailableError, match="The batch scheduling queue to which this task was submitted is full"
        ):
            future.result(30)


def test_inner_shapes_are_padded_with_a_tensor_s_first_element(scheduler: BatchScheduler) -> None:
    model = HalfPlusTwo()
    requests = [{"x": np.array([[1.0, 2.0, 3.0]])}, {"x": np.array([[5.0], [7.0]])}]
    futures = together(scheduler, model, BatchParameters(pad_variable_length=True), requests)
    assert futures[0].result(30)["y"].tolist() == [[2.5, 3.0, 3.5]]
    assert futures[1].result(30)["y"].tolist() == [[4.5, 4.5, 4.5], [5.5, 4.5, 4.5]]
    assert model.batches[-1].tolist() == [[1, 2, 3], [5, 5, 5], [7, 5, 5]]


def test_inner_shapes_are_padded_with_zeros_where_asked(scheduler: BatchScheduler) -> None:
    model = HalfPlusTwo()
    requests = [{"x": np.array([[1.0, 2.0, 3.0]])}, {"x": np.zeros((1, 0))}, {"x": np.array([[5.0]])}]
    parameters = BatchParameters(pad_variable_length=True, pad_with_zeros=True)
    for future in together(scheduler, model, parameters, requests):
        future.result(30)
    assert model.batches[-1].tolist() == [[1, 2, 3], [0, 0, 0], [5, 0, 0]]


def test_different_inner_shapes_are_computed_apart_without_padding(scheduler: BatchScheduler) -> None:
    model = HalfPlusTwo()
    requests = [{"x": np.array([[1.0, 2.0]])}, {"x": np.array([[5.0]])}, {"x": np.array([[3.0, 4.0]])}]
    futures = together(scheduler, model, BatchParameters(), requests)
    assert [future.result(30)["y"].tolist() for future in futures] == [[[2.5, 3.0]], [[4.5]], [[3.5, 4.0]]]
    assert sorted(batch.shape for batch in model.batches) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(("bad", "kind"), [(13, PredictionError), (14, InternalError)])
def test_a_bad_neighbour_pays_alone(scheduler: BatchScheduler, bad: int, kind: type[ModelyardError]) -> None:
    model = HalfPlusTwo()
    futures = together(scheduler, model, BatchParameters(), [x_of(1), x_of(bad), x_of(3)])
    assert [futures[0].result(30)["y"].tolist(), futures[2].result(30)["y"].tolist()] == [[2.5], [3.5]]
    with pytest.raises(kind):
        futures[1].result(30)


def test_low_priority_goes_last_and_who_is_gone_costs_nothing(scheduler: BatchScheduler) -> None:
    model = HalfPlusTwo()
    model.open.clear()
    parameters = BatchParameters(max_batch_size=1, threads=1)
    gone = Caller()
    callers = {2.0: Caller(low_priority=True), 3.0: gone, 4.0: None, 5.0: Caller(deadline=time.monotonic() + 0.05)}
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(scheduler.compute, "k", x_of(1.0), parameters, model)
        assert model.entered.wait(10)
        tasks = {}
        for value, caller in callers.items():
            tasks[value] = pool.submit(scheduler.compute, "k", x_of(value), parameters, model, caller=caller)
            while scheduler.queued < len(tasks):
                time.sleep(0.001)
        gone.leave()
        time.sleep(0.06)
        model.open.set()
        assert first.result()["y"].tolist() == [2.5]
        assert [tasks[value].result()["y"].tolist() for value in (2.0, 4.0)] == [[3.0], [4.0]]
        with pytest.raises(RequestCancelledError):
            tasks[3.0].result()
        with pytest.raises(DeadlineExceededError):
            tasks[5.0].result()
    assert [batch.tolist() for batch in model.batches] == [[1.0], [4.0], [2.0]]


def test_closing_computes_what_is_queued(metrics: Metrics) -> None:
    scheduler = BatchScheduler(threads=2, metrics=metrics)
    with ThreadPoolExecutor(4) as pool:
        slow = BatchParameters(timeout_s=3600.0)
        futures = [pool.submit(scheduler.compute, "model", x_of(value), slow, HalfPlusTwo()) for value in range(4)]
        while scheduler.queued < 4:
            time.sleep(0.001)
        scheduler.close()
        assert [future.result(30)["y"].tolist() for future in futures] == [[2.0], [2.5], [3.0], [3.5]]
    with pytest.raises(UnavailableError, match="stopping"):
        scheduler.compute("model", x_of(1), BatchParameters(), HalfPlusTwo())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(st.lists(st.integers(0, 15), max_size=6), min_size=1, max_size=12),
    seed=st.integers(0, 1 << 16),
    sizes=st.sampled_from([(), (4,), (1, 2, 4), (3, 4)]),
    timeout_ms=st.sampled_from([0, 1, 3]),
    threads=st.integers(1, 3),
    split=st.booleans(),
)
def test_results_never_depend_on_neighbours(
    requests: list[list[int]], seed: int, sizes: tuple[int, ...], timeout_ms: int, threads: int, split: bool
) -> None:
    """Random rows, arrival times, batch settings and bad neighbours: everybody gets what they would get alone."""
    random_ = random.Random(seed)
    parameters = BatchParameters(
        max_batch_size=4, allowed_batch_sizes=sizes, timeout_s=timeout_ms / 1e3, max_enqueued_batches=100,
        split_large=split,
    )  # fmt: skip
    scheduler = BatchScheduler(threads=threads, metrics=Metrics())
    model = HalfPlusTwo()

    def call(values: list[int], delay_s: float) -> list[float] | type[ModelyardError]:
        time.sleep(delay_s)
        try:
            return scheduler.compute("model", x_of(*values), parameters, model)["y"].tolist()
        except ModelyardError as exc:
            return type(exc)

    with ThreadPoolExecutor(len(requests)) as pool:
        futures = [pool.submit(call, values, random_.choice((0.0, 0.0, 0.002))) for values in requests]
        results = [future.result(60) for future in futures]
    scheduler.close()
    for values, result in zip(requests, results, strict=True):
        assert result == alone(values, split=split)


def alone(values: list[int], *, split: bool) -> list[float] | type[ModelyardError]:
    """What a request gets that has the server to itself."""
    if len(values) > 4 and not split:
        return InvalidInputError
    for start in range(0, len(values), 4):
        part = values[start : start + 4]
        if 13 in part or 14 in part:
            return PredictionError if 13 in part else InternalError
    return [value / 2 + 2 for value in values]


PARAMETERS = """
max_batch_size { value: 8 } batch_timeout_micros { value: 2500 } max_enqueued_batches { value: 3 }
num_batch_threads { value: 5 } thread_pool_name { value: "pool" } allowed_batch_sizes: 2 allowed_batch_sizes: 4
pad_variable_length_inputs: true enable_large_batch_splitting { value: true } max_execution_batch_size { value: 4 }
"""


def test_the_parameters_file(tmp_path: Path) -> None:
    file = tmp_path / "batching.config"
    file.write_text(PARAMETERS)
    assert read_batch_parameters(file) == BatchParameters(
        max_batch_size=8,
        timeout_s=0.0025,
        max_enqueued_batches=3,
        threads=5,
        pool_name="pool",
        allowed_batch_sizes=(2, 4),
        pad_variable_length=True,
        split_large=True,
        max_execution_batch_size=4,
    )
    file.write_text("")
    assert read_batch_parameters(file) == BatchParameters()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_size: 8", "in protobuf text format"),
        ("max_batch_size { value: 0 }", "max_batch_size is 0; expected a positive number"),
        ("batch_timeout_micros { value: -1 }", "batch_timeout_micros is -1"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: 4 allowed_batch_sizes: 2", "expected ascending"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: 4", "it must equal the largest batch, 8"),
        (
            "max_batch_size { value: 8 } enable_large_batch_splitting { value: true } "
            "max_execution_batch_size { value: 16 }",
            "must not exceed max_batch_size",
        ),
    ],
)
def test_parameters_that_make_no_sense(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "batching.config"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_batch_parameters(file)
