"""A run in a notebook."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from modelyard.training import Trainer, TrainResult
from modelyard.training.run._notebook import NotebookProgress
from tests.training.toy_task import ToyTask


def run(*actions: Any) -> TrainResult:
    return Trainer(ToyTask(), actions=actions, max_steps=9, eval_every_steps=3, batch_size=8).run()


def test_a_run_that_is_held_shows_its_numbers_and_curves() -> None:
    result = run()
    shown = result._repr_html_()
    assert "toy: 9 steps" in shown
    assert f"<td>test_loss</td><td>{result.metrics['test_loss']:.4f}</td>" in shown
    picture = shown.partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert "<img" not in replace(result, history=())._repr_html_()


def test_a_run_shows_itself_in_one_cell() -> None:
    ipython: Any = pytest.importorskip("IPython")
    from IPython.utils.capture import capture_output

    ipython.core.interactiveshell.InteractiveShell.instance()
    with capture_output() as captured:
        run(NotebookProgress())
    shown = [output.data["text/html"] for output in captured.outputs]
    assert '<progress value="3" max="9">' in "".join(shown)
    assert "Training toy on 44 made-up examples" in shown[-1] and "<img" in shown[-1] and "<progress" not in shown[-1]
