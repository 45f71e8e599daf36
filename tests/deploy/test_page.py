"""docs/deployment.md names files, targets and flags that exist."""

from __future__ import annotations

import re

from modelyard.serving import parse_flags
from tests.deploy.conftest import ROOT
from tests.deploy.test_compose import SERVICES

TEXT = (ROOT / "docs" / "deployment.md").read_text()


def test_files_exist() -> None:
    named = set(re.findall(r"\b(?:deploy|tests)/[\w./-]*\w", TEXT))
    assert len(named) >= 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_targets_and_profiles_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert [
        name for name in re.findall(r"(?:`|^|=1 )make ([a-z-]+)", TEXT, re.MULTILINE) if f"\n{name}:" not in makefile
    ] == []
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert set(re.findall(r"^\| `(\w[\w-]*)`", TEXT, re.MULTILINE)) <= set(stages)
    profiles = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}
    assert set(re.findall(r"--profile (\w+)", TEXT)) == profiles


def test_the_default_target_is_the_last_stage() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert re.findall(r"^\| `([\w-]+)` \(default\)", TEXT, re.MULTILINE) == [stages[-1]]


def test_the_drain_time_is_the_servers() -> None:
    drain_s = parse_flags(["--model_base_path=/models/model"]).lifecycle.drain_s
    assert f"`--drain_seconds` ({drain_s:g})" in TEXT
