"""Batch queues: what is batched, dropped, refused; and that neighbours never matter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidInputError,
    OverloadedError,
    RequestCancelledError,
)
from modelyard.serving import ModelConfig, ModelManager, ModelSpec, Predictor, PredictRequest, WatchOptions
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import Caller
from tests.serving.batching.asking import ask, blocked, queued, run
from tests.support.doubler import Arrays, Doubler, servable
from tests.support.metrics import page_of, series_of
from tests.support.waiting import until_async


def test_one_request_waits_for_nobody_and_neighbours_share_a_batch(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        tasks = await queued(predictor, *(ask(predictor, float(n)) for n in range(1, 11)))
        backend.gate.set()
        assert await asyncio.gather(first, *tasks) == [[2.0 * n] for n in range(11)]
        assert backend.batches == [[0.0], [float(n) for n in range(1, 11)]]
        row = predictor.statistics.of("m", 1)
        assert (row.inference_count, row.success.count, row.execution_count) == (11, 11, 2)
        assert {rows: part.compute_infer.count for rows, part in row.batches.items()} == {1: 1, 10: 1}

    run(tmp_path, backend, test)


def test_where_the_time_of_a_request_went(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        began = time.perf_counter()
        first = await blocked(predictor, backend)
        computing = time.perf_counter()
        (second,) = await queued(predictor, ask(predictor, 1.0))
        await asyncio.sleep(0.02)
        least_s = time.perf_counter() - computing
        backend.gate.set()
        await asyncio.gather(first, second)
        most_s = time.perf_counter() - began
        labels = {"model_name": "m", "API": "Predict", "runtime": "fake"}
        latency = predictor._metrics.histogram(":tensorflow:serving:runtime_latency", labels).value().native
        assert least_s * 1e6 <= latency.sum <= most_s * 1e6
        row = predictor.statistics.of("m", 1)
        parts = (row.queue.ns, row.compute_input.ns, row.compute_infer.ns, row.compute_output.ns)
        assert all(0 <= part <= 2e9 * most_s for part in parts)
        assert row.success.ns == sum(parts) and 1e9 * least_s <= row.success.ns <= 2e9 * most_s
        # In microseconds and in nanoseconds.
        assert latency.sum == pytest.approx(row.compute_infer.ns / 1e3, rel=1e-9)
        # The second waited for the first.
        assert row.queue.ns >= 0.02e9 and row.compute_infer.ns >= 0.02e9
        (each,) = row.batches.values()
        assert (each.compute_input.ns, each.compute_infer.ns) == (row.compute_input.ns, row.compute_infer.ns)

    run(tmp_path, backend, test)


def test_a_batch_has_as_many_rows_as_it_may(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        tasks = await queued(predictor, *(ask(predictor, float(n)) for n in range(1, 11)))
        backend.gate.set()
        assert await asyncio.gather(first, *tasks) == [[2.0 * n] for n in range(11)]
        assert max(len(batch) for batch in backend.batches) == 4
        # One request is not cut.
        assert await ask(predictor, *map(float, range(10))) == [2.0 * n for n in range(10)]
        assert backend.batches[-1] == [float(n) for n in range(10)]

    run(tmp_path, backend, test, max_batch_rows=4)


def test_only_requests_of_one_inner_shape_share_a_batch(tmp_path: Path, backend: Doubler) -> None:
    rows = ([1.0, 2.0], [3.0], [4.0, 5.0], [6.0])

    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        tasks = await queued(predictor, *(ask(predictor, row) for row in rows))
        backend.gate.set()
        answers = [np.array(answer) for answer in await asyncio.gather(first, *tasks)]
        assert [answer.tolist() for answer in answers[1:]] == [[[2 * x for x in row]] for row in rows]
        assert sorted(map(str, backend.batches[1:])) == ["[[1.0, 2.0], [4.0, 5.0]]", "[[3.0], [6.0]]"]

    backend.signature = replace(backend.signature, inputs=(TensorSpec(name="x", dtype="float32", shape=None),))
    run(tmp_path, backend, test)


def test_calls_that_change_a_state_come_one_after_the_other(tmp_path: Path, backend: Doubler) -> None:
    backend.signature = replace(backend.signature, stateful=True)

    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        second = asyncio.ensure_future(ask(predictor, 1.0))
        await until_async(lambda: predictor.waiting == 2)
        assert len(predictor._workers.of("m").computing) == 1
        backend.gate.set()
        assert [*await asyncio.gather(first, second)] == [[0.0], [2.0]]
        assert backend.batches == [[0.0], [1.0]]

    run(tmp_path, backend, test, workers=2, row_wise=False)


def test_models_whose_rows_depend_on_each_other_are_computed_one_by_one(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        await asyncio.gather(*(ask(predictor, float(n)) for n in range(3)))
        assert backend.batches == [[0.0], [1.0], [2.0]]

    run(tmp_path, backend, test, row_wise=False)


@pytest.mark.parametrize("small", [True, False])
def test_nobody_pays_for_requests_that_nobody_waits_for(tmp_path: Path, backend: Doubler, small: bool) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        deadline = time.monotonic() + 0.1
        callers = [None, Caller(deadline=deadline), Caller(gone=lambda: True), None]
        gone, late, hung_up, kept = (
            asyncio.ensure_future(ask(predictor, value, small=small, caller=caller))
            for value, caller in enumerate(callers, 1)
        )
        await until_async(lambda: time.monotonic() > deadline)
        gone.cancel()
        await asyncio.sleep(0)
        backend.gate.set()
        assert [await first, await kept] == [[0.0], [8.0]]
        with pytest.raises(asyncio.CancelledError):
            await gone
        with pytest.raises(DeadlineExceededError):
            await late
        with pytest.raises(RequestCancelledError):
            await hung_up
        assert backend.batches == [[0.0], [4.0]]
        assert predictor.waiting == 0

    run(tmp_path, backend, test)


def test_low_priority_goes_last(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        asked = (ask(predictor, float(n), caller=Caller(low_priority=n % 2 == 0)) for n in range(1, 7))
        tasks = await queued(predictor, *asked)
        backend.gate.set()
        assert await asyncio.gather(first, *tasks) == [[2.0 * n] for n in range(7)]
        assert sum(backend.batches, []) == [0, 1, 3, 5, 2, 4, 6]

    run(tmp_path, backend, test)


def test_a_bad_neighbour_pays_alone(tmp_path: Path, backend: Doubler, caplog: pytest.LogCaptureFixture) -> None:
    async def test(predictor: Predictor) -> None:
        values = [1.0, 13.0, 14.0, 2.0]
        asked = (ask(predictor, value, caller=Caller(request_id=f"call-{value:g}")) for value in values)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [answers[0], answers[3]] == [[2.0], [4.0]]
        assert isinstance(answers[1], InvalidInputError)
        assert isinstance(answers[2], InternalError)
        assert "boom" not in str(answers[2])
        predictions = {
            dict(labels)["status"]: count
            for (name, labels), count in series_of(page_of(predictor._metrics)).items()
            if name == ":modelyard:serving:predictions"
        }
        assert predictions == {"OK": 2, "INVALID_ARGUMENT": 1, "INTERNAL": 1}

    run(tmp_path, backend, test)
    # What callers are not told is in the log, by the id that they were given.
    (failure,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert failure.getMessage().startswith("request call-14: model m version 1 failed unexpectedly")
    assert "boom" in str(failure.exc_info and failure.exc_info[1])


def test_results_never_depend_on_neighbours(tmp_path: Path, backend: Doubler) -> None:
    rng = np.random.default_rng(0)

    async def one(predictor: Predictor, values: list[float]) -> None:
        await asyncio.sleep(float(rng.exponential(0.005)))
        caller = Caller(low_priority=bool(rng.random() < 0.3))
        task = asyncio.ensure_future(ask(predictor, *values, caller=caller, small=bool(rng.random() < 0.8)))
        if rng.random() < 0.1:
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return
        if 13.0 in values or 14.0 in values:
            with pytest.raises((InvalidInputError, InternalError)):
                await task
        else:
            assert await task == [2 * value for value in values]

    async def test(predictor: Predictor) -> None:
        requests = [rng.integers(0, 300, int(rng.integers(0, 9))).astype(float).tolist() for _ in range(600)]
        await asyncio.gather(*(one(predictor, values) for values in requests))
        # A cancelled request may be in a batch that is still computed.
        await until_async(lambda: predictor.waiting == 0)
        assert max(len(batch) for batch in backend.batches) > 8

    run(tmp_path, backend, test, workers=2)


class Adder(Doubler):
    """y = a + b, which broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.signature = Signature(
            inputs=tuple(TensorSpec(name=name, dtype="float32", shape=(-1,)) for name in "ab"),
            outputs=self.signature.outputs,
            compute="g",
        )

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        y = inputs["a"] + inputs["b"]
        self.batches.append(y.tolist())
        return {"y": y}


