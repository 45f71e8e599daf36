"""Pages that are made from the server's tables say what the code does."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
from docs.make_pages import PAGES

from modelyard.serving.metrics import FAMILIES
from modelyard.serving.telemetry import FIELDS
from tests.support.pages import ROOT


@pytest.mark.parametrize("module", PAGES, ids=lambda module: module.PAGE.stem)
def test_a_page_is_what_the_tables_say(module: ModuleType) -> None:
    assert module.PAGE.read_text("utf-8") == module.page(), "run: python docs/make_pages.py"


def test_every_metric_and_field_is_on_its_page() -> None:
    metrics, _, operating = (module.page() for module in PAGES)
    assert not [family.name for family in FAMILIES if f"| `{family.name}` |" not in metrics]
    assert not [field.name for field in FIELDS if f"| `{field.name}` |" not in operating]


def test_every_attribute_of_a_span_is_on_its_page() -> None:
    source = (ROOT / "serving" / "modelyard" / "serving" / "telemetry" / "_tracing.py").read_text("utf-8")
    named = set(re.findall(r'"(modelyard\.[a-z_.]+|enduser\.id)":', source))
    assert len(named) >= 11
    page = (ROOT / "docs" / "operating.md").read_text("utf-8")
    assert not [name for name in sorted(named) if f"`{name}`" not in page]
