"""A backend that tests can look into, and a servable of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Collection, Sequence
from pathlib import Path
from typing import Any, cast

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError
from modelyard.serving import ModelManager, Predictor, Servable
from modelyard.serving.config import BatchParameters

Arrays = dict[str, Any]


class Doubler:
    """y = 2 x, remembering its batches; refuses 13, breaks on 14, and waits while its gate is shut."""

    name = "fake"
    checks_shapes = True
    computes_in_caller = True
    on_device = False
    few_shapes: frozenset[str] = frozenset()

    def __init__(self, *, mixes: bool = False) -> None:
        self.batches: list[list[float]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self._mixes = mixes
        self.signature = Signature(
            inputs=(TensorSpec(name="x", dtype="float32", shape=(-1,)),),
            outputs=(TensorSpec(name="y", dtype="float32", shape=(-1,)),),
            compute="g",
        )

    @property
    def signatures(self) -> dict[str, Signature]:
        return {"g": self.signature}

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        self.entered.set()
        self.gate.wait(30)
        x = inputs["x"]
        self.batches.append(x.tolist())
        if (x == 13).any():
            raise InvalidInputError("13 is not computed")
        if (x == 14).any():
            raise RuntimeError("boom")
        return {"y": x * 2 + (x.mean() if self._mixes else 0)}

    def interrupt(self, threads: Collection[int] | None = None) -> bool:
        return False

    def close(self) -> None:
        pass


def drive(test: Awaitable[None], backend: Doubler, predictor: Predictor, manager: ModelManager) -> None:
    """Runs a test for 30 seconds at most; then the gate is opened, and all is closed."""

    async def main() -> None:
        try:
            await asyncio.wait_for(test, 30)
        finally:
            backend.gate.set()

    try:
        asyncio.run(main())
    finally:
        predictor.close()
        manager.stop()


def servable(backend: Doubler, *, row_wise: bool = True, batching: BatchParameters | None = None) -> Servable:
    return Servable(
        name="m", version=1, path=Path("/nowhere"), backend=cast(Any, backend),
        signatures={"serving_default": backend.signature},
        definitions={}, check_shapes=True, defaults={}, compute=cast(Any, backend.run),
        row_wise=frozenset({"g"}) if row_wise else frozenset(), batching=batching,
    )  # fmt: skip