def test_requests_whose_inputs_have_different_rows_are_computed_alone(tmp_path: Path) -> None:
    """Their rows would not be in line with those of their neighbours."""
    backend = Adder()
    requests = [([4.0], [1.0, 2.0, 3.0]), ([2.0], [0.0]), ([1.0, 2.0, 3.0], [5.0]), ([7.0], [1.0])]

    async def one(predictor: Predictor, a: list[float], b: list[float]) -> list[float]:
        arrays = {"a": np.array(a, np.float32), "b": np.array(b, np.float32)}
        request = PredictRequest(spec=ModelSpec(name="m"), inputs=lambda _: arrays, small=True)
        result: list[float] = await predictor.submit(request, lambda prediction: prediction.outputs["y"].tolist())
        return result

    async def test(predictor: Predictor) -> None:
        for _ in range(3):
            answers = await asyncio.gather(*(one(predictor, a, b) for a, b in requests))
            assert answers == [[5.0, 6.0, 7.0], [2.0], [6.0, 7.0, 8.0], [8.0]]
        # Those that are even still share a batch.
        assert [2.0, 8.0] in backend.batches

    run(tmp_path, backend, test)


def test_what_would_wait_too_long_is_refused_at_admission(tmp_path: Path, backend: Doubler) -> None:
    class Quicker(Doubler):
        computes_in_caller = False

        def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
            time.sleep(0.02)
            return super().run(graph, inputs, outputs)

    async def test(predictor: Predictor) -> None:
        for _ in range(3):
            await ask(predictor, 1.0, small=False)

        async def timed(caller: Caller | None = None) -> float:
            started = time.monotonic()
            await ask(predictor, 1.0, caller=caller)
            return time.monotonic() - started

        answers = await asyncio.gather(*(timed() for _ in range(80)), return_exceptions=True)
        admitted = [answer for answer in answers if isinstance(answer, float)]
        refused = [answer for answer in answers if isinstance(answer, OverloadedError)]
        assert len(admitted) + len(refused) == 80
        assert 2 <= len(admitted) <= 35
        assert "overloaded" in str(refused[0])
        # A deadline is a limit too; an empty queue admits every request.
        soon = Caller(deadline=time.monotonic() + 0.03)
        both = await asyncio.gather(timed(), timed(), timed(soon), return_exceptions=True)
        assert isinstance(both[2], OverloadedError)
        await ask(predictor, 1.0, caller=Caller(deadline=time.monotonic() + 5))

    run(tmp_path, Quicker(), test, row_wise=False, max_queue_delay_s=0.5)


