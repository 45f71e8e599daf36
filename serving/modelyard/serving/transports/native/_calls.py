"""gRPC calls that the native core hands over, answered by ``grpc.aio`` handlers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, NoReturn

import grpc
import modelyard_core

from modelyard.serving.requests import REQUEST_ID, Facts, RequestContext, current_request
from modelyard.serving.transports.grpc import AioHandler, Metadata, failure_of, unknown_method
from modelyard.serving.transports.native._drawn import TICKET, drawn_in

Methods = Mapping[str, AioHandler]
_ENCODINGS = ("identity", "deflate", "gzip")
#: A stream's client may have so many bytes of answers to read; beyond, it is looked so often whether it has read them.
_UNSENT_BYTES, _UNSENT_S = 64 << 10, 0.01


class _Aborted(Exception):
    """A handler has ended its call."""


class Context:
    """What a handler may ask of its call: the part of ``grpc.aio.ServicerContext`` that handlers here use."""

    def __init__(self, call: modelyard_core.Call, handler: AioHandler, metadata: Metadata) -> None:
        self._call = call
        self._handler = handler
        self._metadata = metadata
        self._deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        self.code = grpc.StatusCode.OK
        self.details = ""
        self.trailers: Metadata = ()
        self.facts: Facts | None = None
        #: The messages of a stream; None for its end.
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()

    @property
    def logged(self) -> bool | None:
        """Whether the core has chosen the call for the log of predictions; None where it has not drawn."""
        return self._call.logged

    @property
    def drawn(self) -> float | None:
        """What the core has drawn for the call, for traffic rules; None for a stream, whose messages are drawn each."""
        return drawn_in(str(dict(self._metadata).get(TICKET, "")))

    def peer(self) -> str:
        return self._call.peer

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """What TLS knows of the client, under the name that ``grpc.aio`` has for it."""
        certificate = self._call.certificate
        if certificate is None:
            return {}
        return {"x509_pem_cert": [ssl.DER_cert_to_PEM_cert(certificate).encode()]}

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None where it has none."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def trailing_metadata(self) -> Metadata:
        """Metadata beside what a handler sets: none, since the core adds the request id."""
        return ()

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Iterable[tuple[str, str | bytes]] = ()
    ) -> NoReturn:
        self.code, self.details, self.trailers = code, details, tuple(trailing_metadata)
        raise _Aborted

    async def write(self, message: object) -> None:
        """Sends one message of a stream, when there is room for it."""
        # Looking again now and then is enough: before the next message is there, most clients have read the last one.
        while self._call.unsent > _UNSENT_BYTES and not self._call.gone():
            await asyncio.sleep(_UNSENT_S)
        self._call.send(_serialized(self._handler, message))


class Calls:
    """Answers calls by handlers."""

    def __init__(self, methods: Methods, *, recorded: bool = False) -> None:
        self._methods = methods
        self._recorded = recorded
        self._running: dict[modelyard_core.Call, tuple[Context, asyncio.Task[None]]] = {}
        #: Why nothing is answered any more.
        self._over = ""

    @property
    def running(self) -> int:
        return len(self._running)

    def begin(self, call: modelyard_core.Call) -> None:
        if self._over:
            self._refuse(call, None)
            return
        metadata, refusal = _read_head(call, self._methods)
        if refusal is not None:
            call.finish(refusal[0].value[0], refusal[1], [])
            return
        handler = self._methods[call.path]
        context = Context(call, handler, metadata)
        task = asyncio.get_running_loop().create_task(self._guard(call, handler, context))
        self._running[call] = (context, task)
        task.add_done_callback(lambda _: self._running.pop(call, None))

    def feed(self, call: modelyard_core.Call, message: bytes | None) -> None:
        """Takes a message of a stream; None for its end."""
        if call in self._running:
            self._running[call][0].messages.put_nowait(message)

    def leave(self, call: object) -> None:
        """The client has gone, or its time is over."""
        if isinstance(call, modelyard_core.Call) and call in self._running:
            self._running[call][1].cancel()

    def give_up(self, text: str) -> None:
        """Refuses all that is not answered, and all that comes."""
        self._over = text
        for call, (context, _) in self._running.items():
            self._refuse(call, context.facts)

    def _refuse(self, call: modelyard_core.Call, facts: Facts | None) -> None:
        code: int = grpc.StatusCode.UNAVAILABLE.value[0]
        call.finish(code, self._over, [], None if facts is None else facts.told())

    def cancel(self) -> None:
        for _, task in list(self._running.values()):
            task.cancel()

    async def _guard(self, call: modelyard_core.Call, handler: AioHandler, context: Context) -> None:
        facts = context.facts = Facts() if self._recorded else None
        request_id = next(str(value) for key, value in context.invocation_metadata() if key == REQUEST_ID)
        current_request.set(RequestContext(request_id=request_id, facts=facts))
        try:
            if handler.request_streaming or handler.response_streaming:
                await self._stream(call, handler, context)
            else:
                request = _parsed(handler, call.message or b"")
                response = await handler.unary_unary(request, context)
                if context.code is grpc.StatusCode.OK:
                    call.respond(_serialized(handler, response), None if facts is None else facts.told())
                    return
        except _Aborted:
            # The context says how.
            pass
        # Handlers map their own errors.
        except Exception as exc:
            code, context.details = failure_of(exc, call.path)
            context.code, context.trailers = grpc.StatusCode[code], ()
        told = None if facts is None else facts.told()
        try:
            trailers = [(name.encode(), _plain_value(value)) for name, value in context.trailers]
            call.finish(context.code.value[0], context.details, trailers, told)
        # What is no metadata.
        except ValueError as exc:
            code, text = failure_of(exc, call.path)
            call.finish(grpc.StatusCode[code].value[0], text, [], told)

    async def _stream(self, call: modelyard_core.Call, handler: AioHandler, context: Context) -> None:
        requests = _requests(call, handler, context)
        if handler.request_streaming:
            answers = handler.stream_stream(requests, context)
        else:
            answers = handler.unary_stream(await anext(requests), context)
        if isinstance(answers, AsyncIterator):
            async for answer in answers:
                await context.write(answer)
        else:
            # It writes by itself.
            await answers


async def _requests(call: modelyard_core.Call, handler: AioHandler, context: Context) -> AsyncIterator[object]:
    while (data := await context.messages.get()) is not None:
        call.took()
        yield _parsed(handler, data)


def _parsed(handler: AioHandler, data: bytes) -> object:
    return handler.request_deserializer(data) if handler.request_deserializer is not None else data


def _serialized(handler: AioHandler, message: Any) -> bytes:
    serializer = handler.response_serializer
    data: bytes = serializer(message) if serializer is not None else message
    return data


def _plain_value(value: str | bytes) -> bytes:
    return value.encode("ascii") if isinstance(value, str) else base64.b64encode(value).rstrip(b"=")


def _read_head(call: modelyard_core.Call, methods: Methods) -> tuple[Metadata, tuple[grpc.StatusCode, str] | None]:
    """The client's metadata, and why the call is refused; None where its head makes sense."""
    fields = call.headers
    values = dict(fields)
    if call.path not in methods:
        return (), (grpc.StatusCode.UNIMPLEMENTED, unknown_method(call.path, methods))
    encoding = values.get(b"grpc-encoding", b"identity").decode("latin-1")
    if encoding not in _ENCODINGS:
        text = f"Messages compressed by {encoding!r} cannot be read; expected {','.join(_ENCODINGS)}."
        return (), (grpc.StatusCode.UNIMPLEMENTED, text)
    timeout = values.get(b"grpc-timeout")
    if timeout is not None and call.timeout_s is None:
        return (), (grpc.StatusCode.INTERNAL, f"grpc-timeout is {timeout!r}; expected digits and a unit.")
    try:
        return _metadata(fields), None
    except (binascii.Error, ValueError) as exc:
        return (), (grpc.StatusCode.INTERNAL, f"Binary metadata is no base64: {exc}")


def _metadata(fields: list[tuple[bytes, bytes]]) -> Metadata:
    result: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name.startswith(b"grpc-") or name in (b"content-type", b"te"):
            continue
        key = name.decode("latin-1")
        if name.endswith(b"-bin"):
            result.append((key, base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)))
        else:
            result.append((key, value.decode("latin-1")))
    return tuple(result)
