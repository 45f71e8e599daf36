"""The native core: one version with the package, and ``make install`` with and without Rust."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

CORE = ROOT / "serving" / "core"


def build(environment: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """What ``make install`` runs of the core, with the programs of one folder."""
    command = ["/bin/sh", str(CORE / "build.sh"), str(environment)]
    variables = {"PATH": str(path), "CARGO_HOME": str(environment / "cargo"), "CARGO_NET_OFFLINE": "true"}
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the programs that every machine has."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("dirname", "head", "rm", "sed", "touch"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return folder


def test_without_rust_one_line_says_so(tmp_path: Path, programs: Path) -> None:
    done = build(tmp_path, programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"The native core is not built: there is no cargo .*--transport=python.*\n", done.stdout)
    assert not (tmp_path / ".wheel").exists()


@pytest.mark.skipif(shutil.which("cargo") is None, reason="there is no cargo")
def test_without_crates_one_line_says_so(tmp_path: Path, programs: Path) -> None:
    for name in ("cargo", "rustc"):
        (programs / name).symlink_to(real(name))
    (programs / "cc").symlink_to(sys.executable)
    done = build(tmp_path, programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"The native core is not built: cargo cannot get its crates \(.+\)\..*\n", done.stdout)
    assert not (tmp_path / ".wheel").exists()


def real(name: str) -> str:
    """The program itself: what rustup puts in its place looks for a home."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{sysroot}/bin/{name}"


def test_the_core_has_the_version_of_the_package() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    crate = tomllib.loads((CORE / "Cargo.toml").read_text())["package"]
    distribution = tomllib.loads((CORE / "pyproject.toml").read_text())["project"]
    assert crate["version"] == distribution["version"] == package["version"]
    assert f"modelyard-core=={crate['version']}" in package["optional-dependencies"]["native"]