class Steady(Doubler):
    """A batch takes 40 ms, whatever it holds."""

    computes_in_caller = False

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        time.sleep(0.04)
        return super().run(graph, inputs, outputs)


def test_whoever_can_join_a_batch_is_not_refused(tmp_path: Path) -> None:
    """By what a row takes on the average, no more than six would ever be let in."""

    async def test(predictor: Predictor) -> None:
        # A batch of one is what is known of the model at first.
        for _ in range(5):
            await ask(predictor, 1.0)
        counts: list[int] = []
        while len(counts) < 20 and 60 not in counts:
            answers = await asyncio.gather(*(ask(predictor, 1.0) for _ in range(60)), return_exceptions=True)
            counts.append(sum(answer == [2.0] for answer in answers))
            assert all(answer == [2.0] or isinstance(answer, OverloadedError) for answer in answers)
        assert counts[0] <= 6
        assert counts[-1] == 60, counts

    run(tmp_path, Steady(), test, max_queue_delay_s=0.25)


@pytest.mark.parametrize("size", [0, 1000])
def test_decoding_counts_towards_the_wait(tmp_path: Path, backend: Doubler, size: int) -> None:
    """The model itself takes no time to speak of: what waits is bodies to be decoded."""

    async def test(predictor: Predictor) -> None:
        decoded = []

        async def one(size: int = size) -> list[float]:
            def inputs(_: Signature) -> Arrays:
                time.sleep(0.02)
                decoded.append(size)
                return {"x": np.array([1.0], np.float32)}

            request = PredictRequest(spec=ModelSpec(name="m"), inputs=inputs, small=False, size=size)
            answer: list[float] = await predictor.submit(request, lambda prediction: prediction.outputs["y"].tolist())
            return answer

        await one()
        answers = await asyncio.gather(*(one() for _ in range(80)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, OverloadedError)]
        assert 2 <= len(answers) - len(refused) <= 35
        assert len(decoded) == 1 + len(answers) - len(refused), "a refused request was decoded"
        assert all(answer == [2.0] for answer in answers if not isinstance(answer, OverloadedError))
        if size:
            # A hundred times as many bytes do not fit into the time that one more of the usual size would.
            three = await asyncio.gather(one(), one(100 * size), one(), return_exceptions=True)
            assert [isinstance(answer, OverloadedError) for answer in three] == [False, True, False]

    run(tmp_path, backend, test, max_queue_delay_s=0.5)


