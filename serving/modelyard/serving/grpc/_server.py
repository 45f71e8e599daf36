"""The gRPC transport: ports, credentials and services."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import grpc

from modelyard.errors import ConfigurationError
from modelyard.serving._admin import Admin
from modelyard.serving._manager import ModelManager
from modelyard.serving._metrics import Metrics
from modelyard.serving._predictor import Predictor
from modelyard.serving._tls import TlsConfig
from modelyard.serving.grpc._call import Context, unary
from modelyard.serving.grpc._handlers import Handlers
from modelyard.serving.grpc._health import Health
from modelyard.wire import MODEL_SERVICE, PREDICTION_SERVICE

_INT32_MAX = (1 << 31) - 1
Services = Mapping[str, "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"]
#: How long calls get at a stop to reach their handlers, and the goodbye to reach the clients.
_PICK_UP_S = 0.05
_GOODBYE_S = 0.02
_HEALTH_SERVICE = "grpc.health.v1.Health"


@dataclass(frozen=True, kw_only=True)
class GrpcOptions:
    """How the gRPC server listens and what it offers.

    Attributes:
        port: Port on all addresses; 0 for none.
        socket_path: UNIX socket; empty for none.
        channel_arguments: More gRPC channel arguments.
        tls: Key and certificate; None for plain text.
        tensor_content: Answers carry ``tensor_content`` instead of typed fields.
        health: grpc.health.v1 is served.
        reflection: grpc.reflection is served.
    """

    port: int
    socket_path: str = ""
    channel_arguments: tuple[tuple[str, int | str], ...] = ()
    tls: TlsConfig | None = None
    tensor_content: bool = False
    health: bool = True
    reflection: bool = True


class GrpcServer:
    """TensorFlow Serving's gRPC services.

    Args:
        predictor: The data plane.
        manager: The models, for the health service.
        admin: Who may change the configuration.
        metrics: Where requests are counted.
        options: How to listen.
        more: Method handlers of further services, by service and method.
    """

    def __init__(
        self,
        predictor: Predictor,
        manager: ModelManager,
        admin: Admin,
        metrics: Metrics,
        options: GrpcOptions,
        *,
        more: Services | None = None,
    ) -> None:
        self._options = options
        self._server = grpc.aio.server(
            options=list(
                {
                    "grpc.max_receive_message_length": _INT32_MAX,
                    "grpc.max_send_message_length": _INT32_MAX,
                    # Two servers that share a port by accident would each get half of the requests.
                    "grpc.so_reuseport": 0,
                    # gRPC takes the first of two arguments of one name: the user's must be the only one.
                    **dict(options.channel_arguments),
                }.items()
            )
        )
        handlers = Handlers(predictor, admin, tensor_content=options.tensor_content).by_path()
        services = dict(more or {})
        for methods in (PREDICTION_SERVICE, MODEL_SERVICE):
            service = next(iter(methods.values())).service
            services[service] = {
                name: unary(method, handlers[method.path], metrics) for name, method in methods.items()
            }
        self._holding = False
        self._released = asyncio.Event()
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    service, {name: self._held(method) for name, method in methods.items()}
                )
                for service, methods in services.items()
            ]
        )
        self._health = Health(manager) if options.health else None
        self._health_task: asyncio.Task[None] | None = None
        if self._health is not None:
            from grpc_health.v1 import health_pb2_grpc

            health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, self._server)
        if options.reflection:
            self._add_reflection(list(services))

    def _held(self, method: grpc.RpcMethodHandler[bytes, bytes]) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Wraps a method so that its answers can be held back while the server says goodbye."""
        answer: Callable[[bytes, Context], Awaitable[bytes]] | None = method.unary_unary  # type: ignore[assignment]
        if answer is None:
            return method

        async def held(data: bytes, context: Context) -> bytes:
            response = await answer(data, context)
            if self._holding:
                await self._released.wait()
            return response

        return grpc.unary_unary_rpc_method_handler(held)

    def _add_reflection(self, services: list[str]) -> None:
        from grpc_health.v1 import health_pb2
        from grpc_reflection.v1alpha import reflection, reflection_pb2

        from modelyard.wire import descriptor_pool

        pool = descriptor_pool()
        names = [*services, reflection.SERVICE_NAME]
        pool.AddSerializedFile(reflection_pb2.DESCRIPTOR.serialized_pb)
        if self._health is not None:
            pool.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
            names.append(_HEALTH_SERVICE)
        reflection.enable_server_reflection(names, self._server, pool=pool)

    async def start(self) -> None:
        """Opens the port and the socket.

        Raises:
            ConfigurationError: An address cannot be listened on.
        """
        addresses = [f"0.0.0.0:{self._options.port}"] if self._options.port else []
        if self._options.socket_path:
            addresses.append(f"unix:{self._options.socket_path}")
        for address in addresses:
            try:
                if self._options.tls is None or address.startswith("unix:"):
                    self._server.add_insecure_port(address)
                else:
                    self._server.add_secure_port(address, self._options.tls.grpc_credentials())
            except RuntimeError as exc:
                raise ConfigurationError(
                    f"gRPC cannot listen on {address}: {exc}. Is the port in use? Choose another with --port."
                ) from exc
        if self._health is not None:
            # Before the first call: the health service's own start value is SERVING.
            await self._health.update()
        await self._server.start()
        if self._health is not None:
            self._health_task = asyncio.create_task(self._health.watch())

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, and waits for the running ones.

        Args:
            grace_s: Seconds to wait before running calls are cancelled.
        """
        if self._health is not None and self._health_task is not None:
            self._health_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._health_task
            await self._health.enter_shutdown()
        # gRPC cancels calls that have reached the port but no handler when it stops, and those that clients send until
        # they hear of it. So answers wait until all are in a handler and the goodbye is on its way before them.
        self._holding = True
        await asyncio.sleep(min(grace_s, _PICK_UP_S))
        if self._health is not None:
            self._health.end_watches()
        stopping = asyncio.create_task(self._server.stop(grace_s))
        await asyncio.sleep(min(grace_s, _GOODBYE_S))
        self._released.set()
        await stopping
