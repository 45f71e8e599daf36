"""Amazon SageMaker's two URLs, in front of the REST API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote

from modelyard.serving.transports.http import Answer, Application, HttpRequest

_READY = "/v2/health/ready"
_ATTRIBUTES = "x-amzn-sagemaker-custom-attributes"


class SageMakerApp:
    """Answers ``/ping`` and ``/invocations`` with the REST API's own answers.

    ``GET /ping`` is the readiness of the whole server, and ``POST /invocations`` a call of one model with TensorFlow
    Serving's JSON. Which model, version and method is said in the header ``X-Amzn-SageMaker-Custom-Attributes``, spelt
    as for SageMaker's own TensorFlow container: ``tfs-model-name=fashion, tfs-model-version=3,tfs-method=classify``.
    Every other path passes through.

    Source: Amazon SageMaker developer guide, "Custom inference code with hosting services".
    """

    def __init__(self, app: Application, *, model: str) -> None:
        self._app, self.limits = app, app.limits
        self._model = model

    async def answer(self, request: HttpRequest) -> Answer:
        path = self._path(request.path, request.headers)
        answer = await self._app.answer(request if path == request.path else replace(request, path=path))
        # The guide asks for an empty body.
        return Answer(status=200, body=b"", headers=[]) if request.path == "/ping" and answer.status == 200 else answer

    def _path(self, path: str, headers: Mapping[str, str]) -> str:
        if path == "/ping":
            return _READY
        return self._target(headers) if path == "/invocations" else path

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
