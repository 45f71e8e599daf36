"""grpc.health.v1, truthful: the server as a whole, each service, each model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from modelyard.serving.repository import ModelManager

_TICK_S = 0.1
#: Only those who watch are told so; a check is answered with NOT_FOUND (grpc/health/v1/health.proto).
_UNKNOWN = int(health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
#: Upstream's unqualified names beside the full ones.
_SERVICES = (
    "",
    "inference.GRPCInferenceService",
    "ModelService",
    "PredictionService",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
)


class _Servicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """Each watcher compares for itself: one that leaves, or reads nothing, is nothing to the others.

    grpc_health's own servicer has a condition for all watchers of a service. It deletes that with the first who leaves,
    after which nobody hears of anything, and holds it while it writes to one who may not read.
    """

    def __init__(self) -> None:
        self.statuses: Mapping[str, int] = {"": _status(False)}
        self._changed = asyncio.Event()
        #: Ends the streams: a client that watches would hold up a stop for as long as it may take.
        self.ending = asyncio.Event()

    def say(self, statuses: Mapping[str, int]) -> None:
        """Sets the status of everything."""
        if statuses != self.statuses:
            self.statuses = statuses
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def Check(  # noqa: N802  # gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> health_pb2.HealthCheckResponse:
        status = self.statuses.get(request.service, _UNKNOWN)
        if status == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802  # gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        tasks = {asyncio.ensure_future(self._tell(request, context)), asyncio.ensure_future(self.ending.wait())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()

    async def _tell(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        told = None
        while True:
            # What changes while this one is written is seen at the next turn.
            changed, status = self._changed, self.statuses.get(request.service, _UNKNOWN)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            await changed.wait()


class Health:
    """Keeps the health service in step with the models."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager
        self.servicer = _Servicer()

    async def watch(self) -> None:
        """Updates the health service until it is cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            self.update()

    def enter_shutdown(self) -> None:
        """Says NOT_SERVING for everything; :meth:`watch` must have ended."""
        self.servicer.say(dict.fromkeys(self.servicer.statuses, _status(False)))

    def end_watches(self) -> None:
        self.servicer.ending.set()

    def update(self) -> None:
        models = {name: self._manager.ready(name) for name in self._manager.names}
        # A server whose models are not all there is not ready to take traffic.
        all_ready = self._manager.all_ready()
        services = dict.fromkeys(_SERVICES, _status(all_ready))
        self.servicer.say(services | {name: _status(ready) for name, ready in models.items()})


def _status(ready: bool, /) -> int:
    states = health_pb2.HealthCheckResponse.ServingStatus
    return int(states.Value("SERVING" if ready else "NOT_SERVING"))
