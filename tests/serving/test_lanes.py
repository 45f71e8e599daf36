"""The way through the data plane: what is batched, dropped, refused; and that neighbours never matter."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

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
from modelyard.serving._metrics import Metrics
from modelyard.serving._plans import Plan
from modelyard.serving._requests import Caller
from tests.support.doubler import Arrays, Doubler, servable


@pytest.fixture
def backend() -> Iterator[Doubler]:
    backend = Doubler()
    yield backend
    backend.gate.set()


def run(
    tmp_path: Path,
    backend: Doubler,
    test: Callable[[Predictor], Awaitable[None]],
    *,
    row_wise: bool = True,
    fixed: float = 0.0,
    **options: Any,
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True, exist_ok=True)
    config = ModelConfig(name="m", base_path=tmp_path / "m")
    manager = ModelManager(
        [config],
        lambda *_: servable(backend, row_wise=row_wise, fixed=fixed),
        WatchOptions(poll_wait_s=0),
        allow_new_labels=False,
    )
    manager.start()
    assert manager.wait_until_polled(10)
    predictor = Predictor(manager, Metrics(), **{"workers": 1, **options})

    async def main() -> None:
        try:
            await asyncio.wait_for(test(predictor), 30)
        finally:
            backend.gate.set()

    try:
        asyncio.run(main())
    finally:
        predictor.close()
        manager.stop()


async def ask(predictor: Predictor, *values: float, caller: Caller | None = None, small: bool = True) -> list[float]:
    request = PredictRequest(
        spec=ModelSpec(name="m"),
        inputs=lambda _: {"x": np.array(values, np.float32)},
        small=small,
        caller=caller,
    )
    result: list[float] = await predictor.submit(request, lambda prediction: prediction.outputs["y"].tolist())
    return result


async def blocked(predictor: Predictor, backend: Doubler) -> asyncio.Task[list[float]]:
    """Occupies the only worker until the gate opens."""
    backend.gate.clear()
    backend.entered.clear()
    task = asyncio.ensure_future(ask(predictor, 0.0))
    while not backend.entered.is_set():
        await asyncio.sleep(0.002)
    return task


def plan_of(predictor: Predictor) -> Plan:
    """What the data plane knows of the model, which was asked before."""
    with predictor._manager.acquire(ModelSpec(name="m")) as loaded:
        plan: Plan
        (plan,) = loaded.plans.values()
        return plan


def test_one_request_waits_for_nobody_and_neighbours_share_a_batch(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        assert await ask(predictor, 1.0) == [2.0]
        # Whatever else this machine did meanwhile.
        plan_of(predictor).row_seconds = 1e-5
        assert await asyncio.gather(*(ask(predictor, float(n)) for n in range(10))) == [[2.0 * n] for n in range(10)]
        assert backend.batches == [[1.0], [float(n) for n in range(10)]]
        row = predictor.statistics.of("m", 1)
        assert (row.inference_count, row.success.count, row.execution_count) == (11, 11, 2)
        assert {rows: part.compute_infer.count for rows, part in row.batches.items()} == {1: 1, 10: 1}

    run(tmp_path, backend, test)


def test_a_batch_has_as_many_rows_as_it_may(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        tasks = [asyncio.ensure_future(ask(predictor, float(n))) for n in range(1, 11)]
        await asyncio.sleep(0.01)
        backend.gate.set()
        assert await asyncio.gather(first, *tasks) == [[2.0 * n] for n in range(11)]
        assert max(len(batch) for batch in backend.batches) == 4

    run(tmp_path, backend, test, max_batch_rows=4)


def test_a_long_batch_is_computed_in_pieces_with_turns_of_the_loop_between(
    tmp_path: Path, backend: Doubler, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(predictor: Predictor) -> None:
        await ask(predictor, 0.0)
        plan = plan_of(predictor)
        plan.row_seconds = 0.00025
        threads: set[int] = set()
        # The model is so fast that it would be known for it after the first piece.
        monkeypatch.setattr(plan, "learn", lambda *_: threads.add(threading.get_ident()))
        turns: list[int] = []

        async def count() -> None:
            while True:
                turns.append(len(backend.batches))
                await asyncio.sleep(0)

        counter = asyncio.ensure_future(count())
        answers = await asyncio.gather(*(ask(predictor, float(n)) for n in range(100, 120)))
        counter.cancel()
        assert answers == [[2.0 * n] for n in range(100, 120)]
        # 2 ms at a time, on the event loop itself, which goes on between them.
        sizes = [len(batch) for batch in backend.batches[1:]]
        assert sum(sizes) == 20 and len(sizes) == 3 and max(sizes) <= 8
        assert threads == {threading.get_ident()}
        assert {2, 3} <= set(turns)

    run(tmp_path, backend, test)


def test_models_whose_rows_depend_on_each_other_are_computed_one_by_one(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        await asyncio.gather(*(ask(predictor, float(n)) for n in range(3)))
        assert backend.batches == [[0.0], [1.0], [2.0]]

    run(tmp_path, backend, test, row_wise=False)


@pytest.mark.parametrize("small", [True, False])
def test_nobody_pays_for_requests_that_nobody_waits_for(tmp_path: Path, backend: Doubler, small: bool) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        gone = asyncio.ensure_future(ask(predictor, 1.0, small=small))
        late = asyncio.ensure_future(
            ask(predictor, 2.0, small=small, caller=Caller(deadline=time.monotonic() + 0.1)),
        )
        hung_up = asyncio.ensure_future(ask(predictor, 3.0, small=small, caller=Caller(gone=lambda: True)))
        kept = asyncio.ensure_future(ask(predictor, 4.0, small=small))
        await asyncio.sleep(0.15)
        gone.cancel()
        await asyncio.sleep(0.01)
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
        tasks = [
            asyncio.ensure_future(ask(predictor, float(n), caller=Caller(low_priority=n % 2 == 0))) for n in range(1, 7)
        ]
        await asyncio.sleep(0.01)
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
        assert predictor.waiting == 0
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


def test_what_would_wait_too_long_is_refused_at_the_door(tmp_path: Path, backend: Doubler) -> None:
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

        answers = await asyncio.gather(*(timed() for _ in range(40)), return_exceptions=True)
        admitted = [answer for answer in answers if isinstance(answer, float)]
        refused = [answer for answer in answers if isinstance(answer, OverloadedError)]
        assert len(admitted) + len(refused) == 40
        assert 2 <= len(admitted) <= 15
        assert "overloaded" in str(refused[0])
        # A deadline is a limit too; a door with nobody in it is open to everybody.
        soon = Caller(deadline=time.monotonic() + 0.03)
        both = await asyncio.gather(timed(), timed(), timed(soon), return_exceptions=True)
        assert isinstance(both[2], OverloadedError)
        await ask(predictor, 1.0, caller=Caller(deadline=time.monotonic() + 0.5))

    run(tmp_path, Quicker(), test, row_wise=False, max_queue_delay_s=0.2)


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
        counts = []
        for _ in range(6):
            answers = await asyncio.gather(*(ask(predictor, 1.0) for _ in range(60)), return_exceptions=True)
            counts.append(sum(answer == [2.0] for answer in answers))
            assert all(answer == [2.0] or isinstance(answer, OverloadedError) for answer in answers)
        assert counts[0] <= 6
        assert counts[-1] == 60, counts

    run(tmp_path, Steady(), test, max_queue_delay_s=0.25)


def test_nor_where_one_batch_can_wait_and_no_more(tmp_path: Path) -> None:
    """Batches of one are all that there would ever be, had loading not found what rows share."""

    async def test(predictor: Predictor) -> None:
        answered = refused = 0
        for _ in range(20):
            await ask(predictor, 1.0)
        end = time.monotonic() + 2
        tasks = []
        while time.monotonic() < end:
            tasks.append(asyncio.ensure_future(ask(predictor, 1.0)))
            await asyncio.sleep(0.005)
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            assert answer == [2.0] or isinstance(answer, OverloadedError)
            answered, refused = answered + (answer == [2.0]), refused + (answer != [2.0])
        assert answered > 3 * refused, (answered, refused)

    run(tmp_path, Steady(), test, max_queue_delay_s=0.12, fixed=0.95)


def test_who_does_not_fit_the_last_batch_opens_another(tmp_path: Path) -> None:
    """Of two requests of three rows, a batch of five holds one: three batches of 40 ms are too many for 150 ms."""

    async def test(predictor: Predictor) -> None:
        for _ in range(5):
            await ask(predictor, 1.0)
        running = asyncio.ensure_future(ask(predictor, 1.0))
        await asyncio.sleep(0.01)
        rows = [1.0, 1.0, 1.0]
        answers = await asyncio.gather(*(ask(predictor, *rows) for _ in range(4)), return_exceptions=True)
        assert [isinstance(answer, OverloadedError) for answer in answers] == [False, False, True, True]
        assert await running == [2.0]
        # Of single ones all fit the first batch that waits.
        running = asyncio.ensure_future(ask(predictor, 1.0))
        await asyncio.sleep(0.01)
        answers = await asyncio.gather(*(ask(predictor, 1.0) for _ in range(5)), running, return_exceptions=True)
        assert answers == [[2.0]] * 6

    run(tmp_path, Steady(), test, max_queue_delay_s=0.15, max_batch_rows=5, fixed=1.0)


def test_a_batch_is_not_shared_out_among_workers(tmp_path: Path) -> None:
    """With four workers that compute, whoever joins a batch waits for all of it: 80 ms are not 50."""

    async def test(predictor: Predictor) -> None:
        for _ in range(5):
            await ask(predictor, 1.0)
        running = []
        for _ in range(4):
            running.append(asyncio.ensure_future(ask(predictor, 1.0)))
            await asyncio.sleep(0.001)
        opener = asyncio.ensure_future(ask(predictor, 1.0))
        await asyncio.sleep(0.001)
        hurried = Caller(deadline=time.monotonic() + 0.065)
        with pytest.raises(OverloadedError):
            await ask(predictor, 1.0, caller=hurried)
        assert await ask(predictor, 1.0, caller=Caller(deadline=time.monotonic() + 1)) == [2.0]
        await asyncio.gather(opener, *running)

    run(tmp_path, Steady(), test, workers=4, fixed=1.0)


@pytest.mark.parametrize("size", [0, 1000])
def test_decoding_counts_towards_the_wait(tmp_path: Path, backend: Doubler, size: int) -> None:
    """The model itself takes no time to speak of: what waits at the door are bodies to be decoded."""

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
        answers = await asyncio.gather(*(one() for _ in range(40)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, OverloadedError)]
        assert 2 <= len(answers) - len(refused) <= 15
        assert len(decoded) == 1 + len(answers) - len(refused), "a refused request was decoded"
        assert all(answer == [2.0] for answer in answers if not isinstance(answer, OverloadedError))
        if size:
            # Twenty times as many bytes do not fit into the time that one more of the usual size would.
            three = await asyncio.gather(one(), one(20 * size), one(), return_exceptions=True)
            assert [isinstance(answer, OverloadedError) for answer in three] == [False, True, False]

    run(tmp_path, backend, test, max_queue_delay_s=0.2)


def test_bodies_that_cannot_be_decoded_cost_time_too(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        def inputs(_: Signature) -> Arrays:
            time.sleep(0.02)
            raise InvalidInputError("no image")

        request = PredictRequest(spec=ModelSpec(name="m"), inputs=inputs, small=False, size=10)
        with pytest.raises(InvalidInputError):
            await predictor.submit(request, lambda _: None)
        answers = await asyncio.gather(
            *(predictor.submit(request, lambda _: None) for _ in range(40)), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {InvalidInputError, OverloadedError}

    run(tmp_path, backend, test, max_queue_delay_s=0.2)


def test_other_work_counts_towards_the_wait(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        await predictor.offload(lambda: time.sleep(0.02), Caller())
        answers = await asyncio.gather(
            *(predictor.offload(lambda: time.sleep(0.02), Caller()) for _ in range(40)), return_exceptions=True
        )
        assert 2 <= sum(answer is None for answer in answers) <= 15
        assert {type(answer) for answer in answers} == {type(None), OverloadedError}

    run(tmp_path, backend, test, max_queue_delay_s=0.2)


def test_the_queue_is_bounded(tmp_path: Path, backend: Doubler) -> None:
    async def test(predictor: Predictor) -> None:
        first = await blocked(predictor, backend)
        tasks = [asyncio.ensure_future(ask(predictor, 1.0)) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(OverloadedError, match="3 requests wait"):
            await ask(predictor, 1.0)
        with pytest.raises(OverloadedError):
            await predictor.offload(lambda: None, Caller())
        backend.gate.set()
        await asyncio.gather(first, *tasks)

    run(tmp_path, backend, test, max_queued_requests=3)
