"""uvicorn, as a transport."""

from __future__ import annotations

import asyncio
import contextlib
import math
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn

from modelyard.errors import ConfigurationError
from modelyard.serving.access import LiveTls
from modelyard.serving.config import TlsConfig, TransportLimits
from modelyard.serving.metrics import Metrics
from modelyard.serving.telemetry import Recorder
from modelyard.serving.transports import BACKLOG, listen, warn_unanswered
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
        yield


class _LiveContext(ssl.SSLContext):
    """Begins each connection by what is in force then: a context's authorities can be added to, and not taken back."""

    now: ssl.SSLContext

    def use(self, tls: TlsConfig) -> None:
        self.now = tls.context()

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.now.wrap_bio(*args, **options)


def _live_context(tls: LiveTls) -> ssl.SSLContext:
    context = _LiveContext(ssl.PROTOCOL_TLS_SERVER)
    context.use(tls.config)
    tls.on_change(context.use)
    return context


class UvicornServer:
    """Serves an application by uvicorn."""

    def __init__(
        self,
        app: Application,
        *,
        port: int,
        limits: TransportLimits | None = None,
        tls: LiveTls | None = None,
        recorder: Recorder | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        limits = limits or TransportLimits()
        self._adapter = Adapter(app, recorder)
        self._port = port
        self._server = _Server(
            uvicorn.Config(
                self._adapter,
                http=bounded(limits, metrics),
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
                ssl_context_factory=None if tls is None else lambda *_: _live_context(tls),
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
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
        if tasks := self._server.server_state.tasks:
            warn_unanswered(len(tasks), grace_s)
            self._adapter.over = True
        for connection in list(connections):
            connection.transport.abort()
        # Two turns of the loop: connections learn that they are closed before what they wait for ends.
        await asyncio.sleep(_TICK_S)
        for task in list(self._server.server_state.tasks):
            task.cancel()
        await self._serving
