"""SIGHUP: everything that comes from files is read again, now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from modelyard.errors import ModelyardError

_LOG = logging.getLogger("modelyard.serving")

#: Reads something again, and says what changed: empty for nothing. Raises an error of ours for what cannot be used.
Reload = Callable[[], Awaitable[str]]


class Reloads:
    """What is read again, one after the other."""

    def __init__(self) -> None:
        self._all: list[Reload] = []
        self._running = asyncio.Lock()

    def add(self, reload: Reload) -> None:
        """Has something read again, too.

        Args:
            reload: Called on the event loop.
        """
        self._all.append(reload)

    async def run(self) -> None:
        """Reads everything again; a failure of one is no matter for the others."""
        async with self._running:
            said: list[str] = []
            failed = False
            for reload in self._all:
                try:
                    said.append(await reload())
                except ModelyardError as exc:
                    failed = True
                    _LOG.error("reload: %s; what was in force stays", exc.message.rstrip("."))
                # The others are to be read all the same.
                except Exception:
                    failed = True
                    _LOG.exception("reload: it failed unexpectedly; what was in force stays")
            changes = "; ".join(filter(None, said))
            if changes or not failed:
                _LOG.info("reload: %s", changes or "nothing changed")
