"""gRPC's own server, as a transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc

from modelyard.errors import ConfigurationError
from modelyard.serving.config import TlsConfig
from modelyard.serving.requests import REQUEST_ID
from modelyard.serving.transports.grpc._call import Context, request_id_in
from modelyard.serving.transports.grpc._types import INT32_MAX, unknown_method

#: How long calls get at a stop to reach their handlers, and the goodbye to reach the clients.
_PICK_UP_S = 0.05
_GOODBYE_S = 0.02


class GrpcioServer:
    """``grpc.aio.server`` with a stop that fails no call.

    Args:
        arguments: gRPC channel arguments.
    """

    def __init__(self, arguments: Sequence[tuple[str, int | str]]) -> None:
        self._server = grpc.aio.server(
            options=list(
                {
                    "grpc.max_receive_message_length": INT32_MAX,
                    "grpc.max_send_message_length": INT32_MAX,
                    # Two servers that share a port by accident would each get half of the requests.
                    "grpc.so_reuseport": 0,
                    # gRPC takes the first of two arguments of one name: the user's must be the only one.
                    **dict(arguments),
                }.items()
            )
        )
        self._addresses: list[tuple[str, TlsConfig | None]] = []
        self._paths: list[str] = []
        self._holding = False
        self._released = asyncio.Event()

    def add_service(self, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        """Adds methods.

        Args:
            service: Full name of the service.
            methods: Handlers by method.
        """
        self._paths += [f"/{service}/{name}" for name in methods]
        held = {name: self._held(method) for name, method in methods.items()}
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, held)])

    def add_registered_method_handlers(
        self, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
    ) -> None:
        """Adds methods, as the code that protoc generates asks a server to."""
        self._server.add_registered_method_handlers(service, methods)  # type: ignore[attr-defined]  # the stubs lack it

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """Adds methods, as the code that protoc generates asks a server to."""
        self._server.add_generic_rpc_handlers(handlers)

    def _held(self, method: grpc.RpcMethodHandler[bytes, bytes]) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Wraps a method so that its answers can be held back while the server says goodbye."""
        answer: Callable[[bytes, Context], Awaitable[bytes]] | None = method.unary_unary  # type: ignore[assignment]
        if answer is None:
            return method

        async def held(data: bytes, context: Context) -> bytes:
            request_id = request_id_in(context)
            if request_id:
                context.set_trailing_metadata(((REQUEST_ID, request_id),))
            response = await answer(data, context)
            if self._holding:
                await self._released.wait()
            return response

        return grpc.unary_unary_rpc_method_handler(held)

    def add_port(self, address: str, tls: TlsConfig | None = None) -> None:
        """Adds an address to listen on.

        Args:
            address: ``host:port``, or ``unix:path``.
            tls: Key and certificate; None for plain text.
        """
        self._addresses.append((address, tls))

    async def start(self) -> None:
        """Opens the ports.

        Raises:
            ConfigurationError: One cannot be listened on.
        """
        for address, tls in self._addresses:
            try:
                if tls is None:
                    self._server.add_insecure_port(address)
                else:
                    self._server.add_secure_port(address, tls.grpc_credentials())
            except RuntimeError as exc:
                raise ConfigurationError(
                    f"gRPC cannot listen on {address}: {exc}. Is the port in use? Choose another with --port."
                ) from exc
        # After all others, since the first that has an answer is asked.
        self._server.add_generic_rpc_handlers([_Unknown(self._paths)])
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, and waits for the running ones.

        Args:
            grace_s: Seconds to wait before running calls are cancelled.
        """
        # gRPC cancels calls that have reached the port but no handler when it stops, and those that clients send until
        # they hear of it. So answers wait until all are in a handler and the goodbye is on its way before them.
        self._holding = True
        await asyncio.sleep(min(grace_s, _PICK_UP_S))
        stopping = asyncio.create_task(self._server.stop(grace_s))
        await asyncio.sleep(min(grace_s, _GOODBYE_S))
        self._released.set()
        await stopping


class _Unknown(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # the stubs say generic, the class is not
    """Answers calls of methods that there are not.

    Args:
        known: Paths of those that there are.
    """

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """The handler of any method."""

        async def refuse(_: AsyncIterator[bytes], context: Context) -> None:
            text = unknown_method(handler_call_details.method, self._known)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

        return grpc.stream_stream_rpc_method_handler(refuse)
