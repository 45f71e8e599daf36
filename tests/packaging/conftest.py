"""Where the project's files are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("clients", "export", "training", "serving", "loadtests")
GENERATED = ROOT / "clients" / "modelyard" / "wire" / "_generated"


def library_files() -> list[Path]:
    """Every hand-written Python file that the wheel ships."""
    files = [path for room in ROOMS for path in sorted((ROOT / room / "modelyard").rglob("*.py"))]
    return [path for path in files if GENERATED not in path.parents]


def package_dirs() -> list[Path]:
    """Every directory of the namespace that holds Python files, generated code apart."""
    return sorted({path.parent for path in library_files()} - {ROOT / room / "modelyard" for room in ROOMS})


def public_packages() -> list[str]:
    """Import names of every package."""
    return [".".join(folder.relative_to(ROOT).parts[1:]) for folder in package_dirs()]


def room_of(path: Path) -> str:
    """The package below ``modelyard`` that a file belongs to, such as ``wire`` or ``errors``."""
    return path.relative_to(ROOT).parts[2].removesuffix(".py")


def text_files() -> Iterator[Path]:
    """Every text file of the repository that people wrote."""
    suffixes = {
        ".py",
        ".rs",
        ".java",
        ".md",
        ".toml",
        ".txt",
        ".proto",
        ".json",
        ".yaml",
        ".yml",
        ".sh",
        ".cfg",
        ".html",
        ".svg",
        ".css",
    }
    names = {"Makefile", "Dockerfile", "LICENSE", "run", ".gitignore", ".dockerignore"}
    for folder in (*ROOMS, "tests", "docs", "benchmarks", "deploy", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            # What tools leave behind, Python's and cargo's, is not source.
            written = {"__pycache__", "target"}.isdisjoint(path.parts)
            if written and path.is_file() and (path.suffix in suffixes or path.name in names):
                yield path
    yield from (
        path for path in sorted(ROOT.iterdir()) if path.is_file() and (path.suffix in suffixes or path.name in names)
    )


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as a release builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("modelyard-*.whl")
    return built
