"""The gRPC transport: ports, credentials and services."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from modelyard.errors import ModelyardError
from modelyard.serving.access import Access, LiveTls
from modelyard.serving.handlers.grpc._handlers import Handlers, guards_of
from modelyard.serving.handlers.grpc._health import Health
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import Predictor, read_predict
from modelyard.serving.repository import Admin, ModelManager
from modelyard.serving.transports.grpc import Context, GrpcioServer, Guard, unary
from modelyard.wire import MODEL_SERVICE, PREDICTION_SERVICE, grpc_status_of

if TYPE_CHECKING:
    from modelyard.serving.transports.native import NativeGrpc

Services = Mapping[str, "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"]
#: How long the health service's last word gets to reach those who watch.
_LAST_WORD_S = 0.05
_HEALTH_SERVICE = "grpc.health.v1.Health"


@dataclass(frozen=True, kw_only=True)
class GrpcOptions:
    """How the gRPC server listens and what it offers.

    Attributes:
        port: Port on all addresses; 0 for none.
        socket_path: UNIX socket; empty for none.
        channel_arguments: More gRPC channel arguments.
        tls: Key and certificates, which may change; None for plain text.
        tensor_content: Answers carry ``tensor_content`` instead of typed fields.
        health: grpc.health.v1 is served.
        reflection: grpc.reflection is served.
    """

    port: int
    socket_path: str = ""
    channel_arguments: tuple[tuple[str, int | str], ...] = ()
    tls: LiveTls | None = None
    tensor_content: bool = False
    health: bool = True
    reflection: bool = True


class GrpcServer:
    """TensorFlow Serving's gRPC services.

    Args:
        predictor: The data plane.
        manager: The models, for the health service.
        admin: Changes the configuration.
        access: Who may do what.
        metrics: Where requests are counted.
        options: How to listen.
        transport: Carries the calls.
        more: Method handlers of further services, by service and method.
    """

    def __init__(
        self,
        predictor: Predictor,
        manager: ModelManager,
        admin: Admin,
        access: Access,
        metrics: Metrics,
        options: GrpcOptions,
        transport: GrpcioServer | NativeGrpc,
        *,
        more: Services | None = None,
    ) -> None:
        self._options = options
        handlers = Handlers(predictor, admin, tensor_content=options.tensor_content)
        by_path, guards = handlers.by_path(), guards_of(access)
        predict = PREDICTION_SERVICE["Predict"]
        services = dict(more or {})
        for methods in (PREDICTION_SERVICE, MODEL_SERVICE):
            service = next(iter(methods.values())).service
            services[service] = {
                name: unary(
                    method,
                    by_path[method.path],
                    metrics,
                    guards[method.path],
                    parse=read_predict if method is predict else None,
                )
                for name, method in methods.items()
            }
        self._server = transport
        for service, offered in services.items():
            self._server.add_service(service, offered)
        self._health = Health(manager) if options.health else None
        self._health_task: asyncio.Task[None] | None = None
        if self._health is not None:
            from grpc_health.v1 import health_pb2_grpc

            health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, self._server)
        if options.reflection:
            self._add_reflection(list(services), access)

    def _add_reflection(self, services: list[str], access: Access) -> None:
        from grpc_health.v1 import health_pb2
        from grpc_reflection.v1alpha import _async, reflection, reflection_pb2, reflection_pb2_grpc

        from modelyard.wire import descriptor_pool

        pool = descriptor_pool()
        names = [*services, reflection.SERVICE_NAME]
        pool.AddSerializedFile(reflection_pb2.DESCRIPTOR.serialized_pb)
        if self._health is not None:
            pool.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
            names.append(_HEALTH_SERVICE)
        guard = Guard(access=access, scope="metadata")

        class Reflection(_async.ReflectionServicer):  # type: ignore[misc]  # it has no types
            async def ServerReflectionInfo(self, requests: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
                try:
                    guard.admit(guard.identify(context), None).release()
                except ModelyardError as exc:
                    await context.abort(grpc.StatusCode[grpc_status_of(exc)], exc.message)
                async for answer in super().ServerReflectionInfo(requests, context):
                    yield answer

        servicer = Reflection(names, pool=pool)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, self._server)

    async def start(self) -> None:
        """Opens the port and the socket.

        Raises:
            ConfigurationError: An address cannot be listened on.
        """
        tls = self._options.tls
        if self._options.port:
            self._server.add_port(f"0.0.0.0:{self._options.port}", tls)
        if self._options.socket_path:
            self._server.add_port(f"unix:{self._options.socket_path}", None)
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
            await asyncio.sleep(min(grace_s, _LAST_WORD_S))
            self._health.end_watches()
        await self._server.stop(grace_s)