def test_bodies_that_cannot_be_decoded_cost_time_too(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        def inputs(_: Signature) -> Arrays:
            time.sleep(0.02)
            raise InvalidInputError("no image")

        request = PredictRequest(spec=ModelSpec(name="m"), inputs=inputs, small=False, size=10)
        with pytest.raises(InvalidInputError):
            await predictor.submit(request, lambda _: None)
        answers = await asyncio.gather(
            *(predictor.submit(request, lambda _: None) for _ in range(80)), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {InvalidInputError, OverloadedError}

    run(tmp_path, backend, test, max_queue_delay_s=0.5)


def test_other_work_counts_towards_the_wait(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        # The one thread has counted the first before it begins the second.
        for _ in range(2):
            await predictor.offload(lambda: time.sleep(0.02), Caller())
        answers = await asyncio.gather(
            *(predictor.offload(lambda: time.sleep(0.02), Caller()) for _ in range(80)), return_exceptions=True
        )
        assert 2 <= sum(answer is None for answer in answers) <= 35
        assert {type(answer) for answer in answers} == {type(None), OverloadedError}

    run(tmp_path, backend, test, max_queue_delay_s=0.5)


def test_the_queue_is_bounded(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        tasks = await queued(predictor, ask(predictor, 1.0), ask(predictor, 1.0))
        with pytest.raises(OverloadedError, match="3 requests wait"):
            await ask(predictor, 1.0)
        with pytest.raises(OverloadedError):
            await predictor.offload(lambda: None, Caller(), model="m")
        # Other models have limits of their own, and so has what no model answers.
        await predictor.offload(lambda: None, Caller())
        backend.gate.set()
        await asyncio.gather(first, *tasks)

    run(tmp_path, backend, test, max_queued_requests=3)


def test_a_flooded_model_delays_no_other(tmp_path: Path) -> None:
    """Its threads are its own, and so is what may wait for it."""
    slow, fast = Doubler(), Doubler()
    for name in "ab":
        (tmp_path / name / "1").mkdir(parents=True)
    manager = ModelManager(
        [ModelConfig(name=name, base_path=tmp_path / name) for name in "ab"],
        lambda config, *_: replace(servable(slow if config.name == "a" else fast), name=config.name),
        WatchOptions(poll_wait_s=0),
        allow_new_labels=False,
    )
    manager.start()
    assert manager.wait_until_polled(10)
    predictor = Predictor(manager, Metrics(), workers=1, max_queued_requests=3)

    async def main() -> None:
        slow.gate.clear()
        flood = [asyncio.ensure_future(ask(predictor, 1.0, model="a", small=number % 2 == 0)) for number in range(9)]
        for number in range(12):
            assert await asyncio.wait_for(ask(predictor, float(number), model="b", small=number % 2 == 0), 10)
        slow.gate.set()
        answers = await asyncio.gather(*flood, return_exceptions=True)
        # One is computed, and of the others two may wait for their batch, or to be decoded.
        assert [answer for answer in answers if not isinstance(answer, OverloadedError)] == [[2.0]] * 3

    try:
        asyncio.run(main())
    finally:
        slow.gate.set()
        predictor.close()
        manager.stop()
