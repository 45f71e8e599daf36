"""What a server keeps of keys and certificates while it runs."""

from __future__ import annotations

from modelyard.serving.access import Access, LiveTls, watch
from modelyard.serving.config import ServerOptions


class Security:
    """Who may do what, and key and certificates; both follow their files.

    Args:
        options: The server's.

    Raises:
        ConfigurationError: The file of principals cannot be used.
    """

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
        """Looks at the files until it is cancelled."""
        looks = [self.access.look] if self.tls is None else [self.access.look, self.tls.look]
        await watch(looks, self._wait_s)
