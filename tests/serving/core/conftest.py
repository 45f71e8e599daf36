"""A core without the rest of the server: its plans are functions of the tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.server import free_port

PREDICT = "/v1/models/m:predict"
#: What a plan's function is called with: bytes and shape of each input.
Batch = Sequence[tuple[bytes, tuple[int, ...]]]


def same(batch: Batch) -> Any:
    """An answer that is what was asked."""
    ((data, shape),) = batch
    return [(shape, data)]


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
        exchange.respond(504 if exchange.problem == "late" else 418, [], b"handed over")

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

    def plan(
        self,
        run: Any,
        output: tuple[str, str] = ("y", "string"),
        model: str = "m",
        shape: Sequence[int] = (-1,),
        **options: Any,
    ) -> None:
        options = {
            "inputs": [("x", "float32", list(shape))], "outputs": [output], "wanted": [], "max_rows": 8, "shared": True,
            "parallel": 1, **options,
        }  # fmt: skip
        assert self.core.add_plan(
            model=model, version=None, label=None, signature="", answers=1, name="serving_default", backend="none",
            run=run, **options,
        )  # fmt: skip


@contextmanager
def start_core(*, rest_timeout_s: float = 30.0, threads: int = 2) -> Iterator[Started]:
    core = pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")
    handlers, port = Handlers(), free_port()
    server = core.Server(
        handlers, threads=threads, max_body_bytes=1 << 20, max_message_bytes=1 << 20, rest_timeout_s=rest_timeout_s,
        wrong_rest_port="", wrong_grpc_port="", guarded=True,
    )  # fmt: skip
    server.listen(grpc=False, port=port)
    yield Started(handlers, server, port)
    server.stop(1.0)


@pytest.fixture
def started() -> Iterator[Started]:
    with start_core() as started:
        yield started
