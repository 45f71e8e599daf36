"""An HTTP/1.1 server on asyncio, as far as this package needs one."""

from __future__ import annotations

import asyncio
import http
import ssl
import time
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from typing import Any

from modelyard.errors import ConfigurationError
from modelyard.serving._listen import BACKLOG, listen
from modelyard.serving.http import Answer
from modelyard.serving.http1._connection import Connection
from modelyard.serving.http1._head import Key
from modelyard.serving.http1._types import Application, Begin, Head

#: How long connections get at a stop to send what they were about to send.
_LAST_CALL_S = 0.3
_TICK_S = 0.01
#: Heads, and the first lines of answers, that are remembered; and the size of a head that is.
_MAX_KNOWN = 1024
_MAX_KNOWN_BYTES = 4096


class Http1Server:
    """Serves an application.

    Args:
        app: Answers the requests.
        port: Port to listen on, on all addresses.
        tls: Serve HTTPS; None for plain text.
        reuse_port: Other processes may listen on the same port.
        http2: Makes what goes on with a connection whose client speaks HTTP/2, and is given what to call when that is
            gone; None for nothing, so that such a client is refused in words that it cannot read.
    """

    def __init__(
        self,
        app: Application,
        *,
        port: int,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
        http2: Callable[[Callable[[], None]], asyncio.Protocol] | None = None,
    ) -> None:
        self.app = app
        self.http2 = http2
        self.closing = False
        self.heads: dict[Key, tuple[Head, Begin | None]] = {}
        self._port = port
        self._reuse_port = reuse_port
        self._tls = tls
        self._starts: dict[tuple[Any, ...], bytes] = {}
        self._date = b""
        self._connections: set[Connection] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._tick_s = min(1.0, max(0.005, app.timeout_s / 10))
        self._ticker: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Opens the port.

        Raises:
            ConfigurationError: The port cannot be listened on.
        """
        try:
            listener = listen(self._port, reuse_port=self._reuse_port)
        except OSError as exc:
            raise ConfigurationError(
                f"REST cannot listen on port {self._port}: {exc.strerror}. Is it in use? Choose another with "
                "--rest_api_port."
            ) from exc
        self._tick()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), sock=listener, ssl=self._tls, backlog=BACKLOG
        )

    def _tick(self) -> None:
        """Looks at the clock for all connections."""
        date = formatdate(usegmt=True).encode()
        if date != self._date:
            self._date = date
            self._starts.clear()
        now = time.monotonic()
        for connection in [item for item in self._connections if item.deadline < now]:
            connection.expire()
        self._ticker = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    # What connections ask for.

    def keep(self, key: Key, size: int, known: tuple[Head, Begin | None]) -> None:
        """Remembers a head of some bytes, as long as there are not too many."""
        if size <= _MAX_KNOWN_BYTES:
            if len(self.heads) >= _MAX_KNOWN:
                self.heads.clear()
            self.heads[key] = known

    def start_of(self, answer: Answer) -> bytes:
        """The first lines of an answer, without its length."""
        key = (answer.status, *answer.headers)
        start = self._starts.get(key)
        if start is None:
            lines = [b"HTTP/1.1 %d %b" % (answer.status, _phrase(answer.status)), b"date: " + self._date]
            lines += [name + b": " + value for name, value in answer.headers]
            start = b"\r\n".join(lines) + b"\r\n"
            if len(self._starts) >= _MAX_KNOWN:
                self._starts.clear()
            self._starts[key] = start
        return start

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what answers a request."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def opened(self, connection: Connection) -> None:
        """A connection is there."""
        self._connections.add(connection)

    def closed(self, connection: Connection) -> None:
        """It is gone."""
        self._connections.discard(connection)

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections, and waits for the running requests.

        Args:
            grace_s: Seconds to wait before running requests are cut off.
        """
        # A connection that is simply closed fails the request that its client may be sending just then: clients are
        # told with their next answer that it is the last. New connections are refused, which clients understand.
        self.closing = True
        if self._server is not None:
            self._server.close()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        last_call = loop.time() + min(grace_s, _LAST_CALL_S)
        while self._connections and loop.time() < last_call:
            await asyncio.sleep(_TICK_S)
        while self._connections and loop.time() < end:
            for connection in list(self._connections):
                if not connection.busy:
                    connection.close()
            await asyncio.sleep(_TICK_S)
        for connection in list(self._connections):
            connection.abort()
        for task in list(self._running):
            task.cancel()
        if self._ticker is not None:
            self._ticker.cancel()
        # One turn of the loop, so that the closings go out.
        await asyncio.sleep(0)


def _phrase(status: int) -> bytes:
    try:
        return http.HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
