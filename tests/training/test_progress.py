from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from modelyard.training import EvalResult, Evaluated, Event, ProgressBar, RunEnded, RunStarted, StepsDone

RUN: dict[str, Any] = {"task": "toy", "epoch": 1, "max_steps": 12, "steps_per_epoch": 6}
START = RunStarted(**RUN, step=0, data="44 examples")
STEPS = StepsDone(**RUN, step=4, values={"loss": 0.5}, examples_per_second=1234.0, steps=4, seconds=1.0)
RESULT = EvalResult(
    epoch=1, step=6, train={"accuracy": 0.8, "loss": 0.5}, evaluation={"accuracy": 0.75, "loss": 0.6}, seconds=1.0,
    eval_seconds=0.5, examples_per_second=1234.0,
)  # fmt: skip
EPOCH = Evaluated(**RUN, step=6, result=RESULT)
STOP = RunEnded(**{**RUN, "epoch": 2}, step=12, reason="finished")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, *events: Event) -> str:
    bar = ProgressBar(stream=stream)
    for event in events:
        bar(event)
    return stream.getvalue()


def test_without_a_terminal_there_is_a_line_for_each_epoch_and_no_control_code() -> None:
    text = shown(io.StringIO(), START, STEPS, STEPS, EPOCH, STOP)
    assert text.splitlines() == [
        "Training toy on 44 examples",
        "Epoch 1/2  accuracy 0.8000  loss 0.5000  test accuracy 0.7500  test loss 0.6000  1.5 s  1,234 examples/s",
    ]


def test_a_run_that_goes_on_says_so() -> None:
    assert shown(io.StringIO(), replace(START, step=4)).splitlines() == [
        "Training toy on 44 examples; going on from step 4"
    ]


def test_a_run_that_did_not_finish_says_so() -> None:
    text = shown(io.StringIO(), START, STEPS, replace(STOP, reason="interrupted", step=4))
    assert text.splitlines()[-1] == "Training interrupted after step 4"
    text = shown(io.StringIO(), START, STEPS, replace(STOP, reason="terminated", step=4, checkpoint=Path("run/step-4")))
    assert text.splitlines()[-1] == "Training terminated after step 4; started again it goes on from run/step-4"


def test_a_terminal_gets_a_bar_that_is_put_away_at_the_end() -> None:
    text = shown(Terminal(), START, STEPS, EPOCH, STOP)
    assert "4/12" in text
    assert "loss 0.5000  1,234/s" in text
    # The cursor was hidden for the bar and is shown again.
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
