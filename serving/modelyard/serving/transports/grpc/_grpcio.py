"""gRPC's own server, as a transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc

from modelyard.errors import ConfigurationError
from modelyard.serving.access import LiveTls
from modelyard.serving.config import TlsConfig
from modelyard.serving.telemetry import Recorder
from modelyard.serving.transports import warn_unanswered
from modelyard.serving.transports.grpc._call import Context
from modelyard.serving.transports.grpc._context import RequestInterceptor
from modelyard.serving.transports.grpc._types import INT32_MAX, RpcHandler, unknown_method

#: How long calls get at a stop to reach their handlers, and GOAWAY to reach the clients.
_PICK_UP_S = 0.05
_GOODBYE_S = 0.02
#: Between the end of the time that calls get, and their cancellation.
_OVER_S = 0.01


def _says_no_metadata(record: logging.LogRecord) -> bool:
    """Of metadata that is no UTF-8, gRPC logs the whole value, which may be a key; it goes on with it as Latin-1."""
    return not str(record.msg).startswith("Invalid encoding")


class GrpcioServer:
    """``grpc.aio.server`` with a stop that fails no call."""

    def __init__(self, arguments: Sequence[tuple[str, int | str]], *, recorder: Recorder | None = None) -> None:
        logging.getLogger("grpc._cython.cygrpc").addFilter(_says_no_metadata)
        self._interceptor = RequestInterceptor(recorder)
        self._server = grpc.aio.server(
            interceptors=[self._interceptor],
            options=list(
                {
                    "grpc.max_receive_message_length": INT32_MAX,
                    "grpc.max_send_message_length": INT32_MAX,
                    # Two servers that share a port by accident would each get half of the requests.
                    "grpc.so_reuseport": 0,
                    # It counts answered calls, too, until Python has put them away: a client that keeps within
                    # grpc.max_concurrent_streams, which holds without it, would be refused many of its calls.
                    "grpc.http.overload_protection": 0,
                    # gRPC would end a connection whose client pings more often than every five minutes while it waits
                    # for an answer, and with it the calls: other languages' keepalive is ten seconds and more.
                    "grpc.http2.min_ping_interval_without_data_ms": 1000,
                    "grpc.keepalive_permit_without_calls": 1,
                    # gRPC takes the first of two arguments of one name: the user's must be the only one.
                    **dict(arguments),
                }.items()
            ),
        )
        self._addresses: list[tuple[str, LiveTls | None]] = []
        self._paths: list[str] = []
        self._holding = False
        self._released = asyncio.Event()

    def add_service(self, service: str, methods: Mapping[str, RpcHandler]) -> None:
        self._paths += [f"/{service}/{name}" for name in methods]
        held = {name: self._held(method) for name, method in methods.items()}
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, held)])

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, RpcHandler]) -> None:
        """Adds methods, as the code that protoc generates asks a server to."""
        self._server.add_registered_method_handlers(service, methods)  # type: ignore[attr-defined]  # the stubs lack it

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """Adds methods, as the code that protoc generates asks a server to."""
        self._server.add_generic_rpc_handlers(handlers)

    def _held(self, method: grpc.RpcMethodHandler[bytes, bytes]) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Wraps a method so that its answers can be held back while the server stops."""
        answer: Callable[[bytes, Context], Awaitable[bytes]] | None = method.unary_unary  # type: ignore[assignment]
        if answer is None:
            return method

        async def held(data: bytes, context: Context) -> bytes:
            response = await answer(data, context)
            if self._holding:
                await self._released.wait()
            return response

        return grpc.unary_unary_rpc_method_handler(held)

    def add_port(self, address: str, tls: LiveTls | None = None) -> None:
        self._addresses.append((address, tls))

    async def start(self) -> None:
        for address, tls in self._addresses:
            try:
                if tls is None:
                    self._server.add_insecure_port(address)
                else:
                    self._server.add_secure_port(address, _credentials(tls))
            except RuntimeError as exc:
                raise ConfigurationError(
                    f"gRPC cannot listen on {address}: {exc}. Is the port in use? Choose another with --port."
                ) from exc
        # After all others, since the first that has an answer is asked.
        self._server.add_generic_rpc_handlers([_Unknown(self._paths)])
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        # gRPC cancels calls that have reached the port but no handler when it stops, and those that clients send until
        # they hear of it. So answers wait until all are in a handler and GOAWAY is sent before them.
        self._holding = True
        await asyncio.sleep(min(grace_s, _PICK_UP_S))
        stopping = asyncio.create_task(self._server.stop(grace_s + _OVER_S))
        await asyncio.sleep(min(grace_s, _GOODBYE_S))
        self._released.set()
        await asyncio.wait([stopping], timeout=max(0.0, grace_s - _GOODBYE_S))
        if not stopping.done():
            warn_unanswered(self._interceptor.running, grace_s)
            self._interceptor.over = True
        await stopping


def _credentials(tls: LiveTls) -> grpc.ServerCredentials:
    """Credentials that are asked for with every connection."""
    used = [tls.config]

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        if used[0] is tls.config:
            return None
        used[0] = tls.config
        return _certificates(used[0])

    return grpc.dynamic_ssl_server_credentials(
        _certificates(tls.config),
        # None says that nothing has changed, which the stubs do not know.
        fetch,  # type: ignore[arg-type]
        require_client_authentication=tls.config.verify_client,
    )


def _certificates(tls: TlsConfig) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.key.encode(), tls.certificate.encode())], tls.authority.encode() or None
    )


class _Unknown(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # the stubs say generic, the class is not
    """Answers calls of methods that there are not."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def refuse(_: AsyncIterator[bytes], context: Context) -> None:
            text = unknown_method(handler_call_details.method, self._known)
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

        return grpc.stream_stream_rpc_method_handler(refuse)
