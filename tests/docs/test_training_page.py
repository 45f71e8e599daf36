"""docs/training.md: its blocks run in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def test_the_blocks_run_in_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    text = PAGE.read_text("utf-8")
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.DOTALL))
    assert len(blocks) == 12
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        # With the lines of the page before it, where AutoGraph looks up the source of a step.
        lines = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(lines + block[1], str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    assert float(out.splitlines()[0]) < 1
    assert "test_r2_score" in out.splitlines()[1]
    assert "Throughput(steps=" in out
    assert "step-0000000" in out
    measured = names["result"].history
    assert 0.9 < measured[0].evaluation["auc"] < measured[1].evaluation["auc"] <= 1
    assert measured[0].evaluation["f1"] < measured[1].evaluation["f1"] <= 1
