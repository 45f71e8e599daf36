"""What the pages name exists: files, folders, and in CONTRIBUTING.md classes, functions and constants, too."""

from __future__ import annotations

import re

import pytest

from tests.packaging.conftest import text_files
from tests.support.pages import ROOT

#: A path may leave out the middle: ``export/.../formats/``.
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?")
_FILE = re.compile(r"[\w.]+\.(?:py|rs|md|json)")
_NAME = re.compile(r"_?[A-Za-z]\w*(?:\.\w+)*")
FILES = [path.relative_to(ROOT) for path in text_files()]
#: Files, and the folders that they are in.
PLACES = {place.as_posix() for path in FILES for place in (path, *path.parents)}
TOP = {path.parts[0] for path in FILES if len(path.parts) > 1}


def quoted(page: str) -> list[str]:
    """What a page has in backticks, blocks of code apart."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def exists(path: str) -> bool:
    """Below its top-level folder, or where it names none, anywhere."""
    path = path.rstrip("/")
    if path.partition("/")[0] in TOP and "/.../" not in path:
        return path in PLACES
    start, _, end = path.rpartition("/.../")
    return any(place.startswith(start) and f"/{place}".endswith(f"/{end}") for place in PLACES)


@pytest.mark.parametrize("page", [path.as_posix() for path in FILES if path.suffix == ".md"])
def test_paths_of_the_repository_exist(page: str) -> None:
    named = {text for text in quoted(page) if _PATH.fullmatch(text) and text.partition("/")[0] in TOP}
    assert [path for path in sorted(named) if not exists(path)] == []


def test_what_contributing_names_exists() -> None:
    sources = "\n".join((ROOT / path).read_text("utf-8") for path in FILES if path.suffix in (".py", ".rs"))
    words = set(re.findall(r"\w+", sources))
    named = quoted("CONTRIBUTING.md")
    paths = [text for text in named if _PATH.fullmatch(text) or _FILE.fullmatch(text)]
    names = [text for text in named if _NAME.fullmatch(text) and text not in paths]
    assert len(paths) > 40
    assert [path for path in paths if not exists(path)] == []
    assert [name for name in names if not words.issuperset(name.split("."))] == []
