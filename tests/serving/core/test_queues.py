"""Requests that wait: in queues by the shapes of their inputs, which share the batches that may be computed at once."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serving.core.conftest import PREDICT, Batch, Started, same, start_core
from tests.serving.core.test_server import ask
from tests.support.waiting import until


def _predictions(started: Started, row: float | list[float]) -> Any:
    status, body = ask(started.port, PREDICT, {"instances": [row]})
    assert status == 200, body
    return json.loads(body)["predictions"]


# With more shapes than a plan keeps queues for, the others have a queue for each request.
@pytest.mark.parametrize(("parallel", "shapes"), [(1, 6), (2, 6), (3, 80)])
def test_no_more_batches_than_allowed_whatever_their_shapes(started: Started, parallel: int, shapes: int) -> None:
    lock, running, seen = threading.Lock(), [0], []

    def run(batch: Batch, waited: object) -> Any:
        with lock:
            running[0] += 1
            seen.append(running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1
        return same(batch)

    started.plan(run, ("y", "float32"), shape=(-1, -1), max_rows=1, parallel=parallel)

    def call(size: int) -> None:
        row = [float(size)] * size
        assert _predictions(started, row) == [row]

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(call, [1 + number % shapes for number in range(3 * shapes)]))
    assert max(seen) == parallel
    assert len(seen) == 3 * shapes


def test_a_queue_whose_client_has_gone_lets_the_next_one_go(started: Started) -> None:
    gate, entered = threading.Event(), threading.Event()

    def wait(batch: Batch, waited: object) -> Any:
        entered.set()
        gate.wait(30)
        return same(batch)

    started.plan(wait, ("y", "float32"), shape=(-1, -1))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(_predictions, started, [1.0])
        assert entered.wait(30)
        body = json.dumps({"instances": [[1.0, 2.0]]}).encode()
        with socket.create_connection(("127.0.0.1", started.port)) as leaving:
            head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            leaving.sendall(head.encode() + body)
            until(lambda: started.core.waiting == 2)
            last = pool.submit(_predictions, started, [1.0, 2.0, 3.0])
            until(lambda: started.core.waiting == 3)
        until(lambda: started.core.waiting == 2)
        gate.set()
        assert first.result() == [[1.0]]
        assert last.result() == [[1.0, 2.0, 3.0]]


def test_a_request_whose_time_is_over_is_not_computed() -> None:
    gate, entered, computed = threading.Event(), threading.Event(), list[int]()

    def wait(batch: Batch, waited: object) -> Any:
        computed.append(batch[0][1][1])
        entered.set()
        gate.wait(30)
        return same(batch)

    with start_core(rest_timeout_s=0.5) as started, ThreadPoolExecutor(1) as pool:
        started.plan(wait, ("y", "float32"), shape=(-1, -1), max_rows=1)
        first = pool.submit(ask, started.port, PREDICT, {"instances": [[1.0]]})
        assert entered.wait(30)
        assert ask(started.port, PREDICT, {"instances": [[1.0, 2.0]]})[0] == 504
        assert first.result()[0] == 504
        gate.set()
        assert _predictions(started, [1.0, 2.0, 3.0]) == [[1.0, 2.0, 3.0]]
        until(lambda: started.core.waiting == 0)
        # Who answers late requests counts them: over REST Python.
        assert [each["failed"] for each in started.core.take_statistics()] == [[]]
        assert computed == [1, 3]


#: Before a batch that waits goes on by itself.
_SOON_S = 20.0


class _Gated:
    """Batches that wait where they are told to, and are long where they are to be."""

    def __init__(self, takes_s: float = 0.0) -> None:
        self.takes_s, self.entered, self.gate = takes_s, 0, threading.Event()
        self.gate.set()

    def __call__(self, batch: Batch, waited: object) -> Any:
        self.entered += 1
        self.gate.wait(30)
        time.sleep(self.takes_s)
        return same(batch)

    def until_entered(self, count: int) -> None:
        until(lambda: self.entered == count, _SOON_S)


def test_a_thread_is_left_whatever_is_computed_in_place() -> None:
    run = _Gated()
    with start_core(threads=2) as started, ThreadPoolExecutor(3) as pool:
        started.plan(run, ("y", "float32"), shape=(-1, -1), parallel=3)
        # So short that they need no thread of their own.
        for _ in range(30):
            _predictions(started, [1.0])
        run.gate.clear()
        held = []
        for size in (1, 2, 3):
            held.append(pool.submit(_predictions, started, [1.0] * size))
            run.until_entered(30 + size)
        assert ask(started.port, "/v1/models/other:predict", {"instances": [[1.0]]})[0] == 418
        run.gate.set()
        assert [each.result() for each in held] == [[[1.0]], [[1.0, 1.0]], [[1.0, 1.0, 1.0]]]


@pytest.mark.parametrize(("threads", "takes_s"), [(3, 0.0), (2, 0.01)])
def test_a_batch_does_not_wait_for_another_where_there_is_a_thread_for_it(threads: int, takes_s: float) -> None:
    short, run = _Gated(), _Gated(takes_s)
    with start_core(threads=threads) as started, ThreadPoolExecutor(3) as pool:
        started.plan(short, ("y", "float32"), model="short")
        started.plan(run, ("y", "float32"), parallel=2)
        for _ in range(30):
            assert ask(started.port, "/v1/models/short:predict", {"instances": [1.0]})[0] == 200
            _predictions(started, 1.0)
        for each in (short, run):
            each.gate.clear()
        held = [pool.submit(ask, started.port, "/v1/models/short:predict", {"instances": [1.0]})] if takes_s else []
        short.until_entered(30 + len(held))
        for count in (31, 32):
            held.append(pool.submit(ask, started.port, PREDICT, {"instances": [1.0]}))
            run.until_entered(count)
        for each in (short, run):
            each.gate.set()
        assert {each.result()[0] for each in held} == {200}
