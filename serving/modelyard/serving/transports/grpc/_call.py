"""What all gRPC methods share: bytes in, bytes out, every error mapped."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from modelyard.errors import InvalidRequestError, ModelyardError
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import REQUEST_ID, PredictRequest, request_id_of, trace_id_of
from modelyard.serving.transports.grpc._retry import retry_metadata
from modelyard.serving.transports.grpc._types import Metadata
from modelyard.wire import Method, grpc_status_of

_LOG = logging.getLogger("modelyard.serving.grpc")

#: Upstream cuts messages there, because some proxies refuse long trailers.
MAX_STATUS_MESSAGE = 1024
_TRUNCATED = "...TRUNCATED"
#: What upstream counts (MultiInference, metadata and status calls are not among it), and what v2 has instead.
_COUNTED = ("Predict", "Classify", "Regress", "ModelInfer")

Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[[Any, Context], Awaitable[bytes]]


def unary(
    method: Method,
    handler: Handler,
    metrics: Metrics,
    *,
    parse: Callable[[bytes], Any] | None = None,
) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Wraps a handler for registration.

    Args:
        method: The method that it answers.
        handler: Called with the parsed request and the call's context; returns
            the serialized response.
        metrics: Where requests are counted.
        parse: Parses a request; None for the method's own message.
    """
    counted = method.name in _COUNTED
    read = parse or method.request.FromString

    async def call(data: bytes, context: Context) -> bytes:
        started = time.perf_counter()
        name, code, text = "", "OK", ""
        trailers: Metadata = ()
        try:
            message = _parsed(method, read, data)
            if counted:
                name = _model_of(message)
            return await handler(message, context)
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except Exception as exc:
            code, text = failure_of(exc, method.path, request_id_in(context))
            trailers = retry_metadata(exc, text)
        finally:
            if counted:
                seconds = time.perf_counter() - started
                metrics.record_request(
                    name, api=method.name, entrypoint="GRPC", status=code, seconds=seconds, trace=_trace_in(context)
                )
        await context.abort(grpc.StatusCode[code], text, (*(context.trailing_metadata() or ()), *trailers))

    return grpc.unary_unary_rpc_method_handler(call)


def _parsed(method: Method, parse: Callable[[Any], Any], data: Any) -> Any:
    try:
        return parse(data)
    except DecodeError as exc:
        raise InvalidRequestError(
            f"The body of {method.path} is not a {method.request.DESCRIPTOR.full_name}: {exc}"
        ) from exc


def _model_of(message: Any) -> str:
    if isinstance(message, PredictRequest):
        return message.spec.name
    name: str = message.model_spec.name if hasattr(message, "model_spec") else message.model_name
    return name


class Invoked(Protocol):
    """A call as far as its client's metadata goes."""

    def invocation_metadata(self) -> Any:
        """Names and values."""
        ...


def request_id_in(context: Invoked) -> str:
    """The id that a call's client gave it; empty where it gave none that is valid.

    Args:
        context: The call's.
    """
    values = [value for key, value in context.invocation_metadata() or () if key == REQUEST_ID]
    return request_id_of(values[0].encode() if isinstance(values[0], str) else values[0]) if values else ""


def _trace_in(context: Invoked) -> str:
    values = [value for key, value in context.invocation_metadata() or () if key == "traceparent"]
    return trace_id_of(values[0]) if values else ""


def failure_of(error: BaseException, path: str, request_id: str = "") -> tuple[str, str]:
    """Status and message that an error is answered with.

    Args:
        error: The error.
        path: The method's path, for the log.
        request_id: The caller's, for the log; empty where it gave none.
    """
    if isinstance(error, ModelyardError):
        return grpc_status_of(error), truncate(error.message)
    # Whatever escapes is a bug of ours; its text may hold what strangers must not read.
    request_id = request_id or uuid.uuid4().hex
    _LOG.error("request %s: %s failed unexpectedly", request_id, path, exc_info=error)
    return "INTERNAL", f"Internal error. The server's log has the details under request {request_id}."


def truncate(text: str) -> str:
    """Cuts a status message to what upstream sends at most.

    Args:
        text: The message.
    """
    data = text.encode()
    if len(data) <= MAX_STATUS_MESSAGE:
        return text
    return data[: MAX_STATUS_MESSAGE - len(_TRUNCATED)].decode(errors="ignore") + _TRUNCATED
