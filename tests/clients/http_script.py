"""Reads HTTP requests, for scripted servers."""

from __future__ import annotations

import socket


def read_message(connection: socket.socket) -> tuple[bytes, bytes] | None:
    """Head and body of the next request; None at the end."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(1 << 16)
        if not part:
            return None
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    ]
    while lengths and len(body) < lengths[0]:
        body += connection.recv(1 << 16)
    return head, body
