"""Sockets that listen, for every transport."""

from __future__ import annotations

import contextlib
import socket

BACKLOG = 2048


def listen(port: int, *, reuse_port: bool = False) -> socket.socket:
    """Listens on a port, on all addresses of both families.

    Args:
        port: The port.
        reuse_port: Other processes may listen on the same port.

    Raises:
        OSError: The port cannot be had.
    """
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            # Kernels with IPv6 switched off still say that they have it.
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG, reuse_port=reuse_port
            )
    return socket.create_server(("", port), backlog=BACKLOG, reuse_port=reuse_port)


def reserve(port: int) -> socket.socket:
    """Takes a port for several processes that listen on it, without listening.

    Args:
        port: The port.

    Returns:
        While it is open, no process of somebody else gets the port.

    Raises:
        OSError: The port is in use. Without this look, two servers of one user would share it and not know.
    """
    listen(port).close()
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with contextlib.ExitStack() as opened:
        held = opened.enter_context(socket.socket(family))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind(("", port))
        opened.pop_all()
        return held
