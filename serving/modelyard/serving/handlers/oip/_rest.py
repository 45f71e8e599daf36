"""The protocol over REST: everything below /v2, as a function from a request to an answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qs, unquote

from modelyard.errors import InvalidRequestError, ModelyardError, UnsupportedError
from modelyard.serving.access import Access, Scope
from modelyard.serving.config import ServerOptions
from modelyard.serving.handlers.oip._logging import change_log_settings
from modelyard.serving.handlers.oip._parameters import SIGNATURE_PARAMETER
from modelyard.serving.handlers.oip._rest_codec import JSON, LENGTH_KEY, answer_of, compressed, read_call
from modelyard.serving.handlers.oip._service import EXTENSIONS, SERVER_NAME, OipService, document_of
from modelyard.serving.handlers.oip._types import InferRequest
from modelyard.serving.handlers.rest import admit, counted, decompress, hints_of, objects_size, parse_object, quote
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import SMALL_BYTES, Charge, Predictor
from modelyard.serving.transports.http import Answer, HttpLimits, HttpRequest
from modelyard.wire import http_status_of

_T = TypeVar("_T")

_JSON_LENGTH = LENGTH_KEY.decode()

#: Everything served below /v2: method, path, operation and the scope that it needs. A part in brackets may be left out;
#: the first path that matches decides.
ROUTES: tuple[tuple[str, str, str, Scope | None], ...] = (
    ("GET", "/v2[/]", "server_metadata", "metadata"),
    ("GET", "/v2/health/live", "live", None),
    ("GET", "/v2/health/ready", "ready", None),
    ("GET", "/v2/models/stats", "statistics", "metrics"),
    ("GET", "/v2/models/{model}[/versions/{version}]/stats", "statistics", "metrics"),
    ("GET", "/v2/models/{model}[/versions/{version}]/ready", "model_ready", None),
    ("POST", "/v2/models/{model}[/versions/{version}]/infer", "infer", "predict"),
    ("GET", "/v2/models/{model}[/versions/{version}]/config", "model_config", "metadata"),
    ("GET", "/v2/models/{model}[/versions/{version}]", "model_metadata", "metadata"),
    ("GET", "/v2/logging", "log_settings", "metadata"),
    ("POST", "/v2/logging", "change_log_settings", "admin"),
    ("POST", "/v2/repository[/{repository}]/index", "index", "metadata"),
    ("POST", "/v2/repository[/{repository}]/models/{model}/load", "load", "admin"),
    ("POST", "/v2/repository[/{repository}]/models/{model}/unload", "unload", "admin"),
)


def _pattern(path: str) -> str:
    """The regular expression of a path, with a group for each parameter."""
    return re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path.replace("[", "(?:").replace("]", ")?"))


#: What Triton has below these paths and this server has not.
_MISSING = re.compile(
    r"/v2/(?:trace/setting|(?:system|cuda)sharedmemory/.+)"
    rf"|{_pattern('/v2/models/{model}[/versions/{version}]')}/(?:generate|generate_stream|trace/setting)"
)

_Handler = Callable[["HttpRequest", Sequence[str]], Awaitable[Answer]]


class OipRest:
    def __init__(
        self, service: OipService, predictor: Predictor, options: ServerOptions, access: Access, metrics: Metrics
    ) -> None:
        self._access = access
        self._metrics = metrics
        self._service = service
        self._predictor = predictor
        self._options = options
        self._limits = HttpLimits(max_body_bytes=options.max_body_bytes, timeout_s=options.rest_timeout_s)
        handlers: dict[str, _Handler] = {
            "server_metadata": self._server_metadata,
            "live": self._live,
            "ready": self._ready,
            "statistics": self._statistics,
            "model_ready": self._model_ready,
            "infer": self._infer,
            "model_config": self._model_config,
            "model_metadata": self._model_metadata,
            "log_settings": self._log_settings,
            "change_log_settings": self._change_log_settings,
            "index": self._index,
            "load": partial(self._control, service.load),
            "unload": partial(self._control, service.unload),
        }
        self._routes = [
            (method, re.compile(_pattern(path)), scope, handlers[operation])
            for method, path, operation, scope in ROUTES
        ]

    async def answer(self, request: HttpRequest) -> Answer:
        """Answers one request; our errors are answers too, whatever else escapes is the caller's to report."""
        try:
            return await self._dispatch(request)
        except ModelyardError as exc:
            answer = _error(http_status_of(exc), exc.message)
            return replace(answer, headers=[*answer.headers, *hints_of(exc)])

    async def _dispatch(self, request: HttpRequest) -> Answer:
        allowed: list[str] = []
        found = None
        for method, pattern, scope, handler in self._routes:
            # The first path that matches decides; several methods may have it.
            match = pattern.fullmatch(request.path) if found in (None, pattern.pattern) else None
            if match is None:
                continue
            found = pattern.pattern
            if request.method != method:
                allowed.append(method)
                continue
            if request.problem is not None and handler != self._infer:
                raise request.problem
            groups = [unquote(group or "") for group in match.groups()]
            # Routes without one are about the server as a whole.
            model = unquote(match.groupdict().get("model") or "")
            if request.caller is not None and request.caller.facts is not None:
                request.caller.facts.model = model
            # A prediction is admitted where it is counted.
            if scope is None or handler == self._infer:
                return await handler(request, groups)
            with admit(self._access, request, scope, model):
                return await handler(request, groups)
        if allowed:
            expected = " or ".join(allowed)
            answer = _error(405, f"{request.method} {request.path}: method not allowed; expected {expected}.")
            return replace(answer, headers=[*answer.headers, (b"allow", ", ".join(allowed).encode())])
        if request.problem is not None:
            raise request.problem
        if _MISSING.fullmatch(request.path):
            raise UnsupportedError(
                f"modelyard does not implement {request.method} {request.path}; of Triton's extensions it has "
                f"{', '.join(EXTENSIONS)}."
            )
        return _error(404, f"Not found: {request.method} {request.path}")

    async def _server_metadata(self, _: HttpRequest, __: Sequence[str]) -> Answer:
        return _document({"name": SERVER_NAME, "version": self._service.version, "extensions": list(EXTENSIONS)})

    async def _live(self, _: HttpRequest, __: Sequence[str]) -> Answer:
        return _document({"live": True})

    async def _ready(self, _: HttpRequest, __: Sequence[str]) -> Answer:
        if self._service.ready():
            return _document({"ready": True})
        return _error(400, "The server is not ready: a model that it is to load cannot answer, or it is stopping.")

    async def _model_ready(self, _: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups
        if self._service.model_ready(name, version):
            return _document({"name": name, "ready": True})
        return _error(400, f"Model {quote(name)}{version and f' version {version}'} is not ready.")

    async def _model_metadata(self, request: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups
        return _document(document_of(self._service.model_metadata(name, version, _signature(request))))

    async def _model_config(self, request: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups
        return _document(document_of(self._service.model_config(name, version, _signature(request))))

    async def _statistics(self, _: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups or ("", "")
        rows = self._service.statistics(name, version).model_stats
        # Triton has more, of what is not here.
        return _document(
            {"model_stats": [{**document_of(row), "response_stats": {}, "memory_usage": []} for row in rows]}
        )

    async def _log_settings(self, _: HttpRequest, __: Sequence[str]) -> Answer:
        return _document(change_log_settings({}))

    async def _change_log_settings(self, request: HttpRequest, _: Sequence[str]) -> Answer:
        return _document(change_log_settings(await self._body_object(request)))

    async def _index(self, request: HttpRequest, groups: Sequence[str]) -> Answer:
        ready = (await self._body_object(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequestError(f"'ready' is {quote(ready)}; expected true or false.")
        return _document(document_of(self._service.index(repository=groups[0], ready=ready))["models"])

    async def _control(
        self, control: Callable[..., Awaitable[None]], request: HttpRequest, groups: Sequence[str]
    ) -> Answer:
        repository, name = groups
        parameters = (await self._body_object(request)).get("parameters", {})
        if not isinstance(parameters, dict):
            raise InvalidRequestError(f"'parameters' is {quote(parameters)}; expected an object.")
        await control(name, list(parameters), repository=repository)
        return Answer(status=200, body=b"", headers=[])

    async def _infer(self, request: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups
        length, depth = request.headers.get(_JSON_LENGTH), self._options.max_json_depth

        def read(charge: Charge) -> InferRequest:
            body = self._plain(request)
            charge.take(objects_size(body) + len(body) - len(request.body))
            call = read_call(body, length, name, version, max_depth=depth)
            return replace(call, caller=request.caller, size=len(body), small=len(body) <= SMALL_BYTES)

        with counted(self._metrics, self._access, request, model=name, api="infer"):
            try:
                # Until it is answered: the body's objects live as long.
                async with asyncio.timeout(self._limits.left_s(request.caller)):
                    with self._predictor.budget.charge() as charge:
                        call = await self._offload(request, partial(read, charge), model=name)
                        answer = await self._service.infer(call, partial(answer_of, strict=self._options.strict_json))
            except TimeoutError as exc:
                raise self._limits.late() from exc
        # As Triton does, nothing else: its clients inflate predictions, and neither metadata nor errors.
        accepted = request.headers.get("accept-encoding", "")
        if len(answer.body) <= SMALL_BYTES:
            return compressed(answer, accepted)
        return await self._predictor.offload(lambda: compressed(answer, accepted))

    async def _body_object(self, request: HttpRequest) -> dict[str, object]:
        def read() -> dict[str, object]:
            body = self._plain(request)
            return parse_object(body, max_depth=self._options.max_json_depth, strict_text=True) if body.strip() else {}

        return await self._offload(request, read)

    def _plain(self, request: HttpRequest) -> bytes:
        encoding = request.headers.get("content-encoding")
        return decompress(request.body, encoding, limit=self._limits.max_body_bytes) if encoding else request.body

    async def _offload(self, request: HttpRequest, read: Callable[[], _T], *, model: str = "") -> _T:
        """Reads a small body at once, a large or compressed one on a worker thread."""
        if len(request.body) <= SMALL_BYTES and "content-encoding" not in request.headers:
            return read()
        return await self._predictor.offload(read, request.caller, model=model)


def _signature(request: HttpRequest) -> str:
    return parse_qs(request.query).get(SIGNATURE_PARAMETER, [""])[0]


def _document(value: object) -> Answer:
    return Answer(status=200, body=json.dumps(value, ensure_ascii=False).encode(), headers=[JSON])


def _error(status: int, text: str) -> Answer:
    body = json.dumps({"error": text}, ensure_ascii=False).encode("utf-8", "replace")
    return Answer(status=status, body=body, headers=[JSON])
