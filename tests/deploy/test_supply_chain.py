"""What the images are made of is pinned and listed, and the same sources make the same wheel."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.conftest import ROOT

IMAGE = ROOT / "deploy" / "image"
_PIN = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+")
_ROOMS = ("clients", "export", "training", "serving", "loadtests")


def copy_of_sources(folder: Path) -> Path:
    """What the Dockerfile copies for the wheel."""
    folder.mkdir()
    for name in ("constraints.txt", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    for room in _ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__", "target"))
    return folder


def build(sources: Path, out: Path) -> tuple[str, str]:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1577836800"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    done = subprocess.run(
        command, cwd=sources, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = out.glob("*.whl")
    return wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_two_builds_make_the_same_wheel(tmp_path: Path) -> None:
    """From two folders, written at other times and in another order."""
    first = copy_of_sources(tmp_path / "first")
    second = copy_of_sources(tmp_path / "second")
    for path in second.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert build(first, tmp_path / "a") == build(second, tmp_path / "b")


def test_another_source_makes_another_wheel(tmp_path: Path) -> None:
    sources = copy_of_sources(tmp_path / "sources")
    before = build(sources, tmp_path / "a")
    errors = sources / "clients" / "modelyard" / "errors.py"
    errors.write_text(errors.read_text() + "\n")
    assert build(sources, tmp_path / "b") != before


def test_the_tools_of_the_build_are_pinned() -> None:
    lines = [line for line in (IMAGE / "tools.txt").read_text().splitlines() if not line.startswith("#")]
    assert any(line.startswith("cyclonedx-bom==") for line in lines)
    assert [line for line in lines if not _PIN.fullmatch(line)] == []


def test_every_installation_in_the_image_is_constrained() -> None:
    text = (ROOT / "Dockerfile").read_text() + (IMAGE / "make_environment.sh").read_text()
    joined = text.replace("\\\n", " ")
    installs = re.findall(r"pip(?: --python \S+)? install [^&\n]*", joined)
    assert len(installs) == 4
    assert [call for call in installs if "constraints.txt" not in call and "tools.txt" not in call] == []


def test_the_labels_have_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}\n" in (ROOT / "Dockerfile").read_text()
    images = [
        match
        for path in sorted((ROOT / "deploy").rglob("*.yaml"))
        for match in re.findall(r"image: modelyard/[\w-]+:(\S+)", path.read_text())
    ]
    assert len(images) >= 7
    assert set(images) == {version}


def test_what_the_dockerfile_copies_is_in_its_context() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert [s for s in copied if not any(s == name or s.startswith(f"{name}/") for name in allowed)] == []


def licences(site: Path) -> subprocess.CompletedProcess[str]:
    """Of a folder of packages alone: -S keeps the test's own environment out."""
    command = [sys.executable, "-S", str(IMAGE / "licences.py")]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT", "MIT"),
        ("License: BSD 3-Clause", "BSD 3-Clause"),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", "MIT License"),
    ],
)
def test_licences_are_listed(tmp_path: Path, metadata: str, licence: str) -> None:
    package(tmp_path, metadata)
    done = licences(tmp_path)
    assert (done.returncode, done.stdout) == (0, f"thing 1.0: {licence}\n")


def test_a_package_without_a_licence_stops_the_build(tmp_path: Path) -> None:
    package(tmp_path, "Summary: x")
    done = licences(tmp_path)
    assert done.returncode == 1
    assert "thing" in done.stderr


def package(site: Path, metadata: str) -> None:
    folder = site / "thing-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: thing\nVersion: 1.0\n{metadata}\n")
