"""Pages: blocks of code of the documentation, and what a page of HTML says."""

from __future__ import annotations

import html
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def all_blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block of a page, by its path in the repository."""
    text = (ROOT / page).read_text("utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [text for kind, text in all_blocks(page) if kind == language]


def text_of(page: str) -> str:
    """What a page says, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
