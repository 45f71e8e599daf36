"""The REST transport: TensorFlow Serving's v1 API on the predictor."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial

from modelyard.artifact import Signature
from modelyard.errors import (
    InvalidRequestError,
    ModelyardError,
    SignatureNotFoundError,
)
from modelyard.serving.handlers.rest import _examples, _json_proto, _predict
from modelyard.serving.handlers.rest._types import (
    JSON,
    HttpHandler,
    RestOptions,
    error_answer,
    json_answer,
    late,
    reworded,
    too_large,
)
from modelyard.serving.handlers.rest._urls import NoSuchUrl, Route, parse_route
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import SMALL_BYTES, Predictor, status_response
from modelyard.serving.requests import Arrays, PredictRequest
from modelyard.serving.transports.http import Answer, HttpRequest
from modelyard.wire import grpc_status_of

_LOG = logging.getLogger("modelyard.serving.rest")

_TEXT = (b"content-type", b"text/plain; version=0.0.4")
_CORS = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type"),
]


class RestApp:
    """Answers the requests of the REST API.

    Args:
        predictor: The data plane.
        metrics: Where requests are counted.
        options: What to offer, and limits.
        metrics_page: What the metrics page shows.
        v2: Answers everything below /v2; None for nothing.
        pages: JSON pages that GET serves, by path, beside what upstream has.
    """

    def __init__(
        self,
        predictor: Predictor,
        metrics: Metrics,
        options: RestOptions,
        *,
        metrics_page: Callable[[], Awaitable[str]],
        v2: HttpHandler | None = None,
        pages: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        self._v2 = v2
        self._pages = dict(pages or {})
        self._predictor = predictor
        self._metrics = metrics
        self._metrics_page = metrics_page
        self._options = options
        self.max_body_bytes = options.max_body_bytes
        self.timeout_s = options.timeout_s

    def late(self) -> ModelyardError:
        """The error of a request whose time is over."""
        return late(self._options)

    def too_large(self) -> ModelyardError:
        """The error of a request whose body is larger than allowed."""
        return too_large(self._options)

    async def answer(self, request: HttpRequest) -> Answer:
        """Answers every request with something, whatever happens."""
        try:
            answer = await self._dispatch(request)
        except Exception as exc:
            answer = error_answer(exc, f"{request.method} {request.path}", caller=request.caller)
        return replace(answer, headers=[*answer.headers, *_CORS]) if self._options.cors else answer

    async def _dispatch(self, request: HttpRequest) -> Answer:
        method, path, query = request.method, request.path, request.query
        full = f"{path}?{query}" if query else path
        if method == "OPTIONS" and path.lower().startswith(("/v1/", "/v2/")):
            return _options(request)
        if method == "GET" and path in self._options.metrics_paths:
            if query:
                raise InvalidRequestError(f"Unexpected path: {full}. Should be {path}")
            return Answer(status=200, body=(await self._metrics_page()).encode(), headers=[_TEXT])
        page = self._pages.get(path) if method == "GET" and not query else None
        if page is not None:
            text = await self._predictor.offload(page)
            return Answer(status=200, body=text.encode(), headers=[JSON])
        if self._v2 is not None and (path == "/v2" or path.startswith("/v2/")):
            return await self._v2(request)
        if path == "/console":
            raise NoSuchUrl("The console is off: start the server with --console.")
        route = parse_route(method, full)
        return json_answer(await self._answer(route, request))

    async def _answer(self, route: Route, request: HttpRequest) -> str:
        if route.verb == "status":
            statuses = self._predictor.status(route.spec.name, route.spec.version)
            return _json_proto.message_json(status_response(statuses)) + "\n"
        if route.verb == "metadata":
            return _json_proto.metadata_json(self._predictor.metadata(route.spec))
        started = time.perf_counter()
        code = "OK"
        try:
            if request.problem is not None:
                raise request.problem
            async with asyncio.timeout(self._options.timeout_s):
                if route.verb == "predict":
                    return await self._predict(route, request)
                return await self._predictor.offload(
                    lambda: self._infer(route, request), request.caller, model=route.spec.name
                )
        except TimeoutError as exc:
            code = "DEADLINE_EXCEEDED"
            raise late(self._options) from exc
        except ModelyardError as exc:
            code = grpc_status_of(exc)
            raise
        finally:
            seconds = time.perf_counter() - started
            self._metrics.record_request(
                route.spec.name, api=route.verb, entrypoint="REST", status=code, seconds=seconds
            )

    def _infer(self, route: Route, request: HttpRequest) -> str:
        body = _examples.parse_examples(self._plain(request), max_depth=self._options.max_json_depth)
        spec = replace(route.spec, signature=body.signature)
        if route.verb == "classify":
            return _examples.classify_answer(self._predictor.classify(spec, body.examples))
        return _examples.regress_answer(self._predictor.regress(spec, body.examples))

    async def _predict(self, route: Route, request: HttpRequest) -> str:
        def parse() -> tuple[_predict.PredictBody, int]:
            data = self._plain(request)
            return _predict.parse_body(data, max_depth=self._options.max_json_depth), len(data)

        small = not _is_packed(request) and len(request.body) <= SMALL_BYTES
        body, size = parse() if small else await self._predictor.offload(parse, request.caller, model=route.spec.name)
        spec = replace(route.spec, signature=body.signature)

        def inputs(signature: Signature) -> Arrays:
            return _predict.inputs_of(body, signature, extensions=self._options.extensions)

        try:
            return await self._predictor.submit(
                PredictRequest(
                    spec=spec,
                    inputs=inputs,
                    small=size <= SMALL_BYTES,
                    caller=request.caller,
                    size=size,
                    names=partial(_predict.names_of, body),
                ),
                lambda prediction: _predict.predict_answer(
                    prediction.outputs,
                    body.form,
                    strict=self._options.strict_json,
                    extensions=self._options.extensions,
                ),
            )
        except SignatureNotFoundError as exc:
            raise reworded(exc, spec.signature_name) from exc

    def _plain(self, request: HttpRequest) -> bytes:
        return _inflate(request.body, self._options) if _is_packed(request) else request.body


def _is_packed(request: HttpRequest) -> bool:
    return "gzip" in request.headers.get("content-encoding", "")


def _options(request: HttpRequest) -> Answer:
    """Upstream's answer to OPTIONS: 200 where an Origin header is present, whatever the CORS flag."""
    origin = request.headers.get("origin", "")
    return Answer(status=200 if origin.startswith(("http://", "https://")) else 400, body=b"", headers=[JSON])


def _inflate(body: bytes, options: RestOptions) -> bytes:
    """Decompresses a gzip body; a bad one counts as empty, as upstream has it."""
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        data = inflater.decompress(body, options.max_body_bytes + 1)
    except zlib.error:
        return b""
    if len(data) > options.max_body_bytes:
        raise too_large(options)
    return data if inflater.eof else b""
