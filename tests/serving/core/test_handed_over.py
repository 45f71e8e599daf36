"""What the core hands over, or drops: counted, charged and drawn once, by one side."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.serving.core.test_server import ask
from tests.support.server import free_port
from tests.support.waiting import until

core = pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")

PREDICT = "/v1/models/m:predict"
_Batch = Sequence[tuple[bytes, tuple[int, ...]]]


@dataclass
class Ticket:
    """Leave to compute, as modelyard.serving.access gives it."""

    ends: list[str]
    principal: str = "a"
    counts: bool = True

    def release(self) -> None:
        self.ends.append("release")

    def undo(self) -> None:
        self.ends.append("undo")


@dataclass
class Handlers:
    """In place of the handlers: remembers what came to Python."""

    logged: list[bool | None] = field(default_factory=list)
    learned: list[str] = field(default_factory=list)
    tickets: list[str] = field(default_factory=list)

    def rest(self, exchange: Any) -> None:
        self.logged.append(exchange.logged)
        exchange.respond(418, [], b"handed over")

    def gone(self, item: Any) -> None:
        """Nobody waits for it."""

    def learn(self, model: str, *key: Any) -> None:
        self.learned.append(model)

    def permit(self, *shown: Any) -> Ticket:
        return Ticket(self.tickets)


@dataclass
class Started:
    handlers: Handlers
    core: Any
    port: int

    def plan(self, run: Any, output: tuple[str, str] = ("y", "string"), model: str = "m", **options: Any) -> None:
        options = {"wanted": [], "max_rows": 8, "shared": True, "parallel": 1, **options}
        assert self.core.add_plan(
            model=model, version=None, label=None, signature="", answers=1, name="serving_default", backend="none",
            inputs=[("x", "float32", [-1])], outputs=[output], run=run, **options,
        )  # fmt: skip


@pytest.fixture
def started() -> Iterator[Started]:
    handlers, port = Handlers(), free_port()
    server = core.Server(
        handlers, threads=2, max_body_bytes=1 << 20, max_message_bytes=1 << 20, rest_timeout_s=30.0,
        wrong_rest_port="", wrong_grpc_port="", guarded=True,
    )  # fmt: skip
    server.listen(grpc=False, port=port)
    yield Started(handlers, server, port)
    server.stop(1.0)


def no_text(batch: _Batch, waited: object) -> Any:
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

    def run(batch: _Batch, waited: object) -> Any:
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

    def wait(batch: _Batch, waited: object) -> Any:
        entered.set()
        gate.wait(30)
        ((data, shape),) = batch
        return [(shape, data)]

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
    for _ in range(2):
        assert ask(started.port, "/v1/models/other:predict", {"instances": [1.0]})[0] == 418
    assert started.handlers.learned == ["other"]
