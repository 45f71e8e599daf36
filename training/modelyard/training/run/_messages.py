"""Words of other people's errors, for messages."""

from __future__ import annotations


def first_line(exc: Exception) -> str:
    """What went wrong, without what libraries print below it."""
    message = str(getattr(exc, "message", None) or exc)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else type(exc).__name__
