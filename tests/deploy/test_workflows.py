"""The workflow of the public repository: its schema, and that it calls what there is."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.conftest import ROOT, schema_errors

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


def load(path: Path) -> dict[Any, Any]:
    # YAML 1.1 reads the key "on" as true.
    found: dict[Any, Any] = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    return found


def commands(path: Path) -> list[str]:
    return [step["run"] for job in load(path)["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_follows_the_schema(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    document["on"] = document.pop(True)
    assert schema_errors("github-workflows", document) == []
    wrong = copy.deepcopy(document)
    next(iter(wrong["jobs"].values()))["step"] = []
    assert schema_errors("github-workflows", wrong) != []


def test_calls_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [command for path in FILES for command in commands(path)]
    called = {word for command in lines for word in re.findall(r"^make ([a-z0-9-]+)", command, re.MULTILINE)}
    assert {"lint", "types", "unit", "h2spec", "image-test", "demo", "loadtest"} <= called
    assert called <= targets


def test_wheels_are_built_by_the_pinned_maturin() -> None:
    wheels = load(ROOT / ".github" / "workflows" / "wheels.yaml")["jobs"]["core"]
    (action,) = [step["with"] for step in wheels["steps"] if "maturin-action" in step.get("uses", "")]
    version = action["maturin-version"].removeprefix("v")
    assert f"maturin=={version}\n" in (ROOT / "constraints.txt").read_text()
    systems = {entry["target"] for entry in wheels["strategy"]["matrix"]["include"]}
    assert {"x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "universal2-apple-darwin"} == systems


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_has_no_rights_and_always_ends(path: Path) -> None:
    document = load(path)
    assert document["permissions"] == {"contents": "read"}
    assert all(int(job["timeout-minutes"]) <= 60 for job in document["jobs"].values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_pinned_to_commits(path: Path) -> None:
    """A tag can be moved to other code; the comment says which one it was."""
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []
