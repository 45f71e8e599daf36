"""Access rules and TLS of a running server, which follow their files."""

from __future__ import annotations

import asyncio
import logging

from modelyard.serving.access import Access, LiveTls
from modelyard.serving.config import ServerOptions

_LOG = logging.getLogger("modelyard.serving.access")
#: Longest time between two polls, in seconds: a key that was revoked is refused soon.
_POLL_S = 2.0


class Security:
    def __init__(self, options: ServerOptions) -> None:
        files = options.access
        self._wait_s = options.watch.poll_wait_s
        self.access = Access(
            files.file, insecure_admin=files.insecure_admin, unix_socket=bool(options.grpc_socket_path)
        )
        self.tls = (
            None if options.tls is None else LiveTls(options.tls, files.ssl_config_file, files.ssl_client_ca_file)
        )

    async def watch(self) -> None:
        """Polls the files until it is cancelled, off the event loop."""
        looks = [self.access.look] if self.tls is None else [self.access.look, self.tls.look]
        while True:
            await asyncio.sleep(min(self._wait_s, _POLL_S) if self._wait_s > 0 else _POLL_S)
            for look in looks:
                try:
                    await asyncio.to_thread(look)
                # Without this task, a key that was revoked would stay valid.
                except Exception:
                    _LOG.exception("a look at keys and certificates failed; trying again")
