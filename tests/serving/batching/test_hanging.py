"""Batches that do not end: what they hold is given back once, whatever becomes of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from modelyard.errors import DeadlineExceededError
from modelyard.serving import Predictor
from modelyard.serving.config import BatchParameters
from tests.serving.batching.asking import ask, run
from tests.support.doubler import Arrays, Doubler
from tests.support.waiting import until_async


class Hanging(Doubler):
    """Each of its batches of one row ends when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.let_go = threading.Semaphore(0)

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        if len(inputs["x"]) == 1:
            self.threads.append(threading.get_ident())
            assert self.let_go.acquire(timeout=5)
        return super().run(graph, inputs, outputs)


def test_a_batch_whose_requests_hang_one_after_the_other_gives_its_slot_away_once(tmp_path: Path) -> None:
    backend = Hanging()

    async def test(predictor: Predictor) -> None:
        slots = predictor._workers.of("m").slots
        (version,) = predictor._manager.loaded()
        # Together they fail, and each is computed again alone.
        asked = asyncio.gather(ask(predictor, 14.0), ask(predictor, 1.0), return_exceptions=True)
        for number in (1, 2):
            await until_async(lambda: len(backend.threads) == number)  # noqa: B023  # it is awaited here
            predictor._manager.suspend(version, "It hangs.", threads=backend.threads[-1:], limit_s=1.0)
            assert slots._value == 1
            backend.let_go.release()
        assert [type(answer) for answer in await asked] == [DeadlineExceededError] * 2

    run(tmp_path, backend, test, batching=BatchParameters(max_batch_size=2, timeout_s=5.0))


def test_threads_that_hang_one_after_the_other_give_a_slot_away_each(tmp_path: Path) -> None:
    backend = Hanging()

    async def test(predictor: Predictor) -> None:
        slots = predictor._workers.of("m").slots
        (version,) = predictor._manager.loaded()
        asked = asyncio.gather(ask(predictor, 1.0), ask(predictor, 2.0), return_exceptions=True)
        await until_async(lambda: len(backend.threads) == 2)
        for free, thread in enumerate(backend.threads, 1):
            predictor._manager.suspend(version, "It hangs.", threads=[thread], limit_s=1.0)
            assert slots._value == free
        assert [type(answer) for answer in await asked] == [DeadlineExceededError] * 2
        backend.let_go.release(2)
        await until_async(lambda: not predictor._workers.of("m").computing)
        # Who ends late takes the slot that was given away for it, and gives it back.
        await until_async(lambda: slots._value == 2)

    run(tmp_path, backend, test, batching=BatchParameters(max_batch_size=1), workers=2)


@pytest.mark.parametrize("hangs", [True, False])
def test_of_a_request_in_parts_the_rest_is_left_that_nobody_waits_for(tmp_path: Path, hangs: bool) -> None:
    backend = Hanging()

    async def test(predictor: Predictor) -> None:
        asked = asyncio.ensure_future(ask(predictor, 1.0, 2.0, 3.0))
        await until_async(lambda: backend.threads)
        if hangs:
            (version,) = predictor._manager.loaded()
            predictor._manager.suspend(version, "It hangs.", threads=backend.threads, limit_s=1.0)
        else:
            asked.cancel()
        with pytest.raises((DeadlineExceededError, asyncio.CancelledError)):
            await asked
        backend.let_go.release(3)

    run(tmp_path, backend, test, batching=BatchParameters(max_batch_size=1, split_large=True))
    assert backend.batches == [[1.0]]


def test_a_batch_of_one_shape_too_many_is_given_up_as_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients may send more shapes than queues are kept."""
    monkeypatch.setattr("modelyard.serving.batching._batcher._MAX_QUEUES", 0)
    backend = Hanging()

    async def test(predictor: Predictor) -> None:
        (version,) = predictor._manager.loaded()
        asked = asyncio.ensure_future(ask(predictor, 1.0))
        await until_async(lambda: backend.threads)
        predictor._manager.suspend(version, "It hangs.", threads=backend.threads, limit_s=1.0)
        with pytest.raises(DeadlineExceededError, match="It hangs"):
            await asyncio.wait_for(asked, 3)
        assert predictor.waiting == 0
        backend.let_go.release()

    run(tmp_path, backend, test)
