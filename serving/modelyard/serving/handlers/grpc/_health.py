"""grpc.health.v1, truthful: the server as a whole, each service, each model."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health, health_pb2

from modelyard.serving.repository import ModelManager

_TICK_S = 0.1
#: Upstream's unqualified names beside the full ones.
_SERVICES = (
    "",
    "ModelService",
    "PredictionService",
    "tensorflow.serving.ModelService",
    "tensorflow.serving.PredictionService",
)


class _Servicer(health.aio.HealthServicer):  # type: ignore[name-defined,misc]  # the stubs lack it
    """Ends its streams when told to: a client that watches would hold up a stop for as long as it may take."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = asyncio.Event()

    async def Watch(  # noqa: N802  # gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: object
    ) -> None:
        tasks = {asyncio.ensure_future(super().Watch(request, context)), asyncio.ensure_future(self.ending.wait())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()


class Health:
    """Keeps the health service in step with the models."""

    def __init__(self, manager: ModelManager) -> None:
        self._manager = manager
        self._known: dict[str, int] = {}
        self.servicer = _Servicer()

    async def watch(self) -> None:
        """Updates the health service until it is cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            await self.update()

    async def enter_shutdown(self) -> None:
        """Says NOT_SERVING for everything, for good."""
        await self.servicer.enter_graceful_shutdown()

    def end_watches(self) -> None:
        self.servicer.ending.set()

    async def update(self) -> None:
        models = {name: self._manager.ready(name) for name in self._manager.names}
        # A server whose models are not all there is not ready to take traffic.
        all_ready = self._manager.all_ready()
        wanted = {name: _status(all_ready) for name in _SERVICES}
        wanted |= {name: _status(ready) for name, ready in models.items()}
        for gone in self._known.keys() - wanted.keys():
            wanted[gone] = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        for name, status in wanted.items():
            if self._known.get(name) != status:
                await self.servicer.set(name, status)
        self._known = wanted


def _status(ready: bool, /) -> int:
    states = health_pb2.HealthCheckResponse.ServingStatus
    return int(states.Value("SERVING" if ready else "NOT_SERVING"))
