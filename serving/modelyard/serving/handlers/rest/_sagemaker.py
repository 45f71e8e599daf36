"""Amazon SageMaker's two URLs, in front of the REST API."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote

from modelyard.serving.handlers.rest._sagemaker_bodies import as_instances
from modelyard.serving.transports.http import Answer, Application, HttpRequest

_READY = "/v2/health/ready"
_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"
_LONG = 1 << 16
#: Of which SageMaker's container answers in one line.
_ONE_LINE = frozenset({"application/json", "application/jsonlines"})


class SageMakerApp:
    """Answers ``/ping`` and ``/invocations`` with the REST API's own answers.

    ``GET /ping`` is the readiness of the whole server, and ``POST /invocations`` a call of one model with TensorFlow
    Serving's JSON. Which model, version and method is said in the header ``X-Amzn-SageMaker-Custom-Attributes``, spelt
    as for SageMaker's own TensorFlow container: ``tfs-model-name=fashion, tfs-model-version=3,tfs-method=classify``.
    Rows without names, JSON lines and CSV are taken as there. Every other path passes through.

    Source: Amazon SageMaker developer guide, "Custom inference code with hosting services".
    """

    def __init__(self, app: Application, *, model: str) -> None:
        self._app, self.limits = app, app.limits
        self._model = model

    async def answer(self, request: HttpRequest) -> Answer:
        if request.path == "/invocations":
            return await self._invoke(request)
        if request.path != "/ping":
            return await self._app.answer(request)
        answer = await self._app.answer(replace(request, path=_READY))
        # The guide asks for an empty body.
        return Answer(status=200, body=b"", headers=[]) if answer.status == 200 else answer

    async def _invoke(self, request: HttpRequest) -> Answer:
        body = request.body
        # A body that is compressed, or did not come whole, is the router's to read.
        if request.problem is None and not request.headers.get("content-encoding"):
            kind = request.headers.get("content-type", "")
            # A long one holds up nobody else.
            long = len(body) > _LONG
            body = await asyncio.to_thread(as_instances, body, kind) if long else as_instances(body, kind)
        answer = await self._app.answer(replace(request, path=self._target(request.headers), body=body))
        accepted = [kind.strip() for kind in request.headers.get("accept", "").split(",")]
        if answer.status != 200 or not _ONE_LINE & set(accepted):
            return answer
        # Batch transform joins answers by lines.
        headers = [(name, value) for name, value in answer.headers if name.lower() != b"content-type"]
        return Answer(
            status=200,
            body=answer.body.replace(b"\n", b""),
            headers=[*headers, (b"content-type", next(kind for kind in accepted if kind in _ONE_LINE).encode())],
        )

    def _target(self, headers: Mapping[str, str]) -> str:
        attributes = _attributes(headers.get(_ATTRIBUTES, ""))
        name = attributes.get("tfs-model-name", self._model)
        version = attributes.get("tfs-model-version")
        method = attributes.get("tfs-method", "predict")
        # The router is the judge of all three: what makes no sense is its 400 or 404.
        between = "" if version is None else f"/versions/{quote(version, safe='')}"
        return f"/v1/models/{quote(name, safe='')}{between}:{quote(method, safe='')}"


def _attributes(text: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in text.split(","))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
