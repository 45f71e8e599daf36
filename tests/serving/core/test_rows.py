"""Which rows of a batch are whose: in answers, for shadows, and in what is counted."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.serving.core.conftest import PREDICT, Batch, Started, same
from tests.serving.core.test_server import ask
from tests.support.waiting import until


class Doubled:
    """Twice the numbers, and what they are called, as the outputs y and text; waits where it is told to."""

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        self.batches: list[list[float]] = []
        self.shadowed: list[tuple[Any, Any]] = []

    def __call__(self, batch: Batch, waited: object) -> Any:
        self.entered.set()
        self.gate.wait(30)
        ((data, shape),) = batch
        values = np.frombuffer(data, np.float32)
        self.batches.append(values.tolist())
        return [(shape, (values * 2).tobytes()), (shape, [f"{value:g}" for value in values])]

    def shadow(self, inputs: Any, outputs: Any) -> None:
        self.shadowed.append((inputs, outputs))


def _doubled(*rows: list[float]) -> tuple[Any, Any]:
    """What a shadow is told of a request."""
    values, shape = np.array(rows, np.float32), (len(rows), 2)
    texts = [f"{value:g}".encode() for value in values.flat]
    return [(values.tobytes(), shape)], [(shape, (values * 2).tobytes()), (shape, texts)]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_requests_of_a_batch_get_their_own_rows_and_so_does_a_shadow(started: Started, share: float) -> None:
    run = Doubled()
    started.plan(run, shape=(-1, 2), outputs=[("y", "float32"), ("text", "string")])
    started.core.set_traffic([("m", "", "", share, [("stable", None, None, 1, 1.0, False)])])
    requests = [[[-1.0, 30.0]], [[2.5, 3.0], [4.0, -55.5]], [[6.0, 7.0]]]

    def predict(rows: list[list[float]]) -> None:
        status, body = ask(started.port, PREDICT, {"instances": rows})
        assert (status, json.loads(body)["predictions"]) == (200, [
            {"y": [2 * value for value in row], "text": [f"{value:g}" for value in row]} for row in rows
        ])  # fmt: skip

    predict([[1.0, 2.0]])
    run.gate.clear()
    run.entered.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(predict, [[8.0, 9.0]])
        assert run.entered.wait(30)
        others = []
        for rows in requests:
            others.append(pool.submit(predict, rows))
            until(lambda: started.core.waiting == 1 + len(others))
        run.gate.set()
        for each in (first, *others):
            each.result()
    assert run.batches == [[1.0, 2.0], [8.0, 9.0], [value for rows in requests for row in rows for value in row]]
    if share:
        until(lambda: len(run.shadowed) == 5)
        expected = [_doubled(*rows) for rows in ([[1.0, 2.0]], [[8.0, 9.0]], *requests)]
        assert sorted(run.shadowed, key=repr) == sorted(expected, key=repr)
    else:
        assert run.shadowed == []


@pytest.mark.parametrize(("sizes", "rows"), [([[2], [-1]], 3), ([[-1], [-1]], 2), ([[2], [3]], 1), ([None, [3]], 2)])
def test_rows_of_what_shares_no_batch_are_of_the_first_input_that_is_free(
    started: Started, sizes: list[list[int] | None], rows: int
) -> None:
    started.plan(
        lambda batch, waited: same(batch[:1]), ("y", "float32"), shared=False,
        inputs=[("a", "float32", sizes[0]), ("b", "float32", sizes[1])],
    )  # fmt: skip
    assert ask(started.port, PREDICT, {"inputs": {"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]}})[0] == 200
    (found,) = started.core.take_statistics()
    assert found["rows"] == rows
