"""docs/training.md: its blocks run in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def test_the_blocks_run_in_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 12
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    assert float(out.splitlines()[0]) < 1
    assert "test_r2_score" in out.splitlines()[1]
    assert "Throughput(steps=" in out
    assert "step-0000000" in out
    measured = names["result"].history
    assert 0.9 < measured[0].evaluation["auc"] < measured[1].evaluation["auc"] <= 1
    assert measured[0].evaluation["f1"] < measured[1].evaluation["f1"] <= 1
