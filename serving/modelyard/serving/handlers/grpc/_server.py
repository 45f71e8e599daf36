"""The gRPC transport: ports, credentials and services."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import grpc

from modelyard.errors import ModelyardError
from modelyard.serving.access import Access, LiveTls
from modelyard.serving.config import ServerOptions
from modelyard.serving.handlers.grpc._handlers import Handlers
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


class GrpcServer:
    """TensorFlow Serving's gRPC services."""

    def __init__(
        self,
        predictor: Predictor,
        manager: ModelManager,
        admin: Admin,
        access: Access,
        metrics: Metrics,
        options: ServerOptions,
        transport: GrpcioServer | NativeGrpc,
        *,
        tls: LiveTls | None,
        more: Services,
    ) -> None:
        self._options, self._tls = options, tls
        offered = Handlers(predictor, admin, tensor_content=options.tensor_content).methods(access)
        predict = PREDICTION_SERVICE["Predict"]
        services = dict(more)
        for methods in (PREDICTION_SERVICE, MODEL_SERVICE):
            service = next(iter(methods.values())).service
            services[service] = {}
            for name, method in methods.items():
                handler, guard = offered[method.path]
                parse = read_predict if method is predict else None
                services[service][name] = unary(method, handler, metrics, guard, parse=parse)
        self._server = transport
        for service, by_name in services.items():
            self._server.add_service(service, by_name)
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
            async def ServerReflectionInfo(  # noqa: N802
                self, requests: AsyncIterator[object], context: Context
            ) -> AsyncIterator[object]:
                async def admitted() -> AsyncIterator[object]:
                    async for request in requests:
                        # Each: a key may be taken back while the stream is open.
                        guard.admit(guard.identify(context), None).release()
                        yield request

                try:
                    async for answer in super().ServerReflectionInfo(admitted(), context):
                        yield answer
                except ModelyardError as exc:
                    await context.abort(grpc.StatusCode[grpc_status_of(exc)], exc.message)

        servicer = Reflection(names, pool=pool)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, self._server)

    async def start(self) -> None:
        if self._options.port:
            self._server.add_port(f"0.0.0.0:{self._options.port}", self._tls)
        if self._options.grpc_socket_path:
            self._server.add_port(f"unix:{self._options.grpc_socket_path}", None)
        if self._health is not None:
            self._health.update()
        await self._server.start()
        if self._health is not None:
            self._health_task = asyncio.create_task(self._health.watch())

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, and waits for the running ones."""
        if self._health is not None and self._health_task is not None:
            self._health_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._health_task
            self._health.enter_shutdown()
            await asyncio.sleep(min(grace_s, _LAST_WORD_S))
            self._health.end_watches()
        await self._server.stop(grace_s)
