"""Bytes over HTTP/1.1 on plain sockets: what a call to a model needs, and no more.

A general HTTP library spends several times as long on a small call as the call
itself takes (``make bench-clients`` has the figures). Connections are pooled
and reused; a request goes out in one ``send``.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from modelyard.clients.http import Http1Reader, Http1Requests, Reply, answer_of
from modelyard.clients.protocols import Answer
from modelyard.clients.transport import Address, ClientOptions, Send
from modelyard.clients.transport.lean._sockets import SocketPool, arm, readable

_CHUNK = 1 << 18


class LeanRestTransport:
    """A blocking pool of HTTP connections.

    Args:
        address: Where the server is.
        options: TLS, sizes, compression and keep-alive.

    Raises:
        ConfigurationError: A TLS file cannot be read.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._url = address.http_url
        self._limit = options.max_message_bytes
        self._requests = Http1Requests(address, options)
        self._pool: SocketPool[_Connection] = SocketPool(address, options)

    def send(self, send: Send[Any]) -> Answer:
        """Sends one request and waits for its answer.

        Args:
            send: The request, and the seconds until it is given up.

        Raises:
            ModelyardError: The class that the failure or the HTTP status stands for.
        """
        url = self._url + send.call.path
        deadline = time.monotonic() + send.timeout_s
        request = self._requests.write(send.call, send.headers, url)
        with self._pool.slot(url, send.timeout_s):
            reply = self._exchange(request, url, deadline, fresh=send.call.fresh)
        return answer_of(reply.status, reply.headers, reply.data, url)

    def close(self) -> None:
        """Closes the connections."""
        self._pool.close()

    def _exchange(self, request: bytes, url: str, deadline: float, *, fresh: bool) -> Reply:
        connection = None if fresh else self._pool.take()
        if connection is None:
            connection = _Connection(self._pool.open(deadline))
        try:
            reply = connection.exchange(request, url, deadline, self._limit)
        except BaseException:
            connection.close()
            raise
        if reply.reusable:
            self._pool.give(connection)
        else:
            connection.close()
        return reply


class _Connection:
    """One connection: writes requests and reads answers."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = Http1Reader()

    def usable(self) -> bool:
        """Whether the server has neither closed it nor said something that nobody asked for."""
        return self._reader.empty and not readable(self._socket)

    def close(self) -> None:
        """Closes it."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def exchange(self, request: bytes, url: str, deadline: float, limit: int | None) -> Reply:
        """Performs one call."""
        arm(self._socket, deadline)
        self._socket.sendall(request)
        answer = self._reader.answer(url, limit)
        try:
            next(answer)
            while True:
                arm(self._socket, deadline)
                answer.send(self._socket.recv(_CHUNK))
        except StopIteration as stop:
            reply: Reply = stop.value
            return reply
