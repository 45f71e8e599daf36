"""The request id, and the record, of every call that gRPC's own server answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import grpc
from google.protobuf.message import Message

from modelyard.serving.requests import REQUEST_ID, RequestContext, current_request, new_request_id, request_id_of
from modelyard.serving.telemetry import Recorder, Recording
from modelyard.serving.transports.grpc._call import Context, failure_of, peer_host
from modelyard.serving.transports.grpc._types import AioHandler, RpcHandler


class RequestInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # the stubs say generic
    """Wraps the handlers of all methods, those of libraries among them."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder
        #: Calls that are not answered.
        self.running = 0
        #: What is not answered by now is cut off.
        self.over = False

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[RpcHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> RpcHandler:
        handler = cast("AioHandler", await continuation(handler_call_details))
        path = handler_call_details.method
        formats = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if not (handler.request_streaming or handler.response_streaming):

            async def unary(request: object, context: Context) -> object:
                call = _Call(self, path, context)
                call.received(request)
                with call:
                    response = await call.guarded(handler.unary_unary(request, context))
                    call.sent(response)
                    return response

            return grpc.unary_unary_rpc_method_handler(unary, **formats)

        async def stream(request: object, context: Context) -> None:
            with _Call(self, path, context) as call:
                work = handler.stream_stream if handler.request_streaming else handler.unary_stream
                answers = work(request, context)
                await call.guarded(_write_all(answers, context) if isinstance(answers, AsyncIterator) else answers)

        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, **formats)
        return grpc.unary_stream_rpc_method_handler(stream, **formats)


class _Call:
    """One call, from its handler's begin to its end."""

    def __init__(self, interceptor: RequestInterceptor, path: str, context: Context) -> None:
        metadata: dict[str, str | bytes] = dict(context.invocation_metadata() or ())
        given = metadata.get(REQUEST_ID, "")
        request_id = request_id_of(given.encode() if isinstance(given, str) else given) or new_request_id()
        self._interceptor = interceptor
        self._recorder = recorder = interceptor.recorder
        self._path = path
        self._context = context
        self._recording: Recording | None = None
        if recorder is not None:
            self._recording = recorder.begin(
                api="grpc",
                method="POST",
                path=path,
                request_id=request_id,
                traceparent=str(metadata.get("traceparent", "")),
                client=(peer_host(context.peer()) or "").rstrip(":"),
            )
        facts = None if self._recording is None else self._recording.facts
        current_request.set(RequestContext(request_id=request_id, facts=facts))
        context.set_trailing_metadata(((REQUEST_ID, request_id),))

    def received(self, message: object) -> None:
        if self._recording is not None:
            self._recording.received(_size(message))

    def sent(self, message: object) -> None:
        if self._recording is not None:
            self._recording.bytes_out = _size(message)

    async def guarded(self, work: Awaitable[object]) -> object:
        """What work returns; an error that is a bug, of a library's handler too, is not sent to clients."""
        try:
            return await work
        except (grpc.aio.AbortError, grpc.aio.InternalError):
            # The second: the call had ended before its status was sent, and takes no other.
            raise
        except Exception as exc:
            code, text = failure_of(exc, self._path)
            await self._context.abort(grpc.StatusCode[code], text, self._context.trailing_metadata() or ())

    def __enter__(self) -> _Call:
        self._interceptor.running += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._interceptor.running -= 1
        if self._recorder is None or self._recording is None:
            return
        if kind is None or issubclass(kind, grpc.aio.AbortError):
            # A number, or a status with one; what ended well has none.
            code: Any = self._context.code()
            self._recording.status = code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0)
        elif self._interceptor.over:
            self._recording.status = grpc.StatusCode.UNAVAILABLE.value[0]
        self._recorder.end(self._recording)


async def _write_all(answers: AsyncIterator[Any], context: Context) -> None:
    async for answer in answers:
        await context.write(answer)


def _size(message: object) -> int:
    return len(message) if isinstance(message, bytes) else message.ByteSize() if isinstance(message, Message) else 0
