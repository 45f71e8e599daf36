"""Calls over examples: what they wait for, and what becomes of them where their model leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.artifact import REGRESS_METHOD, Signature, TensorSpec
from modelyard.errors import DeadlineExceededError, ModelNotFoundError, ModelyardError
from modelyard.serving import ModelConfig, ModelManager, ModelSpec, Predictor, WatchOptions
from modelyard.serving.config import BatchParameters, PredictionLogConfig, PredictionLogLimits
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import PredictionLogs, Regression
from modelyard.serving.requests import Caller, Facts
from tests.support.doubler import Arrays, Doubler, drive, servable
from tests.support.waiting import until_async


class Regressor(Doubler):
    """The length of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.signature = Signature(
            inputs=(TensorSpec(name="inputs", dtype="string", shape=(-1,)),),
            outputs=(TensorSpec(name="outputs", dtype="float32", shape=(-1,)),),
            compute="g",
            method=REGRESS_METHOD,
        )

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        self.threads.append(threading.get_ident())
        self.entered.set()
        self.gate.wait(30)
        return {"outputs": np.array([len(each) for each in inputs["inputs"]], np.float32)}


def run(
    tmp_path: Path,
    backend: Regressor,
    test: Callable[[Predictor, ModelManager], Awaitable[None]],
    *,
    batching: BatchParameters | None = None,
    max_queued_requests: int = 0,
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    log = PredictionLogConfig(prefix=tmp_path / "log", rate=1.0)
    config = ModelConfig(name="m", base_path=tmp_path / "m", prediction_log=log)
    manager = ModelManager([config], lambda *_: servable(backend, batching=batching), WatchOptions(poll_wait_s=0))
    manager.start()
    assert manager.wait_until_polled(10)
    logs = PredictionLogs(PredictionLogLimits(), Metrics())
    predictor = Predictor(manager, Metrics(), workers=1, max_queued_requests=max_queued_requests, logs=logs)
    try:
        drive(test(predictor, manager), backend, predictor, manager)
    finally:
        logs.close()


def threads_of_models() -> int:
    return sum(thread.name.startswith(("modelyard-batch", "modelyard-work")) for thread in threading.enumerate())


def regress(predictor: Predictor, *examples: bytes, caller: Caller | None = None) -> Awaitable[Any]:
    call = partial(predictor.regress, ModelSpec(name="m"), examples)
    return predictor.offload(call, caller or Caller(), model="m")


@pytest.mark.parametrize("batching", [None, BatchParameters()], ids=["alone", "batched"])
def test_a_call_over_examples_waits_once(tmp_path: Path, batching: BatchParameters | None) -> None:
    """It is one request of those that may wait, though its batch has a queue of its own; its rows are told once."""

    async def test(predictor: Predictor, _: ModelManager) -> None:
        for _turn in range(3):
            facts = Facts()
            answer = await regress(predictor, b"", b"\x7a\x01a", caller=Caller(facts=facts))
            assert facts.rows == 2
            assert isinstance(answer, Regression) and answer.values.tolist() == [0.0, 3.0]
            await until_async(lambda: predictor.waiting == 0)

    run(tmp_path, Regressor(), test, batching=batching, max_queued_requests=1)


def test_a_call_that_is_computed_is_answered_though_its_model_leaves(tmp_path: Path) -> None:
    backend = Regressor()
    backend.gate.clear()

    async def test(predictor: Predictor, manager: ModelManager) -> None:
        call = asyncio.ensure_future(regress(predictor, b"\x7a\x01a"))
        await until_async(backend.entered.is_set)
        await asyncio.to_thread(manager.reload, [], timeout_s=0)
        with pytest.raises(ModelNotFoundError):
            predictor.status("nobody")
        assert threads_of_models() > before
        backend.gate.set()
        assert (await call).values.tolist() == [3.0]

        # Its threads go with it.
        await until_async(lambda: threads_of_models() == before)
        assert not manager.loaded()

    before = threads_of_models()
    run(tmp_path, backend, test)


def test_a_call_that_hangs_is_given_up_with_its_place_and_its_thread(tmp_path: Path) -> None:
    backend = Regressor()
    backend.gate.clear()
    told: list[ModelyardError] = []

    async def test(predictor: Predictor, manager: ModelManager) -> None:
        call = asyncio.ensure_future(regress(predictor, b"\x7a\x01a", caller=Caller(given_up=told.append)))
        await until_async(lambda: backend.threads)
        (version,) = manager.loaded()
        for _ in range(2):
            manager.suspend(version, "It hangs.", threads=backend.threads, limit_s=1.0)
        with pytest.raises(DeadlineExceededError, match="It hangs"):
            await call
        assert [type(error) for error in told] == [DeadlineExceededError]
        assert predictor.waiting == 0
        # The model has one thread for such work.
        assert await predictor.offload(lambda: 7, Caller(), model="m") == 7
        backend.gate.set()
        slots = predictor._workers.of("m").work_slots
        await until_async(lambda: slots._value == 1)
        manager.resume(version)
        assert (await regress(predictor, b"\x7a\x01a")).values.tolist() == [3.0]
        assert (predictor.waiting, slots._value, len(told)) == (0, 1, 1)

    run(tmp_path, backend, test)
