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
    """Each of its batches ends when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.let_go = threading.Semaphore(0)

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        self.threads.append(threading.get_ident())
        assert self.let_go.acquire(timeout=5)
        return super().run(graph, inputs, outputs)


def test_a_request_whose_parts_hang_one_after_the_other_gives_its_slot_away_once(tmp_path: Path) -> None:
    backend = Hanging()

    async def test(predictor: Predictor) -> None:
        slots = predictor._workers.of("m").slots
        (version,) = predictor._manager.loaded()
        asked = asyncio.ensure_future(ask(predictor, 1.0, 2.0))
        for part in (1, 2):
            await until_async(lambda: len(backend.threads) == part)  # noqa: B023  # it is awaited here
            predictor._manager.suspend(version, "It hangs.", threads=backend.threads[-1:], limit_s=1.0)
            # Its thread has none, and another may compute.
            assert slots._value == 1
            backend.let_go.release()
        with pytest.raises(DeadlineExceededError, match="It hangs"):
            await asked

    run(tmp_path, backend, test, batching=BatchParameters(max_batch_size=1, split_large=True))


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
