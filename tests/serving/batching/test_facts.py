"""What a batch notes of its requests, for logs and traces."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from modelyard.errors import InvalidInputError
from modelyard.serving import Predictor
from modelyard.serving.config import BatchParameters
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


def test_rows_that_pad_a_batch_are_rows_of_it(tmp_path: Path, backend: Doubler) -> None:
    facts = Facts()

    async def test(predictor: Predictor) -> None:
        assert await ask(predictor, 1.0, 2.0, 3.0, caller=Caller(facts=facts)) == [2.0, 4.0, 6.0]

    run(tmp_path, backend, test, batching=BatchParameters(max_batch_size=8, allowed_batch_sizes=(4, 8)))
    assert (facts.rows, facts.batch_rows, facts.batch_requests) == (3, 4, 1)


def test_a_batch_that_failed_is_told_with_the_rows_that_it_had(tmp_path: Path, backend: Doubler) -> None:
    facts = Facts()

    async def test(predictor: Predictor) -> None:
        with pytest.raises(InvalidInputError):
            await ask(predictor, 1.0, 13.0, caller=Caller(facts=facts))

    run(tmp_path, backend, test)
    assert (facts.rows, facts.batch_rows, facts.batch_requests, facts.compute_ns) == (2, 2, 1, 0)
