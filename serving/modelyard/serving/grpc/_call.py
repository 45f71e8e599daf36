"""What all gRPC methods share: bytes in, bytes out, every error mapped."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from modelyard.errors import InvalidRequestError, ModelyardError
from modelyard.serving._metrics import Metrics
from modelyard.wire import Method, grpc_status_of

_LOG = logging.getLogger("modelyard.serving.grpc")

#: Upstream cuts messages there, because some proxies refuse long trailers.
MAX_STATUS_MESSAGE = 1024
_TRUNCATED = "...TRUNCATED"
#: What upstream counts: MultiInference, metadata and status calls are not among it.
_COUNTED = ("Predict", "Classify", "Regress")

Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[[Any, Context], Awaitable[bytes]]


def unary(method: Method, handler: Handler, metrics: Metrics) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Wraps a handler for registration.

    Args:
        method: The method that it answers.
        handler: Called with the parsed request and the call's context; returns
            the serialized response.
        metrics: Where requests are counted.
    """
    counted = method.name in _COUNTED

    async def call(data: bytes, context: Context) -> bytes:
        started = time.perf_counter()
        name, code, text = "", "OK", ""
        try:
            try:
                message = method.request.FromString(data)
            except DecodeError as exc:
                raise InvalidRequestError(
                    f"The body of {method.path} is not a {method.request.DESCRIPTOR.full_name}: {exc}"
                ) from exc
            if counted:
                name = message.model_spec.name
            return await handler(message, context)
        except ModelyardError as exc:
            code, text = grpc_status_of(exc), exc.message
        # Whatever escapes is a bug of ours; its text may hold what strangers must not read.
        except Exception:
            request_id = uuid.uuid4().hex
            _LOG.exception("request %s: %s failed unexpectedly", request_id, method.path)
            code, text = "INTERNAL", f"Internal error. The server's log has the details under request {request_id}."
        finally:
            if counted:
                seconds = time.perf_counter() - started
                metrics.record_request(name, api=method.name, entrypoint="GRPC", status=code, seconds=seconds)
        await context.abort(grpc.StatusCode[code], truncate(text))

    return grpc.unary_unary_rpc_method_handler(call)


def truncate(text: str) -> str:
    """Cuts a status message to what upstream sends at most.

    Args:
        text: The message.
    """
    data = text.encode()
    if len(data) <= MAX_STATUS_MESSAGE:
        return text
    return data[: MAX_STATUS_MESSAGE - len(_TRUNCATED)].decode(errors="ignore") + _TRUNCATED
