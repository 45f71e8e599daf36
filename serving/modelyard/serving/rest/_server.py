"""Runs the REST application on uvicorn, inside an event loop that somebody else owns."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import Any

import uvicorn

from modelyard.errors import ConfigurationError
from modelyard.serving.rest._app import AsgiApp, Receive, Scope, Send
from modelyard.serving.rest._protocol import PredictProtocol, ShortWay

_BACKLOG = 2048
#: How long connections get at a stop to send what they were about to send.
_LAST_CALL_S = 0.3
_TICK_S = 0.01


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the process's own shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Closing:
    """Passes requests on, and at a stop tells every client that its connection ends with this answer.

    A connection that is simply closed fails the request that its client may be sending just then.

    Args:
        app: The application.
    """

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self.closing = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def tell(message: MutableMapping[str, Any]) -> None:
            if self.closing and message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, tell)


class RestServer:
    """An HTTP/1.1 server for the REST application.

    Args:
        app: The application.
        port: Port to listen on, on all addresses.
        tls: Serve HTTPS; None for plain text.
        short: Answers small predictions without a task; None for nobody.
    """

    def __init__(
        self, app: AsgiApp, *, port: int, tls: ssl.SSLContext | None = None, short: ShortWay | None = None
    ) -> None:
        self._port = port
        self._closing = _Closing(app)
        self._short = short
        config = uvicorn.Config(
            self._closing,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            date_header=True,
            loop="none",
            # It is only ever called.
            http="httptools" if short is None else partial(PredictProtocol, short=short),  # type: ignore[arg-type]
            ws="none",
        )
        config.load()
        config.ssl = tls
        self._server = _Uvicorn(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Opens the port.

        Raises:
            ConfigurationError: The port cannot be listened on.
        """
        listener = _listen(self._port)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if self._task.done():
            self._task.result()

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections, and waits for the running requests.

        Args:
            grace_s: Seconds to wait before running requests are cut off.
        """
        self._closing.closing = True
        if self._short is not None:
            self._short.closing = True
        # New connections are refused, which clients understand; open ones get an answer to what they are sending.
        for listener in getattr(self._server, "servers", ()):
            listener.close()
        last_call = asyncio.get_running_loop().time() + min(grace_s, _LAST_CALL_S)
        while self._server.server_state.connections and asyncio.get_running_loop().time() < last_call:
            await asyncio.sleep(_TICK_S)
        self._server.config.timeout_graceful_shutdown = math.ceil(grace_s)
        self._server.should_exit = True
        if self._task is not None:
            await self._task


def _listen(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):
                # Kernels with IPv6 switched off still say that they have it.
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        return socket.create_server(("", port), backlog=_BACKLOG)
    except OSError as exc:
        raise ConfigurationError(
            f"REST cannot listen on port {port}: {exc.strerror}. Is it in use? Choose another with --rest_api_port."
        ) from exc
