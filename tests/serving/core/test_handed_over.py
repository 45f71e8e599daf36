"""What the core hands over, or drops: counted, charged and drawn once, by one side."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.serving.core.conftest import PREDICT, Batch, Started, same
from tests.serving.core.test_server import ask
from tests.support.waiting import until


def no_text(batch: Batch, waited: object) -> Any:
    """No UTF-8 for negative numbers, which JSON cannot carry."""
    ((data, shape),) = batch
    return [(shape, [b"text" if value >= 0 else b"\xff" for value in np.frombuffer(data, np.float32)])]


def test_an_answer_that_json_cannot_carry_gives_its_quota_back(started: Started) -> None:
    started.plan(no_text)
    assert ask(started.port, PREDICT, {"instances": [1.0]})[0] == 200
    assert ask(started.port, PREDICT, {"instances": [-1.0]})[0] == 418
    until(lambda: started.handlers.tickets == ["release", "undo"], what=lambda: started.handlers.tickets)
    rule = ("m", "", "", 0.0, [("stable", None, None, 1, 1.0, False)])
    started.core.set_traffic([rule])
    assert [ask(started.port, PREDICT, {"instances": [value]})[0] for value in (1.0, -1.0)] == [200, 418]
    # Python counts what it answers.
    ((model, target, statuses, counts, _),) = started.core.take_traffic()
    assert (model, target, statuses, sum(counts)) == ("m", "stable", {"OK": 1}, 1)


@pytest.mark.parametrize("output", [("y_bytes", "string"), ("y", "float16")])
def test_an_output_that_json_never_carries_is_not_computed(started: Started, output: tuple[str, str]) -> None:
    calls = []

    def run(batch: Batch, waited: object) -> Any:
        calls.append(batch)
        ((_, shape),) = batch
        return [(shape, [b"text"] * shape[0] if output[1] == "string" else b"\0\0" * shape[0])]

    started.plan(run, output)
    assert ask(started.port, PREDICT, {"instances": [1.0]})[0] == 418
    assert not calls
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    assert ask(started.port, "/v2/models/m/infer", body)[0] == 200
    assert len(calls) == 1


def test_what_was_drawn_for_the_log_is_not_drawn_again(started: Started) -> None:
    for share in (0.0, 1e-12, 1.0):
        started.plan(no_text, logged=share)
        assert ask(started.port, PREDICT, {"instances": [-1.0]})[0] == 418
    assert ask(started.port, PREDICT, {"instances": ["x"]})[0] == 418
    # The last has no plan's inputs: for it nothing was drawn.
    assert started.handlers.logged == [False, False, True, None]


def test_requests_whose_clients_go_leave_the_queue(started: Started) -> None:
    gate, entered = threading.Event(), threading.Event()

    def wait(batch: Batch, waited: object) -> Any:
        entered.set()
        gate.wait(30)
        return same(batch)

    started.plan(wait, ("y", "float32"), max_rows=4, batching=(0.0, 4, []))
    four = b'{"instances": [1, 2, 3, 4]}'
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, started.port, PREDICT, {"instances": [1.0]})
        assert entered.wait(30)
        with socket.create_connection(("127.0.0.1", started.port)) as leaving:
            leaving.sendall(
                b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (PREDICT.encode(), len(four))
            )
            leaving.sendall(four)
            until(lambda: started.core.waiting == 2)
        until(lambda: started.core.waiting == 1)
        (found,) = started.core.take_statistics()
        assert found["failed"] == [("predict", "REST", "CANCELLED", 1)]
        last = pool.submit(ask, started.port, PREDICT, {"instances": [1.0] * 4})
        until(lambda: started.core.waiting == 2 or last.done())
        gate.set()
        assert (first.result()[0], last.result()[0]) == (200, 200)


def test_keys_that_strangers_make_up_leave_room_for_others(started: Started) -> None:
    for number in range(1024):
        started.plan(no_text, wanted=[f"made up {number}"])
    # At first all of them count as used.
    for learned in ([], ["other"]):
        assert ask(started.port, "/v1/models/other:predict", {"instances": [1.0]})[0] == 418
        assert started.handlers.learned == learned


@pytest.mark.parametrize(
    "path", ["labels/:predict", "labels/a:b:predict", "versions/:predict", "versions/+1:predict", "labels/a/b:predict"]
)
def test_urls_that_name_nothing_are_no_keys(started: Started, path: str) -> None:
    assert ask(started.port, f"/v1/models/m/{path}", {"instances": [1.0]})[0] == 418
    assert ask(started.port, "/v2/models/m/labels/a/infer", {"instances": [1.0]})[0] == 418
    assert started.handlers.learned == []


@pytest.mark.parametrize(
    ("accepted", "encoding"), [("gzip, deflate, br", "gzip"), ("deflate", "deflate"), ("br", None)]
)
def test_who_accepts_compressed_answers_is_answered_here(started: Started, accepted: str, encoding: str | None) -> None:
    """As `requests`, `httpx` and browsers do by themselves."""
    started.plan(lambda batch, waited: same(batch), ("y", "float32"))
    values = np.arange(50_000) % 100
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [values.size], "data": values.tolist()}]}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", started.port, timeout=10)) as connection:
        connection.request("POST", "/v2/models/m/infer", json.dumps(body), {"Accept-Encoding": accepted})
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("content-encoding")) == (200, encoding)
        text = zlib.decompress(answer.read(), zlib.MAX_WBITS | 32) if encoding else answer.read()
    assert json.loads(text)["outputs"][0]["data"] == values.tolist()
    assert not started.handlers.logged
