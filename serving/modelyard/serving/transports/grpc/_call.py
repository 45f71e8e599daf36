"""What all gRPC methods share: bytes in, bytes out, every error mapped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from modelyard.errors import InvalidRequestError, ModelyardError
from modelyard.serving.metrics import Metrics
from modelyard.serving.requests import PredictRequest, current_request, unexpected
from modelyard.serving.transports.grpc._retry import retry_metadata
from modelyard.serving.transports.grpc._types import Metadata
from modelyard.wire import Method, grpc_status_of

_LOG = logging.getLogger("modelyard.serving.grpc")

#: Upstream cuts messages there, because some proxies refuse long trailers.
MAX_STATUS_MESSAGE = 1024
_TRUNCATED = "...TRUNCATED"
#: What upstream counts: MultiInference, metadata and status calls are not among it.
_COUNTED = ("Predict", "Classify", "Regress")

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
            facts = current_request.get().facts
            if counted or facts:
                name = _model_of(message)
            if facts:
                facts.model = name
            return await handler(message, context)
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        except Exception as exc:
            code, text = failure_of(exc, method.path)
            trailers = retry_metadata(exc, text)
        finally:
            if counted:
                seconds = time.perf_counter() - started
                metrics.record_request(name, api=method.name, entrypoint="GRPC", status=code, seconds=seconds)
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
    """The model that a request of any method names; empty for none."""
    spec = message.spec if isinstance(message, PredictRequest) else getattr(message, "model_spec", None)
    name: str = getattr(message, "model_name", "") or getattr(message, "name", "") if spec is None else spec.name
    return name


def failure_of(error: BaseException, path: str) -> tuple[str, str]:
    """Status and message that an error is answered with.

    Args:
        error: The error.
        path: The method's path, for the log.
    """
    if isinstance(error, ModelyardError):
        return grpc_status_of(error), truncate(error.message)
    return "INTERNAL", unexpected(error, path, current_request.get().request_id, _LOG)


def truncate(text: str) -> str:
    """Cuts a status message to what upstream sends at most.

    Args:
        text: The message.
    """
    data = text.encode()
    if len(data) <= MAX_STATUS_MESSAGE:
        return text
    return data[: MAX_STATUS_MESSAGE - len(_TRUNCATED)].decode(errors="ignore") + _TRUNCATED
