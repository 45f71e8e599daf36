"""A machine that has no more threads for a moment: what that costs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from modelyard.serving import Predictor
from tests.serving.batching.asking import ask, run
from tests.support.doubler import Doubler


@pytest.mark.parametrize("kind", ["batch", "work"])
def test_a_thread_that_cannot_be_started_costs_one_request(
    tmp_path: Path, backend: Doubler, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    refused: list[str] = []
    start = threading.Thread.start

    def start_later(thread: threading.Thread) -> None:
        if not refused and thread.name.startswith(f"modelyard-{kind}"):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    async def test(predictor: Predictor) -> None:
        monkeypatch.setattr(threading.Thread, "start", start_later)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await ask(predictor, 1.0, small=kind == "batch")
        assert predictor.waiting == 0
        assert await ask(predictor, 2.0, small=kind == "batch") == [4.0]
        assert (predictor.waiting, backend.batches) == (0, [[2.0]])

    run(tmp_path, backend, test)
