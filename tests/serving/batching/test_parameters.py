"""Batch parameters, as TensorFlow Serving has them: padding, splitting, waiting for company, a bounded queue."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InternalError, InvalidInputError, UnavailableError
from modelyard.serving import ModelSpec, Predictor, PredictRequest
from modelyard.serving.batching._queue import merge
from modelyard.serving.config import BatchParameters
from tests.serving.batching.asking import ask, blocked, queued, run
from tests.support.doubler import Doubler
from tests.support.metrics import page_of, series_of, value

PREFIX = ":tensorflow:serving:batching_session:"


@pytest.mark.parametrize(
    ("sizes", "batch", "computed"),
    [
        ((1, 3, 4), [1.0], [1]),
        ((1, 3, 4), [1.0, 2.0], [1, 2, 1]),
        ((4,), [5.0], [5, 5, 5, 5]),
        ((), [1.0, 2.0], [1, 2]),
    ],
)
def test_padding_to_allowed_sizes(
    tmp_path: Path, backend: Doubler, sizes: tuple[int, ...], batch: list[float], computed: list[float]
) -> None:
    async def test(predictor: Predictor) -> None:
        assert await ask(predictor, *batch) == [2 * value for value in batch]
        assert backend.batches == [computed]
        padding = f'{PREFIX}padding_size_sum{{execution_batch_size="{len(computed)}"}} {len(computed) - len(batch)}'
        assert padding in page_of(predictor._metrics)

    run(tmp_path, backend, test, batching=BatchParameters(max_batch_size=4, allowed_batch_sizes=sizes))


def test_a_batch_waits_for_company_and_no_longer(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        started = time.monotonic()
        # What has not changed a state may be batched with --enable_batching, proven or not.
        assert await asyncio.gather(*(ask(predictor, float(n)) for n in range(4))) == [[2.0 * n] for n in range(4)]
        assert (sorted(backend.batches[0]), len(backend.batches)) == ([0.0, 1.0, 2.0, 3.0], 1)
        assert time.monotonic() - started < 2
        started = time.monotonic()
        assert await ask(predictor, 5.0, 6.0) == [10.0, 12.0]
        assert 2 <= time.monotonic() - started < 20
        series = series_of(page_of(predictor._metrics))
        assert 2e6 <= value(series, f"{PREFIX}queuing_latency_sum", thread_pool_name="batch_threads") < 30e6

    parameters = BatchParameters(max_batch_size=4, timeout_s=2)
    run(tmp_path, backend, test, row_wise=False, workers=2, batching=parameters)


def test_a_batch_that_is_more_than_full_waits_for_nobody(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend, 1.0, 2.0, 3.0, 4.0)
        tasks = await queued(predictor, ask(predictor, 5.0, 6.0, 7.0), ask(predictor, 8.0, 9.0))
        backend.gate.set()
        answers = await asyncio.wait_for(asyncio.gather(first, tasks[0]), 10)
        assert answers[1] == [10.0, 12.0, 14.0]
        # With those who come, the rest is full, too.
        answers = await asyncio.wait_for(asyncio.gather(tasks[1], ask(predictor, 1.0, 2.0)), 10)
        assert [*answers] == [[16.0, 18.0], [2.0, 4.0]]

    run(tmp_path, backend, test, batching=BatchParameters(max_batch_size=4, timeout_s=60))


def test_padding_repeats_the_last_request_s_first_row(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        tasks = await queued(predictor, ask(predictor, 1.0, 2.0), ask(predictor, 3.0, 4.0))
        backend.gate.set()
        assert await asyncio.gather(first, *tasks) == [[0.0], [2.0, 4.0], [6.0, 8.0]]
        assert backend.batches[-1] == [1, 2, 3, 4, 3, 3, 3, 3]
        page = page_of(predictor._metrics)
        assert f"{PREFIX}wrapped_run_count{{}} 2" in page
        assert f"{PREFIX}input_batch_size_count{{}} 3" in page
        assert f'{PREFIX}queuing_latency_count{{thread_pool_name="batch_threads"}} 3' in page

    run(tmp_path, backend, test, batching=BatchParameters(max_batch_size=8, allowed_batch_sizes=(8,)))


def test_a_large_request_is_refused_or_split(tmp_path: Path, backend: Doubler) -> None:
    async def refused(predictor: Predictor) -> None:
        with pytest.raises(InvalidInputError, match="Task size 3 is larger than maximum input batch size 2"):
            await ask(predictor, 1.0, 2.0, 3.0)
        assert backend.batches == []
        assert await ask(predictor) == []

    run(tmp_path, backend, refused, batching=BatchParameters(max_batch_size=2, allowed_batch_sizes=(2,)))
    backend.batches.clear()

    async def split(predictor: Predictor) -> None:
        assert await ask(predictor, 1.0, 2.0, 3.0, 4.0, 5.0) == [2.0, 4.0, 6.0, 8.0, 10.0]
        assert backend.batches == [[1, 2], [3, 4], [5]]
        # One part that fails is the request's failure.
        with pytest.raises(InvalidInputError, match="13 is not computed"):
            await ask(predictor, 1.0, 2.0, 13.0)
        row = predictor.statistics.of("m", 1)
        assert (row.success.count, row.fail.count, row.inference_count, row.execution_count) == (1, 1, 5, 3)
        assert predictor.waiting == 0

    parameters = BatchParameters(
        max_batch_size=10, split_large=True, max_execution_batch_size=2, allowed_batch_sizes=(1, 2)
    )
    run(tmp_path, backend, split, batching=parameters)
    backend.batches.clear()

    async def uneven(predictor: Predictor) -> None:
        assert await ask(predictor, *map(float, range(9))) == [2.0 * n for n in range(9)]
        assert [len(batch) for batch in backend.batches] == [6, 3]

    parameters = BatchParameters(max_batch_size=10, split_large=True, max_execution_batch_size=6)
    run(tmp_path, backend, uneven, batching=parameters)


def test_what_has_no_rows_is_refused_by_name(tmp_path: Path, backend: Doubler) -> None:
    backend.signature = replace(backend.signature, inputs=(TensorSpec(name="x", dtype="float32", shape=None),))

    async def test(predictor: Predictor) -> None:
        request = PredictRequest(spec=ModelSpec(name="m"), inputs=lambda _: {"x": np.array(3, np.float32)}, small=True)
        with pytest.raises(InvalidInputError, match="must have at least one dimension; 'x' has none"):
            await predictor.submit(request, lambda prediction: prediction)
        assert (predictor.waiting, backend.batches) == (0, [])

    run(tmp_path, backend, test, batching=BatchParameters())


def test_a_batch_queue_is_bounded(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        kept = await queued(predictor, ask(predictor, 1.0, 2.0), ask(predictor, 3.0), ask(predictor, 4.0))
        for values in ([5.0], [6.0, 7.0]):
            with pytest.raises(UnavailableError, match="queue to which this task was submitted is full"):
                await ask(predictor, *values)
        backend.gate.set()
        assert await asyncio.gather(first, *kept) == [[0.0], [2.0, 4.0], [6.0], [8.0]]

    run(tmp_path, backend, test, batching=BatchParameters(max_batch_size=2, max_enqueued_batches=2))


@pytest.mark.parametrize("zeros", [False, True])
def test_inner_shapes_are_padded(tmp_path: Path, backend: Doubler, zeros: bool) -> None:
    backend.signature = Signature(
        inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, -1)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1, -1)),),
        compute="g",
    )

    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend, [0.0])
        tasks = await queued(predictor, ask(predictor, [1, 2, 3]), ask(predictor, [5], [7]))
        backend.gate.set()
        filler = 0 if zeros else 5
        await asyncio.gather(first, *tasks)
        assert np.array(backend.batches[-1]).tolist() == [[1, 2, 3], [5, filler, filler], [7, filler, filler]]
        # Nothing to pad, and nothing to pad with.
        first = await blocked(predictor, backend, [0.0])
        tasks = await queued(predictor, ask(predictor, []), ask(predictor, [], []))
        backend.gate.set()
        await asyncio.gather(first, *tasks)
        assert np.array(backend.batches[-1]).shape == (3, 0)

    parameters = BatchParameters(pad_variable_length=True, pad_with_zeros=zeros)
    run(tmp_path, backend, test, batching=parameters)


@pytest.mark.parametrize(("zeros", "filler"), [(True, b""), (False, b"c")])
def test_texts_are_padded_with_text(zeros: bool, filler: bytes) -> None:
    parts = [{"x": np.array([words], dtype=object)} for words in ([b"a", b"b"], [b"c"])]
    merged = merge(parts, BatchParameters(pad_variable_length=True, pad_with_zeros=zeros))
    assert merged["x"].tolist() == [[b"a", b"b"], [b"c", filler]]


def test_what_cannot_be_padded_is_computed_alone(tmp_path: Path, backend: Doubler) -> None:
    backend.signature = Signature(
        inputs=(TensorSpec(name="x", dtype="float32", shape=None),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=None),),
        compute="g",
    )

    async def test(predictor: Predictor) -> None:
        for odd in ([[1.0, 2.0]], []):
            first = await blocked(predictor, backend, [0.0])
            tasks = await queued(predictor, ask(predictor, odd), ask(predictor, [5.0]))
            backend.gate.set()
            _, *answers = await asyncio.gather(first, *tasks)
            assert answers == [(np.array([odd]) * 2).tolist(), [[10.0]]]

    run(tmp_path, backend, test, batching=BatchParameters(pad_variable_length=True))


def test_stopping_drops_what_has_not_begun(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        (waiting,) = await queued(predictor, ask(predictor, 1.0))
        await asyncio.to_thread(predictor.close)
        with pytest.raises(UnavailableError, match="stopping"):
            await waiting
        with pytest.raises(UnavailableError, match="stopping"):
            await ask(predictor, 1.0)
        assert (backend.batches, predictor.waiting) == ([], 0)

    run(tmp_path, backend, test, batching=BatchParameters(timeout_s=3600))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    requests=st.lists(st.lists(st.integers(0, 15), max_size=6), min_size=1, max_size=12),
    sizes=st.sampled_from([(), (4,), (1, 2, 4), (3, 4)]),
    timeout_ms=st.sampled_from([0, 1, 3]),
    threads=st.integers(1, 3),
    split=st.booleans(),
)
def test_results_never_depend_on_neighbours_in_any_batches(
    tmp_path: Path, requests: list[list[int]], sizes: tuple[int, ...], timeout_ms: int, threads: int, split: bool
) -> None:
    """Random rows, batch settings and bad neighbours: everybody gets what they would get alone."""
    parameters = BatchParameters(
        max_batch_size=4, allowed_batch_sizes=sizes, timeout_s=timeout_ms / 1e3, max_enqueued_batches=100,
        split_large=split,
    )  # fmt: skip

    async def test(predictor: Predictor) -> None:
        asked = (ask(predictor, *map(float, values)) for values in requests)
        results = await asyncio.gather(*asked, return_exceptions=True)
        for values, result in zip(requests, results, strict=True):
            found = type(result) if isinstance(result, Exception) else result
            assert found == alone(values, split=split), values

    run(tmp_path, Doubler(), test, batching=parameters, workers=threads)


def alone(values: list[int], *, split: bool) -> list[float] | type[Exception]:
    """What a request gets that has the server to itself."""
    if len(values) > 4 and not split:
        return InvalidInputError
    for start in range(0, len(values), 4):
        part = values[start : start + 4]
        if 13 in part or 14 in part:
            return InvalidInputError if 13 in part else InternalError
    return [2.0 * value for value in values]
