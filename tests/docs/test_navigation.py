"""The lists of pages hold the same ones: README.md's table, the site's navigation, and the files themselves."""

from __future__ import annotations

import ast
import re

import yaml

from tests.support.pages import ROOT

#: Pages of the site that are made from files outside docs/, as docs/site/hooks.py lists them.
_ELSEWHERE = re.compile(r"^ELSEWHERE = (\{.*?^\})", re.MULTILINE | re.DOTALL)


def _pages(navigation: object) -> set[str]:
    if isinstance(navigation, str):
        return {navigation}
    parts = navigation.values() if isinstance(navigation, dict) else navigation if isinstance(navigation, list) else ()
    return {page for part in parts for page in _pages(part)}


def test_every_page_is_in_the_readme_and_in_the_navigation() -> None:
    found = _ELSEWHERE.search((ROOT / "docs" / "site" / "hooks.py").read_text("utf-8"))
    assert found is not None
    files = {f"docs/{path.name}": path.name for path in (ROOT / "docs").glob("*.md")} | ast.literal_eval(found[1])
    navigation = _pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    assert {page for page in navigation if not page.startswith("reference/")} == set(files.values())
    readme = (ROOT / "README.md").read_text("utf-8")
    table = readme[readme.index("## All pages") : readme.index("## Results")]
    assert set(re.findall(r"\]\(([^)#]+\.md)\)", table)) == set(files) - {"README.md"}
