"""docs/distribution.md: its commands are ones that modelyard takes, its blocks run, its names are there."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import typing

import pytest

import modelyard.training
from modelyard.training.cli._cli import make_parser
from modelyard.training.distribute import STRATEGIES, PipelineOptions
from tests.training.conftest import ROOT

TEXT = (ROOT / "docs" / "distribution.md").read_text("utf-8")


def test_commands_parse() -> None:
    commands = re.findall(r"^modelyard train (.*)$", TEXT, re.MULTILINE)
    assert len(commands) == 4
    assert {make_parser().parse_args(shlex.split(command)).task for command in commands} == {"fashion"}


BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_there_are_three_blocks() -> None:
    assert len(BLOCKS) == 3


def test_the_block_of_a_cluster_runs() -> None:
    """In a process of its own: a strategy comes before everything else."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    cluster = {"cluster": {"worker": [f"localhost:{port}"]}, "task": {"type": "worker", "index": 0}}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[0]],
        capture_output=True,
        check=False,
        env={**os.environ, "MODELYARD_DATA": "subset", "TF_CONFIG": json.dumps(cluster)},
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"'test_accuracy': 0\.\d+", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("number", "after", "expected"),
    [
        # The tests have several devices, for stages of different ones.
        (1, "print(result.task.model.devices)", r"'test_loss': 0\.\d+.*\n.*CPU:1"),
        (2, "print([each.name for each in optimizer.variables])", "momentum"),
    ],
)
def test_blocks_run(
    number: int, after: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MODELYARD_DATA", "subset")
    exec(compile(BLOCKS[number] + after, f"block {number}", "exec"), {"__name__": "block"})
    said = capsys.readouterr().out
    assert re.search(expected, said), said


def test_tables_list_every_strategy_and_schedule() -> None:
    rows = re.findall(r"^\| `(\w+)`", TEXT, re.MULTILINE)
    assert rows == [*STRATEGIES, *typing.get_args(typing.get_type_hints(PipelineOptions)["schedule"])]


def test_names_are_public() -> None:
    names = {"Cluster", "Pipeline", "PipelineOptions", "make_strategy", "offload_slots", "average_loss"}
    assert all(name in TEXT for name in names)
    assert names <= set(modelyard.training.__all__)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https:)([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
