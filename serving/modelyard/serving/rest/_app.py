"""The REST transport: TensorFlow Serving's v1 API as an ASGI application on the predictor."""

from __future__ import annotations

import json
import logging
import uuid
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, replace
from typing import Any

from modelyard.artifact import Signature
from modelyard.errors import (
    InvalidRequestError,
    ModelyardError,
    RequestTooLargeError,
    SignatureNotFoundError,
)
from modelyard.serving._predictor import Predictor
from modelyard.serving._requests import Arrays, PredictRequest
from modelyard.serving.grpc._codec import status_response
from modelyard.serving.rest import _examples, _json_proto, _predict
from modelyard.serving.rest._urls import NoSuchUrl, Route, parse_route
from modelyard.wire import http_status_of

_LOG = logging.getLogger("modelyard.serving.rest")

#: Bodies up to this size are parsed on the event loop: a hop to a worker thread would cost more.
_INLINE_BYTES = 1 << 16

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RestOptions:
    """Limits of the REST API.

    Attributes:
        max_body_bytes: Largest request body, before and after decompression.
        max_json_depth: Deepest nesting of a JSON body.
    """

    max_body_bytes: int = 100 << 20
    max_json_depth: int = 100


class RestApp:
    """An ASGI application.

    Args:
        predictor: The data plane.
        options: Limits.
    """

    def __init__(self, predictor: Predictor, options: RestOptions) -> None:
        self._predictor = predictor
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        try:
            status, text = 200, await self._answer(scope, receive)
        except ModelyardError as exc:
            status, text = http_status_of(exc), _error_json(exc.message)
        except NoSuchUrl as exc:
            status, text = 404, _error_json(str(exc))
        # Whatever escapes is a bug of ours; its text may hold what strangers must not read.
        except Exception:
            request_id = uuid.uuid4().hex
            _LOG.exception("request %s: %s %s failed unexpectedly", request_id, scope["method"], scope["path"])
            status = 500
            text = _error_json(f"Internal error. The server's log has the details under request {request_id}.")
        body = text.encode("utf-8", "surrogateescape")
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> str:
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        route = parse_route(scope["method"], f"{path}?{query}" if query else path)
        if route.verb == "status":
            statuses = self._predictor.status(route.spec.name, route.spec.version)
            return _json_proto.message_json(status_response(statuses)) + "\n"
        if route.verb == "metadata":
            return _json_proto.metadata_json(self._predictor.metadata(route.spec))
        data = await self._read(scope, receive)
        if route.verb == "predict":
            return await self._predict(route, data)
        return await self._predictor.offload(lambda: self._infer(route, data))

    def _infer(self, route: Route, data: bytes) -> str:
        body = _examples.parse_examples(data, max_depth=self._options.max_json_depth)
        spec = replace(route.spec, signature=body.signature)
        if route.verb == "classify":
            return _examples.classify_answer(self._predictor.classify(spec, body.examples))
        return _examples.regress_answer(self._predictor.regress(spec, body.examples))

    async def _predict(self, route: Route, data: bytes) -> str:
        depth = self._options.max_json_depth
        if len(data) <= _INLINE_BYTES:
            body = _predict.parse_body(data, max_depth=depth)
        else:
            body = await self._predictor.offload(lambda: _predict.parse_body(data, max_depth=depth))
        spec = replace(route.spec, signature=body.signature)

        def inputs(signature: Signature) -> Arrays:
            return _predict.inputs_of(body, signature)

        try:
            return await self._predictor.submit(
                PredictRequest(spec=spec, inputs=inputs),
                lambda prediction: _predict.predict_answer(prediction.outputs, body.form),
            )
        except SignatureNotFoundError as exc:
            # Upstream words this one differently over REST.
            raise SignatureNotFoundError(
                f'Serving signature name: "{spec.signature_name}" not found in signature def. {exc.message}'
            ) from exc

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        limit = self._options.max_body_bytes
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise InvalidRequestError("The connection was closed before the whole body was received.")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
            if not message.get("more_body", False):
                break
        body = b"".join(parts)
        encodings = [value for name, value in scope["headers"] if name == b"content-encoding"]
        return _inflate(body, limit) if any(b"gzip" in value for value in encodings) else body


def _inflate(body: bytes, limit: int) -> bytes:
    """Decompresses a gzip body; a bad one counts as empty, as upstream has it."""
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        data = inflater.decompress(body, limit + 1)
    except zlib.error:
        return b""
    if len(data) > limit:
        raise _too_large(limit)
    return data if inflater.eof else b""


def _too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"The request body has more than {limit} bytes; send fewer rows per request, or use gRPC."
    )


def _error_json(message: str) -> str:
    return json.dumps({"error": message}, indent=4, ensure_ascii=False)
