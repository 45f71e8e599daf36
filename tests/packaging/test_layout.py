"""The rules of the layout, file by file."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOMS, ROOT, library_files, package_dirs, public_packages, text_files

HARD_CAP = 600
SOFT_CAP = 400
#: Spelt in pieces, for this file is read too.
FORBIDDEN = ("/wo" + "rk/", "index-" + "url", "find-" + "links")
INDEX_HOST = re.compile(r"https?://[^\s\"']*/sim" + r"ple/?(?=[\s\"']|$)")


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_claims_the_namespace(room: str) -> None:
    """One stray file there would hide every other room."""
    assert (ROOT / room / "modelyard").is_dir()
    assert not (ROOT / room / "modelyard" / "__init__.py").exists()


def test_every_package_is_typed_and_has_an_init() -> None:
    missing = [
        str((folder / name).relative_to(ROOT))
        for folder in package_dirs()
        for name in ("py.typed", "__init__.py")
        if not (folder / name).is_file()
    ]
    assert missing == []


def test_the_architecture_page_names_every_package() -> None:
    """In full, or below its room's package."""
    named = set(re.findall(r"`([\w.]+)`", (ROOT / "docs" / "architecture.md").read_text("utf-8")))
    missing = [
        name for name in public_packages() if not {name, name.split(".", 2)[-1], name.rpartition(".")[2]} & named
    ]
    assert missing == []


_CHECK_PACKAGES = """
import importlib, json, sys
from modelyard.errors import MissingDependencyError

def lacks(package, item):
    try:
        return not hasattr(package, item)
    except MissingDependencyError:
        # It is there where its extra is.
        return False

found = []
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    if not package.__doc__:
        found.append(f"{name} does not say what it is")
    if list(package.__all__) != sorted(set(package.__all__)):
        found.append(f"{name}.__all__ is not sorted")
    found += [f"{name} has no {item}" for item in package.__all__ if lacks(package, item)]
print(json.dumps(found))
"""


def test_public_names_are_sorted_and_there() -> None:
    # In processes of their own: Locust's users patch the process that imports them.
    patching = {"modelyard.loadtests.users"}
    names = set(public_packages())
    if importlib.util.find_spec("modelyard_core") is None:
        names.discard("modelyard.serving.transports.native")
    assert names > patching
    for group in (sorted(names - patching), sorted(patching)):
        command = [sys.executable, "-c", _CHECK_PACKAGES, *group]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == []


def test_modules_of_a_package_are_private() -> None:
    public = {"cli.py", "console.py", "errors.py", "lazy.py", "__main__.py", "__init__.py", "locustfile.py"}
    stray = [
        str(path.relative_to(ROOT))
        for path in library_files()
        if not path.name.startswith("_") and path.name not in public
    ]
    assert stray == []


def test_no_file_is_over_the_hard_cap() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in library_files()}
    assert {path: size for path, size in sizes.items() if size > HARD_CAP} == {}


def test_files_over_the_soft_cap_are_rare() -> None:
    files = library_files()
    over = [path.name for path in files if len(path.read_text().splitlines()) > SOFT_CAP]
    assert len(over) <= len(files) // 20, over


def test_constraints_are_pins_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line.strip() and not line.startswith("#")]
    assert pins
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+", line)] == []


def test_constraints_name_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    # What is not in all is too large for the environment that the tests run in.
    named = re.search(r"\[(.*)\]", extras["all"][0])
    assert named is not None
    lists = [
        project["project"]["dependencies"],
        *(extras[name] for name in (*named[1].split(","), "server")),
        *project["dependency-groups"].values(),
    ]
    wanted = {_normal(re.split(r"[\[<>=;!~ ]", item)[0]) for items in lists for item in items} - {"modelyard"}
    pinned = {_normal(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert sorted(wanted - pinned) == []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_no_file_mentions_a_machine_or_a_package_index() -> None:
    found = []
    for path in text_files():
        text = path.read_text("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}: {word}" for word in FORBIDDEN if word in text]
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in INDEX_HOST.finditer(text)]
    assert found == []


def nodes(words: str) -> Iterator[tuple[Path, ast.AST]]:
    """The parts of every file that has words in it: most have none, and need not be parsed."""
    for path in library_files():
        text = path.read_text("utf-8")
        if re.search(words, text):
            for node in ast.walk(ast.parse(text)):
                yield path, node


def test_nothing_unpickles_or_evaluates() -> None:
    found = []
    for path, node in nodes(r"\b(pickle|marshal|dill|eval|exec)\b"):
        if isinstance(node, ast.Import) and any(alias.name in ("pickle", "marshal", "dill") for alias in node.names):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_no_error_is_swallowed() -> None:
    """``except Exception`` (or wider) must do something, and ``pass`` is nothing."""
    found = []
    for path, node in nodes(r"except *:|\b(Base)?Exception\b"):
        if not isinstance(node, ast.ExceptHandler):
            continue
        broad = node.type is None or (
            isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
        )
        if broad and all(isinstance(statement, (ast.Pass, ast.Continue)) for statement in node.body):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []
