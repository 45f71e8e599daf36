"""What is wrong with a file that is read again and again is logged once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from modelyard.errors import ModelyardError


class Complaints:
    """Logs a problem when it appears or changes, not at every poll."""

    def __init__(self, log: logging.Logger, level: int = logging.ERROR) -> None:
        self._log = log
        self._level = level
        self._last: dict[str, str] = {}

    def say(self, about: str, problem: str) -> None:
        """Logs a problem that differs from the last one of its subject; an empty text says that there is none."""
        if not problem:
            self._last.pop(about, None)
        elif problem != self._last.get(about):
            self._log.log(self._level, "%s", problem)
            self._last[about] = problem

    @contextmanager
    def about(self, consequence: str) -> Iterator[None]:
        """Logs an error of ours that the block raises, behind its consequence, and goes on."""
        try:
            yield
            self.say(consequence, "")
        except ModelyardError as exc:
            self.say(consequence, f"{consequence}: {exc.message}")
