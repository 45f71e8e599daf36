"""The wheel has every room, what the rooms read at run time, and no tests."""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.packaging.conftest import GENERATED, ROOMS, ROOT, library_files, package_dirs


@pytest.fixture(scope="module")
def sizes(wheel: Path) -> dict[str, int]:
    """Compressed size of every file in the wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return {item.filename: item.compress_size for item in archive.infolist()}


@pytest.fixture(scope="module")
def names(sizes: dict[str, int]) -> set[str]:
    return set(sizes)


def _in_wheel(path: Path) -> str:
    return "/".join(path.relative_to(ROOT).parts[1:])


def test_has_every_module(names: set[str]) -> None:
    expected = {_in_wheel(path) for path in [*library_files(), *GENERATED.glob("*.py*")] if path.is_file()}
    assert sorted(expected - names) == []


def test_has_what_is_read_at_run_time(names: set[str]) -> None:
    expected = {_in_wheel(folder / "py.typed") for folder in package_dirs()}
    expected |= {_in_wheel(path) for path in (ROOT / "clients" / "modelyard" / "wire" / "protos").glob("*.proto")}
    expected |= {_in_wheel(path) for path in (ROOT / "export" / "modelyard" / "artifact").glob("*.json")}
    console = ROOT / "serving" / "modelyard" / "serving" / "handlers" / "console"
    expected |= {_in_wheel(path) for path in (console / "static").iterdir()}
    templates = [path for room in ROOMS for path in (ROOT / room / "modelyard").rglob("templates/*")]
    expected |= {_in_wheel(path) for path in templates}
    subset = ROOT / "training" / "modelyard" / "training" / "data" / "fashion_mnist_subset"
    expected |= {_in_wheel(path) for path in subset.iterdir() if path.is_file()}
    assert all(any(name.endswith(kind) for name in expected) for kind in (".gz", ".html", ".css", ".js", ".svg"))
    assert sorted(expected - names) == []


def test_has_nothing_else(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"modelyard"}
    strays = [
        name
        for name in names
        if "/tests/" in name or name.rsplit("/", 1)[-1].startswith(("test_", "conftest")) or name.endswith(".pyc")
    ]
    assert strays == []
    assert "modelyard/__init__.py" not in names


def test_has_the_licence_and_the_command(names: set[str]) -> None:
    (licence,) = [name for name in names if name.endswith("licenses/LICENSE")]
    assert licence.startswith("modelyard-")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"modelyard": "modelyard.cli:main"}
    assert any(name.endswith("entry_points.txt") for name in names)


def test_the_clients_part_is_small(sizes: dict[str, int]) -> None:
    """The thin client has to stay thin: its part of the wheel, as it is downloaded."""
    parts = (
        "modelyard/errors.py",
        "modelyard/cli.py",
        "modelyard/console.py",
        "modelyard/lazy.py",
        "modelyard/clients/",
        "modelyard/wire/",
    )
    assert 0 < sum(size for name, size in sizes.items() if name.startswith(parts)) < 200_000
