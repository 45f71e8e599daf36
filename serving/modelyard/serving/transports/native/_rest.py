"""REST requests that the native core hands over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping

import modelyard_core

from modelyard.errors import ModelyardError
from modelyard.serving.requests import PRIORITY_KEY, Caller, Facts
from modelyard.serving.transports.http import Application, HttpRequest, answer_of
from modelyard.serving.transports.native._drawn import TICKET, drawn_in


class Exchanges:
    """Answers them by an application."""

    def __init__(self, app: Application, *, recorded: bool = False) -> None:
        self._app = app
        self._recorded = recorded
        self._running: dict[modelyard_core.Exchange, tuple[Caller, asyncio.Task[None]]] = {}
        #: Why nothing is answered any more.
        self._over = ""

    @property
    def running(self) -> int:
        return len(self._running)

    def begin(self, exchange: modelyard_core.Exchange) -> None:
        if self._over:
            self._refuse(exchange, None)
            return
        headers = exchange.headers
        caller = Caller(
            deadline=time.monotonic() + self._app.limits.timeout_s - exchange.age_s,
            gone=exchange.gone,
            low_priority=headers.get(PRIORITY_KEY) == "low",
            request_id=exchange.request_id,
            header=lambda name: headers.get(name, ""),
            facts=Facts() if self._recorded else None,
            logged=exchange.logged,
            drawn=drawn_in(headers.get(TICKET, "")),
        )
        task = asyncio.get_running_loop().create_task(self._answer(exchange, headers, caller))
        self._running[exchange] = (caller, task)
        task.add_done_callback(lambda _: self._running.pop(exchange, None))

    def leave(self, exchange: object) -> None:
        """The client has hung up: what has begun is finished, for others may wait for the same."""
        if isinstance(exchange, modelyard_core.Exchange) and exchange in self._running:
            self._running[exchange][0].leave()

    def give_up(self, text: str) -> None:
        """Refuses all that is not answered, and all that comes."""
        self._over = text
        for exchange, (caller, _) in self._running.items():
            self._refuse(exchange, caller.facts)

    def _refuse(self, exchange: modelyard_core.Exchange, facts: Facts | None) -> None:
        body = json.dumps({"error": self._over}).encode()
        exchange.respond(503, [(b"content-type", b"application/json")], body, None if facts is None else facts.told())

    def cancel(self) -> None:
        for _, task in list(self._running.values()):
            task.cancel()

    async def _answer(self, exchange: modelyard_core.Exchange, headers: Mapping[str, str], caller: Caller) -> None:
        request = HttpRequest(
            method=exchange.method,
            path=exchange.path,
            query=exchange.query,
            headers=headers,
            body=exchange.body,
            client=exchange.client,
            caller=caller,
            problem=self._problem(exchange.problem),
            certificate=exchange.certificate,
        )
        answer = await answer_of(self._app, request)
        told = None if caller.facts is None else caller.facts.told()
        exchange.respond(answer.status, answer.headers, answer.body, told)

    def _problem(self, name: str | None) -> ModelyardError | None:
        if name is None:
            return None
        return self._app.limits.late() if name == "late" else self._app.limits.too_large()
