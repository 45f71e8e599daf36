"""Refusals that the native core words itself are worded the same in Python, which speaks where there is no core."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Texts that begin with the same words say the same, and must go on the same.
_SAME_BEGINNING = 4


def _in_rust(source: str) -> Iterator[str]:
    source = re.sub(r"#\[cfg\(test\)\].*", "", re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE), flags=re.DOTALL)
    for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', source, flags=re.DOTALL):
        yield re.sub(r"\{[^{}]*\}", "{}", re.sub(r"\\\n\s*", "", literal))


def _in_python(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in formatted for part in node.values}
    for node in formatted:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    for each in ast.walk(tree):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in parts:
            yield each.value


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split()[:_SAME_BEGINNING])


def test_texts_in_both_languages_are_the_same() -> None:
    """Fails where a word of one of them is changed in one language alone."""
    rust = {text for path in (ROOT / "serving/core/src").rglob("*.rs") for text in _in_rust(path.read_text("utf-8"))}
    python = {
        text for path in (ROOT / "serving/modelyard").rglob("*.py") for text in _in_python(path.read_text("utf-8"))
    }
    sentences = {text for text in rust if len(text.split()) > _SAME_BEGINNING}
    beginnings = {_words(text) for text in python}
    assert sorted(text for text in sentences - python if _words(text) in beginnings) == []
    shared = sentences & python
    for part in ("--max_queued_requests allows", "longer than the {} s there are", "queue to which", "is stopping"):
        assert any(part in text for text in shared), f"no text of both languages has {part!r}"
