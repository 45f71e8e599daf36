"""Bytes over HTTP/1.1 on plain sockets: what a call to a model needs, and no more.

A general HTTP library spends several times as long on a small call as the call itself takes
(``make bench NAME=clients`` has the figures). Connections are pooled and reused; a request goes out in one ``send``.
"""

from __future__ import annotations

import contextlib
import socket
import time

from modelyard.clients.http import Http1Reader, Http1Requests, Reply, answer_of
from modelyard.clients.protocols import Answer
from modelyard.clients.transport import Address, ClientOptions, Send
from modelyard.clients.transport.lean._sockets import Connection, SocketPool, arm, readable

_CHUNK = 1 << 18


class LeanRestTransport:
    """A blocking pool of HTTP connections."""

    def __init__(self, address: Address, options: ClientOptions) -> None:
        self._url = address.http_url
        self._limit = options.max_message_bytes
        self._requests = Http1Requests(address, options)
        self._pool: SocketPool[_Connection] = SocketPool(address, options, _Connection)

    def send(self, send: Send[object]) -> Answer:
        url = self._url + send.call.path
        deadline = time.monotonic() + send.timeout_s
        request = self._requests.write(send.call, send.headers, url)
        with self._pool.slot(url, send.timeout_s):
            reply = self._pool.exchange(
                lambda connection: connection.exchange(request, url, deadline, self._limit),
                deadline, fresh=send.call.fresh,
            )  # fmt: skip
        return answer_of(reply.status, reply.headers, reply.data, url)

    def close(self) -> None:
        self._pool.close()


class _Connection(Connection):
    """One connection: writes requests and reads answers."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._reader = Http1Reader()

    def usable(self) -> bool:
        """Whether the server has neither closed it nor sent bytes without a request."""
        return self._reader.empty and not readable(self._socket)

    def exchange(self, request: bytes, url: str, deadline: float, limit: int | None) -> Reply:
        arm(self._socket, deadline)
        # A server that ends the connection while this sends has said why; reading fails, too, where not.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(request)
        answer = self._reader.answer(url, limit)
        try:
            next(answer)
            while True:
                arm(self._socket, deadline)
                answer.send(self._socket.recv(_CHUNK))
        except StopIteration as stop:
            reply: Reply = stop.value
            self.reusable = reply.reusable
            return reply
