"""uvicorn, as a transport."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator

import uvicorn

from modelyard.errors import ConfigurationError
from modelyard.serving.config import TlsConfig, TransportLimits
from modelyard.serving.transports import BACKLOG, listen
from modelyard.serving.transports.asgi._adapter import Adapter
from modelyard.serving.transports.asgi._protocol import bounded
from modelyard.serving.transports.http import Application

#: How long connections get at a stop to send what they were about to send.
_LAST_CALL_S = 0.3
_TICK_S = 0.01


class _Server(uvicorn.Server):
    """uvicorn inside a process that has its own mind about signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signals alone."""
        yield


class UvicornServer:
    """Serves an application by uvicorn.

    Args:
        app: Answers the requests.
        port: Port to listen on, on all addresses.
        limits: What clients may have it hold; None for the defaults.
        tls: Key and certificate; None for plain text.
    """

    def __init__(
        self,
        app: Application,
        *,
        port: int,
        limits: TransportLimits | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        limits = limits or TransportLimits()
        self._adapter = Adapter(app)
        self._port = port
        self._server = _Server(
            uvicorn.Config(
                self._adapter,
                http=bounded(limits),
                ws="none",
                lifespan="off",
                interface="asgi3",
                # Otherwise the environment would say how many.
                workers=1,
                # Clients may send nonsense as often as they like: it is no matter for the log.
                log_config=None,
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=math.ceil(limits.idle_timeout_s),
                # It refuses the last one that it counts.
                limit_concurrency=limits.max_connections + 1 if limits.max_connections else None,
                ssl_context_factory=None if tls is None else lambda *_: tls.context(),
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Opens the port.

        Raises:
            ConfigurationError: The port cannot be listened on.
        """
        try:
            listener = listen(self._port)
        except OSError as exc:
            raise ConfigurationError(
                f"REST cannot listen on port {self._port}: {exc.strerror}. Is it in use? Choose another with "
                "--rest_api_port."
            ) from exc
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0)
        if self._serving.done():
            await self._serving

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections, and waits for the running requests.

        Args:
            grace_s: Seconds to wait before running requests are cut off.
        """
        if self._serving is None:
            return
        loop = asyncio.get_running_loop()
        end, last_call = loop.time() + grace_s, loop.time() + min(grace_s, _LAST_CALL_S)
        # uvicorn closes connections that are idle at once, which fails the request that a client may be sending just
        # then: first, clients are told with their next answer that it is the last.
        self._adapter.closing = True
        for server in self._server.servers:
            server.close()
        connections = self._server.server_state.connections
        while connections and loop.time() < last_call:
            await asyncio.sleep(_TICK_S)
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=max(0.0, end - loop.time()))
        for connection in list(connections):
            connection.transport.abort()
        # Two turns of the loop: connections learn that they are closed before what they wait for ends.
        await asyncio.sleep(_TICK_S)
        for task in list(self._server.server_state.tasks):
            task.cancel()
        await self._serving
