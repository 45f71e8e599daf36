"""Makes the tables of docs/operating.md from the server's own."""

from __future__ import annotations

from pathlib import Path

from modelyard.serving.config import FLAGS
from modelyard.serving.telemetry import FIELDS

PAGE = Path(__file__).with_name("operating.md")
_LOGS = ("access_log", "access_log_format", "slow_request_ms", "log_level", "log_format")


def page() -> str:
    """The page with its tables as the code has them."""
    flags = [
        "| flag | default | |", "|---|---|---|",
        *(f"| `--{flag.name}` | `{flag.default}` | {flag.help} |" for flag in FLAGS if flag.name in _LOGS),
    ]  # fmt: skip
    fields = [
        "| field | there | what it says |", "|---|---|---|",
        *(f"| `{each.name}` | {'always' if each.always else 'if not empty'} | {each.what} |" for each in FIELDS),
    ]  # fmt: skip
    text = PAGE.read_text("utf-8")
    for name, lines in (("flags", flags), ("fields", fields)):
        begin, end = f"<!-- {name}: written by docs/make_operating_page.py -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise SystemExit(f"{PAGE} has no place for the table of {name}")
        text = before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    return text
