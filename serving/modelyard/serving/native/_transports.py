"""What a server starts and stops: the core's two ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from modelyard.serving._tls import TlsConfig
from modelyard.serving.http1 import Application
from modelyard.serving.native._core import NativeCore


class NativeRest:
    """The REST port.

    Args:
        core: The core.
        app: Answers what the core does not.
        port: The port.
        tls: Key and certificate; None for plain text.
    """

    def __init__(self, core: NativeCore, app: Application, *, port: int, tls: TlsConfig | None = None) -> None:
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

    Args:
        core: The core.
    """

    def __init__(self, core: NativeCore) -> None:
        self._core = core
        self._methods: dict[str, Any] = {}
        self._addresses: dict[str, TlsConfig | None] = {}

    def add_service(self, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        """Adds methods, which must be coroutines.

        Args:
            service: Full name of the service.
            methods: Handlers by method.
        """
        for name, handler in methods.items():
            self._methods[f"/{service}/{name}"] = handler

    def add_registered_method_handlers(
        self, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Adds methods, as the code that protoc generates asks a server to."""
        self.add_service(service, methods)

    def add_generic_rpc_handlers(self, _: Sequence[Any]) -> None:
        """Does nothing: generated code registers its methods one by one as well."""

    def add_port(self, address: str, tls: TlsConfig | None = None) -> None:
        """Adds an address to listen on.

        Args:
            address: ``host:port``, or ``unix:path``.
            tls: Key and certificate; None for plain text.
        """
        self._addresses[address] = tls

    async def start(self) -> None:
        """Opens the ports.

        Raises:
            ConfigurationError: An address or the certificate cannot be used.
        """
        self._core.serve_grpc(self, self._methods, self._addresses)

    async def stop(self, grace_s: float) -> None:
        """Answers what was sent, and closes the ports.

        Args:
            grace_s: Seconds that running calls get.
        """
        await self._core.stop(self, grace_s)
