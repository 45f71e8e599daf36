"""The metrics page says what the code does."""

from __future__ import annotations

from docs.make_metrics_page import PAGE, page

from modelyard.serving.metrics import FAMILIES


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text("utf-8") == page()


def test_every_metric_is_on_it() -> None:
    text = page()
    assert not [family.name for family in FAMILIES if f"| `{family.name}` |" not in text]
