"""The REST transport: TensorFlow Serving's v1 API as an ASGI application on the predictor."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from modelyard.artifact import Signature
from modelyard.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ModelyardError,
    RequestTooLargeError,
    SignatureNotFoundError,
)
from modelyard.serving._messages import SMALL_BYTES, status_response
from modelyard.serving._metrics import Metrics
from modelyard.serving._predictor import Predictor
from modelyard.serving._requests import PRIORITY_KEY, Arrays, Caller, PredictRequest
from modelyard.serving.rest import _examples, _json_proto, _predict
from modelyard.serving.rest._short import RestShortWay
from modelyard.serving.rest._types import (
    JSON,
    Answer,
    HttpBegin,
    HttpHandler,
    HttpRequest,
    RestOptions,
    error_answer,
    json_answer,
    reworded,
)
from modelyard.serving.rest._urls import Route, parse_route
from modelyard.wire import grpc_status_of

_LOG = logging.getLogger("modelyard.serving.rest")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_TEXT = (b"content-type", b"text/plain; version=0.0.4")
_CORS = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type"),
]


class RestApp:
    """An ASGI application.

    Args:
        predictor: The data plane.
        metrics: Where requests are counted, and what the metrics page shows.
        options: What to offer, and limits.
        v2: Answers everything below /v2; None for nothing.
        v2_short: Finds who answers a path below /v2 without a task; None for nobody.
        pages: JSON pages that GET serves, by path, beside what upstream has.
    """

    def __init__(
        self,
        predictor: Predictor,
        metrics: Metrics,
        options: RestOptions,
        *,
        v2: HttpHandler | None = None,
        v2_short: Callable[[str], HttpBegin | None] | None = None,
        pages: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        #: Answers small predictions without an ASGI task.
        self.short = RestShortWay(predictor, metrics, options, v2=v2_short)
        self._v2 = v2
        self._pages = dict(pages or {})
        self._predictor = predictor
        self._metrics = metrics
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        answer = await self._guarded(scope, receive)
        headers = [*answer.headers, (b"content-length", str(len(answer.body)).encode())]
        if self._options.cors:
            headers += _CORS
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _guarded(self, scope: Scope, receive: Receive) -> Answer:
        """Answers every request with something, whatever happens."""
        try:
            return await self._dispatch(scope, receive)
        except Exception as exc:
            return error_answer(exc, f"{scope['method']} {scope['path']}")

    async def _dispatch(self, scope: Scope, receive: Receive) -> Answer:
        method: str = scope["method"]
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        full = f"{path}?{query}" if query else path
        if method == "OPTIONS" and path.lower().startswith(("/v1/", "/v2/")):
            return _options(scope)
        metrics_path = self._options.metrics_path
        if metrics_path and method == "GET" and path == metrics_path:
            if query:
                raise InvalidRequestError(f"Unexpected path: {full}. Should be {metrics_path}")
            return Answer(status=200, body=self._metrics.render().encode(), headers=[_TEXT])
        page = self._pages.get(path) if method == "GET" and not query else None
        if page is not None:
            text = await self._predictor.offload(page)
            return Answer(status=200, body=text.encode(), headers=[JSON])
        if self._v2 is not None and (path == "/v2" or path.startswith("/v2/")):
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            client = scope.get("client")
            request = HttpRequest(
                method=method,
                path=path,
                query=query,
                headers=headers,
                body=await self._receive(receive),
                client=client[0] if client else None,
                caller=caller_of(scope, receive),
            )
            return await self._v2(request)
        route = parse_route(method, full)
        return json_answer(await self._answer(route, scope, receive))

    async def _answer(self, route: Route, scope: Scope, receive: Receive) -> str:
        if route.verb == "status":
            statuses = self._predictor.status(route.spec.name, route.spec.version)
            return _json_proto.message_json(status_response(statuses)) + "\n"
        if route.verb == "metadata":
            return _json_proto.metadata_json(self._predictor.metadata(route.spec))
        started = time.perf_counter()
        code = "OK"
        try:
            async with asyncio.timeout(self._options.timeout_s):
                data = await self._read(scope, receive)
                caller = caller_of(scope, receive)
                if route.verb == "predict":
                    return await self._predict(route, data, caller)
                return await self._predictor.offload(lambda: self._infer(route, data), caller)
        except TimeoutError as exc:
            code = "DEADLINE_EXCEEDED"
            raise DeadlineExceededError(
                f"No answer within {self._options.timeout_s:g} s, the server's --rest_api_timeout_in_ms."
            ) from exc
        except ModelyardError as exc:
            code = grpc_status_of(exc)
            raise
        finally:
            seconds = time.perf_counter() - started
            self._metrics.record_request(
                route.spec.name, api=route.verb, entrypoint="REST", status=code, seconds=seconds
            )

    def _infer(self, route: Route, data: bytes) -> str:
        body = _examples.parse_examples(data, max_depth=self._options.max_json_depth)
        spec = replace(route.spec, signature=body.signature)
        if route.verb == "classify":
            return _examples.classify_answer(self._predictor.classify(spec, body.examples))
        return _examples.regress_answer(self._predictor.regress(spec, body.examples))

    async def _predict(self, route: Route, data: bytes, caller: Caller) -> str:
        depth = self._options.max_json_depth
        if len(data) <= SMALL_BYTES:
            body = _predict.parse_body(data, max_depth=depth)
        else:
            body = await self._predictor.offload(lambda: _predict.parse_body(data, max_depth=depth))
        spec = replace(route.spec, signature=body.signature)

        def inputs(signature: Signature) -> Arrays:
            return _predict.inputs_of(body, signature, extensions=self._options.extensions)

        try:
            return await self._predictor.submit(
                PredictRequest(spec=spec, inputs=inputs, small=len(data) <= SMALL_BYTES, caller=caller),
                lambda prediction: _predict.predict_answer(
                    prediction.outputs,
                    body.form,
                    strict=self._options.strict_json,
                    extensions=self._options.extensions,
                ),
            )
        except SignatureNotFoundError as exc:
            raise reworded(exc, spec.signature_name) from exc

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        body = await self._receive(receive)
        encodings = [value for name, value in scope["headers"] if name == b"content-encoding"]
        return _inflate(body, self._options.max_body_bytes) if any(b"gzip" in value for value in encodings) else body

    async def _receive(self, receive: Receive) -> bytes:
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
        return b"".join(parts)


def caller_of(scope: Scope, receive: Receive) -> Caller:
    """Who waits for the answer of a request.

    Args:
        scope: The request's.
        receive: The request's; uvicorn's belongs to an object that knows whether the client is still there.
    """
    cycle = getattr(receive, "__self__", None)
    low = any(name == PRIORITY_KEY.encode() and value == b"low" for name, value in scope["headers"])
    return Caller(gone=lambda: getattr(cycle, "disconnected", False), low_priority=low)


def _options(scope: Scope) -> Answer:
    """Upstream's answer to OPTIONS: 200 where an Origin header is present, whatever the CORS flag."""
    origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
    return Answer(status=200 if origin.startswith((b"http://", b"https://")) else 400, body=b"", headers=[JSON])


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
