"""Changes of the configuration while the server runs: reload requests and the polled config file."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Sequence
from pathlib import Path

from modelyard.errors import ModelyardError, PermissionDeniedError
from modelyard.serving._config import ModelConfig
from modelyard.serving._flags import read_model_config
from modelyard.serving._manager import ModelManager

_LOG = logging.getLogger("modelyard.serving")

#: Longest wait for the versions of a new model to be tried.
_RELOAD_TIMEOUT_S = 600.0


class Admin:
    """Changes the models that are served.

    Args:
        manager: The models.
        allow_remote: Whether other hosts than this one may ask for changes.
    """

    def __init__(self, manager: ModelManager, *, allow_remote: bool) -> None:
        self._manager = manager
        self._allow_remote = allow_remote

    def check_peer(self, host: str | None) -> None:
        """Refuses changes that come from elsewhere.

        Args:
            host: The caller's IP address; None for a UNIX socket.

        Raises:
            PermissionDeniedError: Another host, and the server was not told to allow that.
        """
        if self._allow_remote or host is None:
            return
        with contextlib.suppress(ValueError):
            address = ipaddress.ip_address(host)
            mapped = getattr(address, "ipv4_mapped", None)
            if (mapped or address).is_loopback:
                return
        raise PermissionDeniedError(
            f"Configuration changes from {host} are refused: only this host itself may ask for them. "
            "Start the server with --allow_remote_admin to change that."
        )

    async def reload(self, configs: Sequence[ModelConfig]) -> None:
        """Replaces the configuration, off the event loop.

        Args:
            configs: The new models.

        Raises:
            ModelNotReadyError: A label points to a version that is not loaded.
        """
        await asyncio.to_thread(self._manager.reload, configs, timeout_s=_RELOAD_TIMEOUT_S)
        _LOG.info("configuration replaced; the models are: %s", ", ".join(sorted(self._manager.names)) or "none")

    async def poll_file(self, path: Path, wait_s: float) -> None:
        """Applies a model config file again whenever it changes; what is wrong with it is logged, and nothing changes.

        Args:
            path: The file.
            wait_s: Seconds between two looks.
        """
        applied: tuple[ModelConfig, ...] | None = self._manager.configs
        complaint = ""
        while True:
            await asyncio.sleep(wait_s)
            try:
                configs = await asyncio.to_thread(read_model_config, path)
                if configs != applied:
                    await self.reload(configs)
                    applied = configs
                complaint = ""
            except ModelyardError as exc:
                if exc.message != complaint:
                    _LOG.error("the configuration stays as it was: %s", exc.message)
                complaint = exc.message
