from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelyard.errors import TrainingError
from modelyard.training import JsonlLog, RunStarted, StepsDone, Trainer, TrainerOptions
from tests.training.toy_task import ToyTask

RUN: dict[str, Any] = {"task": "toy", "epoch": 1, "max_steps": 12, "steps_per_epoch": 6}
EVENT = RunStarted(**RUN, step=0)
STEPS = StepsDone(**RUN, step=0, values={"loss": 0.5}, examples_per_second=1.0, steps=4, seconds=1.0)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_event_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    options = TrainerOptions(epochs=2, batch_size=8, steps_per_loop=4, model_dir=tmp_path)
    result = Trainer(ToyTask(), options, [JsonlLog(path)]).run()
    records = lines(path)
    kinds = ["start", *["steps", "steps", "evaluation", "checkpoint"] * 2, "stop"]
    assert [record["kind"] for record in records] == kinds
    assert [record["step"] for record in records] == [0, 4, 6, 6, 6, 10, 12, 12, 12, 12]
    assert records[0]["data"] == "44 made-up examples"
    assert records[1]["values"].keys() == {"loss"}
    assert records[7]["result"]["train"] == dict(result.history[1].train)
    assert records[8]["path"] == str(result.checkpoint)
    assert all(record["task"] == "toy" and "T" in record["time"] for record in records)


def test_numbers_that_json_has_no_word_for_are_null(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    log(replace(STEPS, values={"nan": math.nan, "inf": -math.inf, "loss": 0.5}, examples_per_second=math.inf))
    (record,) = lines(tmp_path / "log.jsonl")
    assert (record["values"], record["examples_per_second"]) == ({"nan": None, "inf": None, "loss": 0.5}, None)


def test_lines_of_steps_that_come_again_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = JsonlLog(path)
    for step in (0, 4, 8):
        log(replace(STEPS, step=step))
    with path.open("a") as file:
        file.write('{"kind": "steps", "st')
    JsonlLog(str(path))(replace(EVENT, step=4))
    assert [(record["kind"], record["step"]) for record in lines(path)] == [("steps", 0), ("steps", 4), ("start", 4)]


@pytest.mark.parametrize("content", ["not JSON\n", "{}\n", "[1]\n", '{"step": "x"}\n', "\xff\n"])
def test_a_file_of_somebody_else_is_not_touched(content: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(content, "latin-1")
    with pytest.raises(TrainingError, match="did not write"):
        JsonlLog(path)(EVENT)
    assert path.read_text("latin-1") == content


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="cannot be written"):
        JsonlLog(tmp_path)(STEPS)
