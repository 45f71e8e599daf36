"""Access rules and TLS of a running server, which follow their files."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from modelyard.serving.access import Access, LiveTls
from modelyard.serving.config import ServerOptions

_LOG = logging.getLogger("modelyard.serving.access")
#: Longest time between two polls, in seconds: a key that was revoked is refused soon.
_POLL_S = 2.0


class Security:
    def __init__(self, options: ServerOptions) -> None:
        files = options.access
        wait_s = options.watch.poll_wait_s
        self._wait_s = min(wait_s, _POLL_S) if wait_s > 0 else _POLL_S
        self._stopped = threading.Event()
        self.access = Access(
            files.file, insecure_admin=files.insecure_admin, unix_socket=bool(options.grpc_socket_path)
        )
        self.tls = (
            None if options.tls is None else LiveTls(options.tls, files.ssl_config_file, files.ssl_client_ca_file)
        )

    def start(self) -> None:
        """Polls the files until :meth:`stop`.

        Each on a thread of its own: an issuer of web tokens that answers slowly does not keep a key valid that was
        taken out of a file. And a stop waits for none of them.
        """
        looks = [self.access.look, self.access.look_at_tokens, *([] if self.tls is None else [self.tls.look])]
        for look in looks:
            threading.Thread(target=self._watch, args=(look,), name="modelyard-security", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self, look: Callable[[], None]) -> None:
        while not self._stopped.wait(self._wait_s):
            try:
                look()
            # Without this thread, a key that was revoked would stay valid.
            except Exception:
                _LOG.exception("a look at keys and certificates failed; trying again")
