"""Words of other people's errors, for messages."""

from __future__ import annotations

import re

#: What TensorFlow says of its own ops, before and behind what went wrong in them.
_OWN = re.compile(r"\{\{function_node [^}]*\}\} |\s\[Op:\w+\].*")


def first_line(exc: Exception) -> str:
    """What went wrong, without what libraries print below it."""
    message = _OWN.sub("", str(getattr(exc, "message", None) or exc))
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0] if lines else type(exc).__name__
