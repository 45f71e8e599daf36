"""Sends through modelyard's own client, with its balancing and its retries: what an application would see."""

from __future__ import annotations

import asyncio

from modelyard.clients import AsyncClient
from modelyard.errors import DeadlineExceededError, ModelyardError, OverloadedError, UnavailableError
from modelyard.loadtests.generate._outcomes import Outcome
from modelyard.loadtests.generate._sender import Cancel, Done
from modelyard.loadtests.traffic import Request

_OUTCOMES = (
    (OverloadedError, Outcome.REFUSED),
    (DeadlineExceededError, Outcome.TIMEOUT),
    (UnavailableError, Outcome.UNREACHABLE),
)


class ClientSender:
    """Sends through a client."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, request: Request, done: Done) -> Cancel:
        """Sends a request: see :class:`Sender`."""
        task = asyncio.get_running_loop().create_task(self._predict(request, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            task.cancel()

        return cancel

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _predict(self, request: Request, done: Done) -> None:
        model, signature = request.target
        try:
            outputs = await self._client.predict(model, request.inputs, signature=signature)
        except ModelyardError as exc:
            outcome = next((found for kind, found in _OUTCOMES if isinstance(exc, kind)), Outcome.FAILED)
            done(outcome, exc.message.encode())
        else:
            done(Outcome.OK, dict(outputs))
