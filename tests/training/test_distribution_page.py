"""docs/distribution.md: its commands are ones that modelyard takes, its names are there."""

from __future__ import annotations

import re
import shlex

import modelyard.training
from modelyard.training._cli import make_parser
from modelyard.training._schedules import SCHEDULES
from modelyard.training._strategy import STRATEGIES
from tests.training.conftest import ROOT

TEXT = (ROOT / "docs" / "distribution.md").read_text("utf-8")


def test_commands_parse() -> None:
    commands = re.findall(r"^modelyard train (.*)$", TEXT, re.MULTILINE)
    assert len(commands) == 4
    assert {make_parser().parse_args(shlex.split(command)).task for command in commands} == {"fashion"}


def test_tables_list_every_strategy_and_schedule() -> None:
    rows = re.findall(r"^\| `(\w+)`", TEXT, re.MULTILINE)
    assert rows == [*STRATEGIES, *SCHEDULES]


def test_names_are_public() -> None:
    names = {"Cluster", "Pipeline", "PipelineOptions", "make_strategy", "offload_slots", "average_loss"}
    assert all(name in TEXT for name in names)
    assert names <= set(modelyard.training.__all__)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https:)([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target
