"""The number that the core has drawn for a request, in a header."""

from __future__ import annotations

TICKET = "x-modelyard-ticket"


def drawn_in(text: str) -> float | None:
    """The number; None where the core has drawn none, whatever a client has sent in its place."""
    try:
        return float(text)
    except ValueError:
        return None
