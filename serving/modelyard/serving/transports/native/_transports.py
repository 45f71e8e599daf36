"""What a server starts and stops: the core's two ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from modelyard.serving.access import LiveTls
from modelyard.serving.transports.grpc import AioHandler, GrpcioServer, RpcHandler
from modelyard.serving.transports.http import Application
from modelyard.serving.transports.native._core import NativeCore


class NativeRest:
    """The REST port."""

    def __init__(self, core: NativeCore, app: Application, *, port: int, tls: LiveTls | None = None) -> None:
        self._core = core
        self._app = app
        self._port = port
        self._tls = tls

    async def start(self) -> None:
        self._core.serve_rest(self, self._app, self._port, self._tls)

    async def stop(self, grace_s: float) -> None:
        await self._core.stop(self, grace_s)


class NativeGrpc:
    """The gRPC ports, in place of ``grpc.aio.server``.

    UNIX sockets are left to gRPC's own server: its clients send the socket's path as the request's authority, which h2
    refuses as no valid one (hyperium/h2#487).
    """

    def __init__(self, core: NativeCore, sockets: GrpcioServer) -> None:
        self._core = core
        self._sockets = sockets
        self._has_sockets = False
        self._methods: dict[str, AioHandler] = {}
        self._addresses: dict[str, LiveTls | None] = {}

    def add_service(self, service: str, methods: Mapping[str, RpcHandler]) -> None:
        """Adds methods, which must be coroutines."""
        for name, handler in methods.items():
            self._methods[f"/{service}/{name}"] = cast("AioHandler", handler)
        self._sockets.add_service(service, methods)

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, RpcHandler]) -> None:
        """Adds methods, as the code that protoc generates asks a server to."""
        for name, handler in methods.items():
            self._methods[f"/{service}/{name}"] = cast("AioHandler", handler)
        self._sockets.add_registered_method_handlers(service, methods)

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Adds methods to gRPC's own server: generated code registers them one by one as well."""
        self._sockets.add_generic_rpc_handlers(handlers)

    def add_port(self, address: str, tls: LiveTls | None = None) -> None:
        if address.startswith("unix:"):
            self._sockets.add_port(address, tls)
            self._has_sockets = True
        else:
            self._addresses[address] = tls

    async def start(self) -> None:
        self._core.serve_grpc(self, self._methods, self._addresses)
        if self._has_sockets:
            await self._sockets.start()

    async def stop(self, grace_s: float) -> None:
        if self._has_sockets:
            await self._sockets.stop(grace_s)
        await self._core.stop(self, grace_s)
