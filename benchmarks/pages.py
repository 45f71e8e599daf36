"""The parts of pages that scripts write, and what all of them say."""

from __future__ import annotations

import platform
from pathlib import Path


def read_section(page: Path, start: str, end: str) -> str:
    """What stands between two marks, which the page has once each."""
    _, rest = page.read_text("utf-8").split(start)
    section, _ = rest.split(end)
    return section.strip("\n")


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


def processor_facts() -> dict[str, str]:
    """What Linux says of a processor, by its own names; empty elsewhere."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def processor() -> str:
    """The processor's name."""
    return processor_facts().get("model name") or platform.processor() or "unknown processor"
