"""Sockets that listen, for every transport."""

from __future__ import annotations

import contextlib
import socket

BACKLOG = 2048


def listen(port: int) -> socket.socket:
    """Listens on a port, on all addresses of both families."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            # Kernels with IPv6 switched off still say that they have it.
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("", port), backlog=BACKLOG)
