"""Amazon SageMaker's two URLs, in front of the REST API."""

from __future__ import annotations

from urllib.parse import quote

from modelyard.serving.rest._app import AsgiApp, Receive, Scope, Send

_READY = "/v2/health/ready"
_ATTRIBUTES = b"x-amzn-sagemaker-custom-attributes"


class SageMakerApp:
    """Answers ``/ping`` and ``/invocations`` with the REST API's own answers.

    ``GET /ping`` is the readiness of the whole server, and ``POST /invocations``
    a call of one model with TensorFlow Serving's JSON. Which model, version and
    method is said in the header ``X-Amzn-SageMaker-Custom-Attributes``, spelt as
    for SageMaker's own TensorFlow container: ``tfs-model-name=fashion,
    tfs-model-version=3,tfs-method=classify``. Every other path passes through.

    Source: Amazon SageMaker developer guide, "Custom inference code with hosting services".

    Args:
        app: The REST API.
        model: The model for calls that name none.
    """

    def __init__(self, app: AsgiApp, *, model: str) -> None:
        self._app = app
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] == "http" and scope["path"] in ("/ping", "/invocations"):
            path = _READY if scope["path"] == "/ping" else self._target(scope)
            # A new mapping: the server keeps the scope for its own log.
            scope = {**scope, "path": path, "raw_path": path.encode("ascii")}
        await self._app(scope, receive, send)

    def _target(self, scope: Scope) -> str:
        attributes = _attributes(scope)
        name = attributes.get("tfs-model-name", self._model)
        version = attributes.get("tfs-model-version")
        method = attributes.get("tfs-method", "predict")
        # The router is the judge of all three: what makes no sense is its 400 or 404.
        between = "" if version is None else f"/versions/{quote(version, safe='')}"
        return f"/v1/models/{quote(name, safe='')}{between}:{quote(method, safe='')}"


def _attributes(scope: Scope) -> dict[str, str]:
    text = ",".join(value.decode("latin-1") for name, value in scope["headers"] if name == _ATTRIBUTES)
    pairs = (item.partition("=") for item in text.split(","))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
