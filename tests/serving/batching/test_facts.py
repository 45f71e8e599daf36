"""What a batch notes of its requests, for logs and traces."""

from __future__ import annotations

import asyncio
from pathlib import Path

from modelyard.serving import Predictor
from modelyard.serving.requests import Caller, Facts
from tests.serving.batching.asking import ask, blocked, run
from tests.support.doubler import Doubler


def test_requests_of_a_batch_know_it(tmp_path: Path, backend: Doubler) -> None:
    facts = [Facts() for _ in range(3)]

    async def test(predictor: Predictor) -> None:
        before = await blocked(predictor, backend)
        rows = ([1.0], [2.0, 3.0], [4.0])
        asked = [
            asyncio.ensure_future(ask(predictor, *values, caller=Caller(facts=each)))
            for values, each in zip(rows, facts, strict=True)
        ]
        await asyncio.sleep(0.05)
        backend.gate.set()
        await before
        assert await asyncio.gather(*asked) == [[2.0], [4.0, 6.0], [8.0]]

    run(tmp_path, backend, test)
    assert [[1.0, 2.0, 3.0, 4.0]] == backend.batches[1:]
    assert [each.rows for each in facts] == [1, 2, 1]
    assert {(each.batch_rows, each.batch_requests) for each in facts} == {(4, 3)}
    (number,) = {each.batch for each in facts}
    # The core counts its own from 1.
    assert number >= 1 << 40
    for each in facts:
        assert each.decoded_ns < each.begun_ns <= each.begun_ns + each.compute_ns <= each.ended_ns
        assert each.compute_ns > 0
