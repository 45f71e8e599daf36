"""Key and certificates that may change while the server runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.serving.config import Complaints, TlsConfig, read_tls_config

_LOG = logging.getLogger("modelyard.serving.access")
#: Seconds between two looks at the dates of a certificate that stays: they cost milliseconds.
_DATES_S = 600.0


class LiveTls:
    """What ports speak TLS with, from the next connection on."""

    def __init__(self, config: TlsConfig, path: Path | None = None, client_ca: Path | None = None) -> None:
        self.config = config
        self._path, self._client_ca = path, client_ca
        self._complaints = Complaints(_LOG)
        self._dates = Complaints(_LOG, logging.WARNING)
        self._changed: list[Callable[[TlsConfig], None]] = []
        self._look_at_dates()

    def on_change(self, use: Callable[[TlsConfig], None]) -> None:
        """Calls ``use`` with each new configuration, on any thread; it raises ConfigurationError to refuse one."""
        self._changed.append(use)

    def look(self) -> None:
        """Reads the files; what cannot be used is logged, and what was in force stays."""
        if self._path is None:
            return
        with self._complaints.about("TLS stays as it was"):
            config = read_tls_config(self._path, self._client_ca)
            if config.verify_client != self.config.verify_client:
                raise ConfigurationError(
                    f"{self._path} says something else about whether clients must show a certificate; that changes "
                    "when the server is started again."
                )
            if config != self.config:
                for use in self._changed:
                    use(config)
                self.config = config
                _LOG.info("%s: key and certificates were read again; new connections use them", self._path)
                self._dates_at = 0.0
        if time.monotonic() >= self._dates_at:
            self._look_at_dates()

    def _look_at_dates(self) -> None:
        self._dates.say("dates", self.config.date_problem())
        self._dates_at = time.monotonic() + _DATES_S
