"""The migration page says what the code does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_what_the_tables_say() -> None:
    spec = importlib.util.spec_from_file_location("make_migration_page", DOCS / "make_migration_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "migrating-from-tensorflow-serving.md").read_text("utf-8") == module.page()
