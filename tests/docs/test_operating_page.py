"""The page on operating says what the code does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from modelyard.serving.telemetry import FIELDS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_tables_are_what_the_code_says() -> None:
    spec = importlib.util.spec_from_file_location("make_operating_page", DOCS / "make_operating_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (DOCS / "operating.md").read_text("utf-8")
    assert text == module.page()
    assert [field.name for field in FIELDS if f"| `{field.name}` |" not in text] == []
