"""An application of HTTP as one of ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from modelyard.errors import ModelyardError
from modelyard.serving.requests import (
    FIELDS_OF_ONE_CALL,
    PRIORITY_KEY,
    REQUEST_ID,
    Caller,
    new_request_id,
    request_id_of,
)
from modelyard.serving.telemetry import Recorder, Recording, Wanted
from modelyard.serving.transports.http import Answer, Application, HttpRequest, answer_of

Event = Mapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

#: After an answer that comes before the end of its request, the client gets so long to read it.
_LINGER_S = 5.0
_CLOSE = (b"connection", b"close")
_ID = REQUEST_ID.encode()
_LENGTH = b"content-length"
#: Where the scope has the client's certificate, in DER, or None.
CERTIFICATE = "modelyard.certificate"
#: What the application has no use for.
_DROPPED = FIELDS_OF_ONE_CALL | {_LENGTH}


class _Gone(Exception):
    """The client has hung up."""


class Adapter:
    """An application as uvicorn calls one."""

    def __init__(self, app: Application, recorder: Recorder | None = None) -> None:
        self._app = app
        self._recorder = recorder or Recorder(Wanted())
        #: Answers tell clients that their connection ends.
        self.closing = False
        #: What is not answered by now is cut off.
        self.over = False

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        fields = _joined(scope["headers"])
        request_id = request_id_of(fields.get(_ID, b"")) or new_request_id()
        recording = self._begin(scope, fields, request_id)
        caller = Caller(
            deadline=time.monotonic() + self._app.limits.timeout_s,
            low_priority=fields.get(PRIORITY_KEY.encode()) == b"low",
            header=lambda name: fields.get(name.encode(), b"").decode("latin-1"),
            request_id=request_id,
            facts=None if recording is None else recording.facts,
        )
        try:
            await self._serve(scope, fields, caller, recording, receive, send)
        finally:
            if recording is not None:
                self._recorder.end(recording)

    def _begin(self, scope: Event, fields: Mapping[bytes, bytes], request_id: str) -> Recording | None:
        return self._recorder.begin(
            api="rest",
            method=scope["method"],
            path=scope["raw_path"].decode("latin-1"),
            request_id=request_id,
            traceparent=fields.get(b"traceparent", b"").decode("latin-1"),
            client=_host(scope["client"]) or "",
        )

    async def _serve(
        self,
        scope: Event,
        fields: Mapping[bytes, bytes],
        caller: Caller,
        recording: Recording | None,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            body, problem = await self._read(int(fields.get(_LENGTH, 0)), receive)
            if recording is not None:
                recording.received(len(body))
            request = HttpRequest(
                method=scope["method"],
                path=scope["raw_path"].decode("latin-1"),
                query=scope["query_string"].decode("latin-1"),
                headers={
                    name.decode("latin-1"): value.decode("latin-1")
                    for name, value in fields.items()
                    if name not in _DROPPED
                },
                body=body,
                client=_host(scope["client"]),
                caller=caller,
                problem=problem,
                certificate=scope[CERTIFICATE],
            )
            answer = await (
                self._answer(request, caller, receive) if problem is None else answer_of(self._app, request)
            )
            if recording is not None:
                recording.status, recording.bytes_out = answer.status, len(answer.body)
            if problem is None:
                await self._send(answer, caller, send)
            else:
                await self._refuse(answer, caller, receive, send)
        except (_Gone, asyncio.CancelledError):
            # In both cases the client is gone: the server cancels what runs when it has closed all
            # connections, and what uvicorn would make of an exception is an error in the log.
            caller.leave()
            if self.over and recording is not None and recording.status is None:
                recording.status = 503

    async def _read(self, length: int, receive: Receive) -> tuple[bytes, ModelyardError | None]:
        """The body, or why there is none."""
        limits = self._app.limits
        if length > limits.max_body_bytes:
            return b"", limits.too_large()
        parts, size, more = [], 0, True
        try:
            async with asyncio.timeout(limits.timeout_s):
                while more:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        raise _Gone
                    parts.append(event["body"])
                    size += len(event["body"])
                    if size > limits.max_body_bytes:
                        return b"", limits.too_large()
                    more = event["more_body"]
        except TimeoutError:
            return b"", limits.late()
        return b"".join(parts), None

    async def _answer(self, request: HttpRequest, caller: Caller, receive: Receive) -> Answer:
        listening = asyncio.create_task(_listen(receive, caller))
        try:
            return await answer_of(self._app, request)
        finally:
            listening.cancel()

    async def _send(self, answer: Answer, caller: Caller, send: Send, *, last: bool = False) -> None:
        headers = [*answer.headers, (_LENGTH, b"%d" % len(answer.body)), (_ID, caller.request_id.encode())]
        if last or self.closing:
            headers.append(_CLOSE)
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body, "more_body": last})

    async def _refuse(self, answer: Answer, caller: Caller, receive: Receive, send: Send) -> None:
        """Answers a request whose body is not read to its end."""
        await self._send(answer, caller, send, last=True)
        # A connection that is closed while more comes is reset, and its answer may be lost.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _host(client: Sequence[object] | None) -> str | None:
    """The caller's address; those of IPv4 are never written as of IPv6."""
    return None if client is None else str(client[0]).removeprefix("::ffff:")


async def _listen(receive: Receive, caller: Caller) -> None:
    """Waits for the client to hang up: nothing else comes behind a body."""
    await receive()
    caller.leave()


def _joined(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Fields by name; several of one name are joined by commas."""
    fields: dict[bytes, bytes] = {}
    for name, raw in headers:
        value = raw.strip(b" \t")
        fields[name] = fields[name] + b", " + value if name in fields else value
    return fields
