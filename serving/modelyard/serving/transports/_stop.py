"""The end of the time that requests get at a stop."""

from __future__ import annotations

import logging

_LOG = logging.getLogger("modelyard.serving")


def warn_unanswered(number: int, grace_s: float) -> str:
    """Logs how many requests were not answered in time; returns what their callers are told."""
    if number:
        what = "request was" if number == 1 else "requests were"
        _LOG.warning("%d %s not answered within --drain_seconds=%g", number, what, grace_s)
    return f"The server stops, and there was no answer within its --drain_seconds={grace_s:g}. Ask another server."
