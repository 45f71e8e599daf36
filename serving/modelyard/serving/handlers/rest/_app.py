"""The REST transport: TensorFlow Serving's v1 API on the predictor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from modelyard.artifact import Signature
from modelyard.errors import InvalidRequestError, RequestTooLargeError, SignatureNotFoundError
from modelyard.serving.access import Access
from modelyard.serving.config import ServerOptions
from modelyard.serving.handlers.rest import _examples, _predict
from modelyard.serving.handlers.rest._inflate import WBITS, decompress
from modelyard.serving.handlers.rest._json import objects_size
from modelyard.serving.handlers.rest._types import (
    JSON,
    HttpHandler,
    Page,
    admit,
    counted,
    error_answer,
)
from modelyard.serving.handlers.rest._urls import NoSuchUrl, Route, parse_route
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import (
    SIGNATURE_DEF_FIELD,
    SMALL_BYTES,
    Charge,
    ModelMetadata,
    Predictor,
    status_response,
)
from modelyard.serving.requests import Arrays, PredictRequest
from modelyard.serving.transports.http import Answer, HttpLimits, HttpRequest
from modelyard.wire import serving_pb2

_CORS = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"POST, GET"),
    (b"access-control-allow-headers", b"Content-Type"),
]


_T = TypeVar("_T")


class RestApp:
    """Answers the requests of the REST API."""

    def __init__(
        self,
        predictor: Predictor,
        metrics: Metrics,
        options: ServerOptions,
        access: Access,
        *,
        is_starting: Callable[[str], bool],
        metrics_page: Callable[[str], Awaitable[tuple[str, bytes]]],
        v2: HttpHandler | None = None,
        pages: Mapping[str, Page] | None = None,
    ) -> None:
        self._access = access
        self._v2 = v2
        self._pages = dict(pages or {})
        self._predictor = predictor
        self._is_starting = is_starting
        self._metrics = metrics
        self._metrics_page = metrics_page
        self._options = options
        self.limits = HttpLimits(max_body_bytes=options.max_body_bytes, timeout_s=options.rest_timeout_s)

    async def answer(self, request: HttpRequest) -> Answer:
        """Answers every request with something, whatever happens."""
        try:
            answer = await self._dispatch(request)
        except Exception as exc:
            answer = error_answer(exc, f"{request.method} {request.path}", caller=request.caller)
        return replace(answer, headers=[*answer.headers, *_CORS]) if self._options.cors else answer

    async def _dispatch(self, request: HttpRequest) -> Answer:
        if isinstance(request.problem, RequestTooLargeError):
            self._metrics.refuse("too_large")
        method, path, query = request.method, request.path, request.query
        full = f"{path}?{query}" if query else path
        if method == "OPTIONS" and path.lower().startswith(("/v1/", "/v2/")):
            return _options(request)
        if method == "GET" and path in self._options.metrics_paths:
            if query:
                raise InvalidRequestError(f"Unexpected path: {full}. Should be {path}")
            with admit(self._access, request, "metrics"):
                kind, text = await self._metrics_page(request.headers.get("accept", ""))
            return Answer(status=200, body=text, headers=[(b"content-type", kind.encode())])
        page = self._pages.get(path) if method == "GET" and not query else None
        if page is not None:
            with admit(self._access, request, page.scope):
                document = await self._predictor.offload(partial(page.text, request))
            return Answer(status=200, body=document.encode(), headers=[JSON])
        if self._v2 is not None and (path == "/v2" or path.startswith("/v2/")):
            return await self._v2(request)
        if path == "/console":
            raise NoSuchUrl("The console is off: start the server with --console.")
        route = parse_route(method, full)
        if request.caller is not None and request.caller.facts is not None:
            # As upstream, a name may end with a query, which may hold anything.
            request.caller.facts.model = route.spec.name.partition("?")[0]
        body = await self._answer(route, request)
        # Upstream's port is closed until its models can answer: there, probes learn by the status whether they can.
        starting = route.verb == "status" and self._is_starting(route.spec.name)
        return Answer(status=503 if starting else 200, body=body.encode(), headers=[JSON])

    async def _answer(self, route: Route, request: HttpRequest) -> str:
        if route.verb in ("status", "metadata"):
            with admit(self._access, request, "metadata", route.spec.name):
                if route.verb == "metadata":
                    return _metadata_json(self._predictor.metadata(route.spec))
                statuses = self._predictor.status(route.spec.name, route.spec.version)
                return _message_json(status_response(statuses)) + "\n"
        with counted(self._metrics, self._access, request, model=route.spec.name, api=route.verb):
            try:
                async with asyncio.timeout(self.limits.left_s(request.caller)):
                    if route.verb == "predict":
                        return await self._predict(route, request)
                    return await self._predictor.offload(
                        lambda: self._infer(route, request), request.caller, model=route.spec.name
                    )
            except TimeoutError as exc:
                raise self.limits.late() from exc

    def _infer(self, route: Route, request: HttpRequest) -> str:
        with self._predictor.budget.charge() as charge:
            parse = partial(_examples.parse_examples, max_depth=self._options.max_json_depth)
            body, _ = self._parsed(request, charge, parse)
            spec = replace(route.spec, signature=body.signature)
            if route.verb == "classify":
                return _examples.classify_answer(self._predictor.classify(spec, body.examples))
            return _examples.regress_answer(self._predictor.regress(spec, body.examples))

    async def _predict(self, route: Route, request: HttpRequest) -> str:
        # Until it is answered: the body's objects live as long.
        with self._predictor.budget.charge() as charge:
            return await self._predict_within(charge, route, request)

    async def _predict_within(self, charge: Charge, route: Route, request: HttpRequest) -> str:
        def parse() -> tuple[_predict.PredictBody, int]:
            return self._parsed(request, charge, partial(_predict.parse_body, max_depth=self._options.max_json_depth))

        small = _packing(request) is None and len(request.body) <= SMALL_BYTES
        body, size = parse() if small else await self._predictor.offload(parse, request.caller, model=route.spec.name)
        spec = replace(route.spec, signature=body.signature)

        def inputs(signature: Signature) -> Arrays:
            return _predict.inputs_of(body, signature, extensions=self._options.rest_extensions)

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
                    extensions=self._options.rest_extensions,
                ),
            )
        except SignatureNotFoundError as exc:
            # Upstream's words over REST, which differ from gRPC's.
            missing = f'Serving signature name: "{spec.signature_name}" not found in signature def.'
            raise SignatureNotFoundError(f"{missing} {exc.message}") from exc

    def _parsed(self, request: HttpRequest, charge: Charge, parse: Callable[[bytes], _T]) -> tuple[_T, int]:
        """The body, and the bytes of its JSON; charged with what it becomes."""
        packing = _packing(request)
        data = request.body if packing is None else _unpacked(request.body, packing, self.limits)
        charge.take(objects_size(data) + len(data) - len(request.body))
        try:
            return parse(data), len(data)
        except InvalidRequestError as exc:
            encoding = request.headers.get("content-encoding", "identity")
            if packing is not None or encoding.lower() == "identity":
                raise
            # As upstream, a body of JSON is read whatever the header says of it.
            raise InvalidRequestError(
                f"{exc.message} The body was read as it came: Content-Encoding {encoding!r} is not supported; expected "
                "gzip or deflate."
            ) from exc


def _packing(request: HttpRequest) -> str | None:
    """What the body is to be unpacked from; as upstream does, anywhere in the header."""
    encoding = request.headers.get("content-encoding", "").lower()
    return next((name for name in WBITS if name in encoding), None)


def _options(request: HttpRequest) -> Answer:
    """Upstream's answer to OPTIONS: 200 where an Origin header is present, whatever the CORS flag."""
    origin = request.headers.get("origin", "")
    return Answer(status=200 if origin.startswith(("http://", "https://")) else 400, body=b"", headers=[JSON])


def _unpacked(body: bytes, packing: str, limits: HttpLimits) -> bytes:
    try:
        return decompress(body, packing, limit=limits.max_body_bytes)
    except InvalidRequestError:
        if packing != "gzip":
            raise
        # A bad one counts as empty, as upstream has it.
        return b""


def _message_json(message: Message) -> str:
    """Prints a message with every field, defaults included, under its proto name."""
    return json_format.MessageToJson(
        message, indent=1, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
    )


def _metadata_json(metadata: ModelMetadata) -> str:
    """Prints the answer of a metadata request; the doubled ``signature_def`` key is upstream's."""
    spec = serving_pb2.ModelSpec(name=metadata.spec.name)
    if metadata.spec.version is not None:
        spec.version.value = metadata.spec.version
    definitions = serving_pb2.SignatureDefMap()
    for name, definition in metadata.definitions.items():
        definitions.signature_def[name].CopyFrom(definition)
    parts = (_message_json(spec), SIGNATURE_DEF_FIELD, _message_json(definitions))
    return '{{\n"model_spec":{},\n"metadata": {{"{}": {}}}\n}}\n'.format(*parts)
