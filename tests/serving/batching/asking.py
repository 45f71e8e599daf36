"""Asks a predictor whose one model is a backend that tests hold up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modelyard.serving import ModelConfig, ModelManager, ModelSpec, Predictor, PredictRequest, WatchOptions
from modelyard.serving.config import BatchParameters
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import Caller
from tests.support.doubler import Doubler, drive, servable
from tests.support.waiting import until_async


def run(
    tmp_path: Path,
    backend: Doubler,
    test: Callable[[Predictor], Awaitable[None]],
    *,
    row_wise: bool = True,
    batching: BatchParameters | None = None,
    **options: Any,
) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True, exist_ok=True)
    config = ModelConfig(name="m", base_path=tmp_path / "m")
    manager = ModelManager(
        [config],
        lambda *_: servable(backend, row_wise=row_wise, batching=batching),
        WatchOptions(poll_wait_s=0),
        allow_new_labels=False,
    )
    manager.start()
    assert manager.wait_until_polled(10)
    predictor = Predictor(manager, Metrics(), **{"workers": 1, **options})
    drive(test(predictor), backend, predictor, manager)


async def ask(
    predictor: Predictor, *values: Any, caller: Caller | None = None, small: bool = True, model: str = "m"
) -> list[float]:
    request = PredictRequest(
        spec=ModelSpec(name=model),
        inputs=lambda _: {"x": np.array(values, np.float32)},
        small=small,
        caller=caller,
    )
    result: list[float] = await predictor.submit(request, lambda prediction: prediction.outputs["y"].tolist())
    return result


async def blocked(predictor: Predictor, backend: Doubler, *values: Any) -> asyncio.Task[list[float]]:
    """Occupies the only worker until the gate opens."""
    backend.gate.clear()
    backend.entered.clear()
    task = asyncio.ensure_future(ask(predictor, *(values or (0.0,))))
    await until_async(backend.entered.is_set)
    return task


async def queued(predictor: Predictor, *asked: Awaitable[list[float]]) -> Sequence[asyncio.Future[list[float]]]:
    """Requests that wait, one behind the other."""
    before, futures = predictor.waiting, []
    for each in asked:
        futures.append(asyncio.ensure_future(each))
        await until_async(lambda: predictor.waiting >= before + len(futures) or futures[-1].done())
    return futures
