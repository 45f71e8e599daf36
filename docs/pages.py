"""The parts of pages that scripts write."""

from __future__ import annotations

from pathlib import Path


def write_section(page: Path, start: str, end: str, section: str) -> None:
    """Replaces what stands between two marks.

    Args:
        page: The page.
        start: The mark before it.
        end: The mark behind it.
        section: What is to stand there.

    Raises:
        ValueError: The page has not each mark once.
    """
    text = page.read_text("utf-8")
    before, rest = text.split(start)
    _, after = rest.split(end)
    page.write_text(f"{before}{start}\n{section}\n{end}{after}", "utf-8")
