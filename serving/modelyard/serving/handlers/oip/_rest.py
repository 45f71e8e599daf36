"""The protocol over REST: everything below /v2, as a function from a request to an answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

from modelyard.errors import DeadlineExceededError, InvalidRequestError, ModelyardError, UnsupportedError
from modelyard.serving.handlers.oip._compression import decompress
from modelyard.serving.handlers.oip._model_config import config_document
from modelyard.serving.handlers.oip._parameters import SIGNATURE_PARAMETER
from modelyard.serving.handlers.oip._rest_bodies import JSON, LENGTH_KEY, answer_of, compressed, read_call
from modelyard.serving.handlers.oip._service import EXTENSIONS, SERVER_NAME, OipService
from modelyard.serving.handlers.oip._types import InferRequest, TensorMetadata
from modelyard.serving.handlers.rest import RestOptions, parse_object, quote
from modelyard.serving.metrics import Duration, VersionStatistics
from modelyard.serving.prediction import SMALL_BYTES, Predictor
from modelyard.serving.transports.http import Answer, HttpRequest
from modelyard.wire import http_status_of

_T = TypeVar("_T")

_JSON_LENGTH = LENGTH_KEY.decode()

#: Everything served below /v2: method, path and operation. A part in brackets may be left out; the first path that
#: matches decides.
ROUTES: tuple[tuple[str, str, str], ...] = (
    ("GET", "/v2[/]", "server_metadata"),
    ("GET", "/v2/health/live", "live"),
    ("GET", "/v2/health/ready", "ready"),
    ("GET", "/v2/models/stats", "statistics"),
    ("GET", "/v2/models/{model}[/versions/{version}]/stats", "statistics"),
    ("GET", "/v2/models/{model}[/versions/{version}]/ready", "model_ready"),
    ("POST", "/v2/models/{model}[/versions/{version}]/infer", "infer"),
    ("GET", "/v2/models/{model}[/versions/{version}]/config", "model_config"),
    ("GET", "/v2/models/{model}[/versions/{version}]", "model_metadata"),
    ("POST", "/v2/repository[/{repository}]/index", "index"),
    ("POST", "/v2/repository[/{repository}]/models/{model}/load", "load"),
    ("POST", "/v2/repository[/{repository}]/models/{model}/unload", "unload"),
)


def _pattern(path: str) -> str:
    """The regular expression of a path, with a group for each parameter."""
    return re.sub(r"\{\w+\}", "([^/]+)", path.replace("[", "(?:").replace("]", ")?"))


#: What Triton has below these paths and this server has not.
_MISSING = re.compile(
    r"/v2/(?:logging|trace/setting|(?:system|cuda)sharedmemory/.+)"
    rf"|{_pattern('/v2/models/{model}[/versions/{version}]')}/(?:generate|generate_stream|trace/setting)"
)

_Handler = Callable[["HttpRequest", Sequence[str]], Awaitable[Answer]]


class OipRest:
    """Answers requests below /v2.

    Args:
        service: The protocol on the data plane.
        predictor: Lends its threads for large bodies.
        options: Limits.
    """

    def __init__(self, service: OipService, predictor: Predictor, options: RestOptions) -> None:
        self._service = service
        self._predictor = predictor
        self._options = options
        handlers: dict[str, _Handler] = {
            "server_metadata": self._server_metadata,
            "live": self._live,
            "ready": self._ready,
            "statistics": self._statistics,
            "model_ready": self._model_ready,
            "infer": self._infer,
            "model_config": self._model_config,
            "model_metadata": self._model_metadata,
            "index": self._index,
            "load": partial(self._control, service.load),
            "unload": partial(self._control, service.unload),
        }
        self._routes = [(method, re.compile(_pattern(path)), handlers[operation]) for method, path, operation in ROUTES]

    async def answer(self, request: HttpRequest) -> Answer:
        """Answers one request.

        Args:
            request: The request.

        Returns:
            The answer; our errors are answers too, whatever else escapes is the caller's to report.
        """
        try:
            if request.problem is not None:
                raise request.problem
            answer = await self._dispatch(request)
        except ModelyardError as exc:
            answer = _error(http_status_of(exc), exc.message)
        accepted = request.headers.get("accept-encoding", "")
        if len(answer.body) <= SMALL_BYTES:
            return compressed(answer, accepted)
        return await self._predictor.offload(lambda: compressed(answer, accepted))

    async def _dispatch(self, request: HttpRequest) -> Answer:
        for method, pattern, handler in self._routes:
            match = pattern.fullmatch(request.path)
            if match is None:
                continue
            if request.method != method:
                answer = _error(405, f"{request.method} {request.path}: method not allowed; expected {method}.")
                return Answer(status=405, body=answer.body, headers=[*answer.headers, (b"allow", method.encode())])
            return await handler(request, [unquote(group or "") for group in match.groups()])
        if _MISSING.fullmatch(request.path):
            raise UnsupportedError(
                f"modelyard does not implement {request.method} {request.path}; of Triton's extensions it has "
                f"{', '.join(EXTENSIONS)}."
            )
        return _error(404, f"Not found: {request.method} {request.path}")

    async def _server_metadata(self, _: HttpRequest, __: Sequence[str]) -> Answer:
        return _document({"name": SERVER_NAME, "version": self._service.version, "extensions": list(EXTENSIONS)})

    async def _live(self, _: HttpRequest, __: Sequence[str]) -> Answer:
        return _empty(ok=True)

    async def _ready(self, _: HttpRequest, __: Sequence[str]) -> Answer:
        return _empty(ok=self._service.ready())

    async def _model_ready(self, _: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups
        return _empty(ok=self._service.model_ready(name, version))

    async def _model_metadata(self, request: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups
        metadata = self._service.model_metadata(name, version, _signature(request))
        return _document(
            {
                "name": metadata.name,
                "versions": list(metadata.versions),
                "platform": metadata.platform,
                "inputs": _tensors(metadata.inputs),
                "outputs": _tensors(metadata.outputs),
            }
        )

    async def _model_config(self, request: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups
        return _document(config_document(self._service.model_config(name, version, _signature(request))))

    async def _statistics(self, _: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups or ("", "")
        rows = self._service.statistics(name, version)
        return _document({"model_stats": [_statistics_row(row) for row in rows]})

    async def _index(self, request: HttpRequest, groups: Sequence[str]) -> Answer:
        ready = (await self._body_object(request)).get("ready", False)
        if not isinstance(ready, bool):
            raise InvalidRequestError(f"'ready' is {quote(ready)}; expected true or false.")
        entries = self._service.index(repository=groups[0], ready=ready)
        return _document(
            [
                {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
                for entry in entries
            ]
        )

    async def _control(
        self, control: Callable[..., Awaitable[None]], request: HttpRequest, groups: Sequence[str]
    ) -> Answer:
        repository, name = groups
        parameters = (await self._body_object(request)).get("parameters", {})
        if not isinstance(parameters, dict):
            raise InvalidRequestError(f"'parameters' is {quote(parameters)}; expected an object.")
        await control(name, list(parameters), repository=repository, peer=request.client)
        return _empty(ok=True)

    async def _infer(self, request: HttpRequest, groups: Sequence[str]) -> Answer:
        name, version = groups
        length, depth = request.headers.get(_JSON_LENGTH), self._options.max_json_depth

        def read() -> InferRequest:
            body = self._plain(request)
            call = read_call(body, length, name, version, max_depth=depth)
            return replace(call, caller=request.caller, size=len(body))

        try:
            async with asyncio.timeout(self._options.timeout_s):
                call = await self._offload(request, read)
                return await self._service.infer(call, partial(answer_of, strict=self._options.strict_json))
        except TimeoutError as exc:
            raise DeadlineExceededError(
                f"No answer within {self._options.timeout_s:g} s, the server's --rest_api_timeout_in_ms."
            ) from exc

    async def _body_object(self, request: HttpRequest) -> dict[str, Any]:
        def read() -> dict[str, Any]:
            body = self._plain(request)
            return parse_object(body, max_depth=self._options.max_json_depth, strict_text=True) if body.strip() else {}

        return await self._offload(request, read)

    def _plain(self, request: HttpRequest) -> bytes:
        encoding = request.headers.get("content-encoding")
        return decompress(request.body, encoding, limit=self._options.max_body_bytes) if encoding else request.body

    async def _offload(self, request: HttpRequest, read: Callable[[], _T], *, model: str = "") -> _T:
        """Reads a small body at once, a large or compressed one on a worker thread."""
        if len(request.body) <= SMALL_BYTES and "content-encoding" not in request.headers:
            return read()
        return await self._predictor.offload(read, request.caller, model=model)


def _signature(request: HttpRequest) -> str:
    return parse_qs(request.query).get(SIGNATURE_PARAMETER, [""])[0]


def _document(value: Any) -> Answer:
    return Answer(status=200, body=json.dumps(value, ensure_ascii=False).encode(), headers=[JSON])


def _error(status: int, text: str) -> Answer:
    body = json.dumps({"error": text}, ensure_ascii=False).encode("utf-8", "replace")
    return Answer(status=status, body=body, headers=[JSON])


def _empty(*, ok: bool) -> Answer:
    return Answer(status=200 if ok else 400, body=b"", headers=[])


def _tensors(tensors: Sequence[TensorMetadata]) -> list[dict[str, Any]]:
    return [{"name": item.name, "datatype": item.datatype, "shape": list(item.shape)} for item in tensors]


def _duration(part: Duration) -> dict[str, int]:
    return {"count": part.count, "ns": part.ns}


def _statistics_row(row: VersionStatistics) -> dict[str, Any]:
    parts = {
        "success": row.success,
        "fail": row.fail,
        "queue": row.queue,
        "compute_input": row.compute_input,
        "compute_infer": row.compute_infer,
        "compute_output": row.compute_output,
        "cache_hit": Duration(),
        "cache_miss": Duration(),
    }
    return {
        "name": row.name,
        "version": str(row.version),
        "last_inference": row.last_inference_ms,
        "inference_count": row.inference_count,
        "execution_count": row.execution_count,
        "inference_stats": {name: _duration(part) for name, part in parts.items()},
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _duration(execution.compute_input),
                "compute_infer": _duration(execution.compute_infer),
                "compute_output": _duration(execution.compute_output),
            }
            for rows, execution in row.batches.items()
        ],
        "memory_usage": [],
    }
