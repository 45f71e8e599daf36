"""What a server starts and stops: the core's two ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from modelyard.serving.access import LiveTls
from modelyard.serving.transports.grpc import GrpcioServer
from modelyard.serving.transports.http import Application
from modelyard.serving.transports.native._core import NativeCore


class NativeRest:
    """The REST port.

    Args:
        core: The core.
        app: Answers what the core does not.
        port: The port.
        tls: Key and certificates, which may change; None for plain text.
    """

    def __init__(self, core: NativeCore, app: Application, *, port: int, tls: LiveTls | None = None) -> None:
        self._core = core
        self._app = app
        self._port = port
        self._tls = tls

    async def start(self) -> None:
        """Opens the port.

        Raises:
            ConfigurationError: The port or the certificate cannot be used.
        """
        self._core.serve_rest(self, self._app, self._port, self._tls)

    async def stop(self, grace_s: float) -> None:
        """Answers what was sent, and closes the port.

        Args:
            grace_s: Seconds that running requests get.
        """
        await self._core.stop(self, grace_s)


class NativeGrpc:
    """The gRPC ports, in place of ``grpc.aio.server``.

    UNIX sockets are left to gRPC's own server: its clients send the socket's path as the request's authority, which h2
    refuses as no valid one (hyperium/h2#487).

    Args:
        core: The core.
        sockets: gRPC's own server.
    """

    def __init__(self, core: NativeCore, sockets: GrpcioServer) -> None:
        self._core = core
        self._sockets = sockets
        self._has_sockets = False
        self._methods: dict[str, Any] = {}
        self._addresses: dict[str, LiveTls | None] = {}

    def add_service(self, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        """Adds methods, which must be coroutines.

        Args:
            service: Full name of the service.
            methods: Handlers by method.
        """
        for name, handler in methods.items():
            self._methods[f"/{service}/{name}"] = handler
        self._sockets.add_service(service, methods)

    def add_registered_method_handlers(
        self, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Adds methods, as the code that protoc generates asks a server to."""
        for name, handler in methods.items():
            self._methods[f"/{service}/{name}"] = handler
        self._sockets.add_registered_method_handlers(service, methods)

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Adds methods to gRPC's own server: generated code registers them one by one as well."""
        self._sockets.add_generic_rpc_handlers(handlers)

    def add_port(self, address: str, tls: LiveTls | None = None) -> None:
        """Adds an address to listen on.

        Args:
            address: ``host:port``, or ``unix:path``.
            tls: Key and certificates, which may change; None for plain text.
        """
        if address.startswith("unix:"):
            self._sockets.add_port(address, tls)
            self._has_sockets = True
        else:
            self._addresses[address] = tls

    async def start(self) -> None:
        """Opens the ports.

        Raises:
            ConfigurationError: An address or the certificate cannot be used.
        """
        self._core.serve_grpc(self, self._methods, self._addresses)
        if self._has_sockets:
            await self._sockets.start()

    async def stop(self, grace_s: float) -> None:
        """Answers what was sent, and closes the ports.

        Args:
            grace_s: Seconds that running calls get.
        """
        if self._has_sockets:
            await self._sockets.stop(grace_s)
        await self._core.stop(self, grace_s)
