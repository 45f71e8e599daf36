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
# Two devices, for stages of different ones.
DEVICES = """
import tensorflow as tf
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""


def test_there_are_three_blocks() -> None:
    assert len(BLOCKS) == 3


@pytest.mark.parametrize(
    ("number", "before", "after", "expected"),
    [
        (0, "", "", r"'test_accuracy': 0\.\d+"),
        (1, DEVICES, "print(tf.config.list_logical_devices('CPU'))", r"'test_loss': 0\.\d+.*\n.*CPU:1"),
        (2, "", "print([each.name for each in optimizer.variables])", "momentum"),
    ],
)
def test_blocks_run(number: int, before: str, after: str, expected: str) -> None:
    """Each in a process of its own: a strategy comes before everything else."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    cluster = {"cluster": {"worker": [f"localhost:{port}"]}, "task": {"type": "worker", "index": 0}}
    done = subprocess.run(
        [sys.executable, "-c", before + BLOCKS[number] + after],
        capture_output=True,
        check=False,
        env={**os.environ, "MODELYARD_DATA": "subset", "TF_CONFIG": json.dumps(cluster)},
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(expected, done.stdout), done.stdout


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
