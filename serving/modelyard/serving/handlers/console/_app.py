"""The console in front of the REST API: which page a path is, and the headers that keep pages safe."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from urllib.parse import unquote

from modelyard.errors import (
    InvalidRequestError,
    ModelNotFoundError,
    ModelyardError,
    RequestTooLargeError,
)
from modelyard.lazy import needs_extra
from modelyard.serving.handlers.console._forms import read_form
from modelyard.serving.handlers.console._live import Live
from modelyard.serving.handlers.console._models import Traffic, model_view, models_view, readable, report_of
from modelyard.serving.handlers.console._trial import Call, Trial, call_of, trial_of
from modelyard.serving.metrics import Metrics, ModelStatistics
from modelyard.serving.prediction import Predictor
from modelyard.serving.repository import ModelManager
from modelyard.serving.transports.http import Answer, Application, HttpRequest
from modelyard.wire import http_status_of

#: Asked before every page: raises an error for a caller who may not see it. UnauthenticatedError makes a browser ask
#: for a name and a password (HTTP basic), which it then sends along.
Check = Callable[[HttpRequest], None]
#: Of a request, tells of each model whether its caller may administer it.
Administered = Callable[[HttpRequest], Callable[[str], bool]]

_ROOT = "/console"
_MODEL = re.compile(r"/console/models/([^/]+)")
_REPORT = re.compile(r"/console/models/([^/]+)/versions/(\d{1,19})/report")
_STATIC: Mapping[str, bytes] = {
    "console.css": b"text/css; charset=utf-8",
    "console.js": b"text/javascript; charset=utf-8",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
#: An export report is part of a model: its author may not run a script here, nor see what the console shows.
_REPORT_POLICY = (
    b"sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    b"frame-ancestors 'none'; base-uri 'none'"
)
_SAFE: list[tuple[bytes, bytes]] = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_HTML = (b"content-type", b"text/html; charset=utf-8")
#: A form to try a signature holds some images, and no load test.
_MAX_FORM_BYTES = 32 << 20


class ConsoleApp:
    """Answers everything below ``/console`` with pages, and passes the rest on.

    Pages read; nothing is changed by them. A form calls a signature through the application behind, with the
    headers of the caller, so that it may do what its caller may.
    """

    def __init__(
        self,
        app: Application,
        *,
        manager: ModelManager,
        predictor: Predictor,
        metrics: Metrics,
        statistics: ModelStatistics,
        document: Callable[[HttpRequest], str],
        version: str,
        check: Check | None = None,
        administered: Administered = lambda _: lambda _: False,
        traffic: Traffic | None = None,
    ) -> None:
        self._app, self.limits = app, app.limits
        self._manager = manager
        self._predictor = predictor
        self._document = document
        self._check = check
        self._administered = administered
        self._traffic = traffic
        self._live = Live(manager, metrics, statistics)
        self._static = {name: resources.files(__package__).joinpath("static", name).read_bytes() for name in _STATIC}
        self._render = _renderer(
            version=version, stamp=hashlib.sha256(b"".join(self._static.values())).hexdigest()[:12]
        )

    async def answer(self, request: HttpRequest) -> Answer:
        path = request.path
        if not path.startswith(_ROOT) or path[len(_ROOT) :][:1] not in ("", "/"):
            return await self._app.answer(request)
        try:
            if self._check is not None:
                self._check(request)
            return await self._page(request)
        except ModelyardError as exc:
            return await self._error(request, exc)

    async def _page(self, request: HttpRequest) -> Answer:
        if request.problem is not None:
            raise request.problem
        path = request.path.rstrip("/")
        model = _MODEL.fullmatch(path)
        if request.method == "POST" and model is not None:
            return await self._try(request, unquote(model[1]))
        if request.method != "GET":
            raise InvalidRequestError(f"Malformed request: {request.method} {request.path}; pages are read by GET.")
        name = path.removeprefix(f"{_ROOT}/static/")
        if name in self._static:
            headers = [(b"content-type", _STATIC[name]), (b"cache-control", b"max-age=86400"), *_SAFE]
            return Answer(status=200, body=self._static[name], headers=headers)
        report = _REPORT.fullmatch(path)
        if report is not None:
            body = await self._predictor.offload(lambda: report_of(self._manager, unquote(report[1]), int(report[2])))
            headers = [_HTML, (b"content-security-policy", _REPORT_POLICY), (b"cache-control", b"no-store"), *_SAFE]
            return Answer(status=200, body=body, headers=headers)
        if path == _ROOT:
            return await self._html(
                request, "models.html", lambda: {"view": models_view(self._manager, self._administered(request))}
            )
        if path == f"{_ROOT}/live":
            return await self._html(request, "live.html", lambda: {"view": self._live.look()})
        if path == f"{_ROOT}/api":
            return await self._html(request, "api.html", lambda: {"document": json.loads(self._document(request))})
        if model is not None:
            return await self._model(request, unquote(model[1]))
        raise ModelNotFoundError(f"There is no page {request.path}; the first one is {_ROOT}.")

    async def _model(self, request: HttpRequest, name: str, trial: Trial | None = None) -> Answer:
        def values() -> dict[str, object]:
            place = self._administered(request)(name)
            return {"view": model_view(self._manager, name, self._traffic, place=place), "trial": trial}

        return await self._html(request, "model.html", values)

    async def _try(self, request: HttpRequest, name: str) -> Answer:
        # It may not spend this user's quota.
        if request.is_foreign:
            raise InvalidRequestError(
                "This form was sent by another site; open the console and send it from there. A proxy in front of the "
                "server has to pass the header field Host on."
            )
        if len(request.body) > _MAX_FORM_BYTES:
            raise RequestTooLargeError(
                f"The form has {len(request.body)} bytes; expected at most {_MAX_FORM_BYTES}. Call the REST API itself "
                "for larger requests."
            )

        def read() -> Call:
            form = read_form(request.body, request.headers.get("content-type", ""))
            return call_of(self._manager, name, form)

        call = await self._predictor.offload(read)
        headers = {
            key: value
            for key, value in request.headers.items()
            if key not in ("content-type", "content-encoding", "accept-encoding")
        }
        inner = replace(request, path=call.path, query="", body=call.body, headers=headers)
        started = time.perf_counter()
        answer = await self._app.answer(inner)
        seconds = time.perf_counter() - started
        trial = await self._predictor.offload(lambda: trial_of(call, answer, seconds))
        return await self._model(request, name, trial)

    async def _html(
        self, request: HttpRequest, template: str, values: Callable[[], dict[str, object]], *, status: int = 200
    ) -> Answer:
        # Relative, so that the console works behind a proxy that serves it below another path.
        up = "../" * (request.path.count("/") - 1)
        # Without the caller: pages are made beside what waits for models, and read when too much does.
        text = await self._predictor.offload(
            lambda: self._render(template, {"up": up, "path": request.path.rstrip("/"), **values()})
        )
        headers = [_HTML, (b"content-security-policy", _POLICY), (b"cache-control", b"no-store"), *_SAFE]
        return Answer(status=status, body=text.encode("utf-8", "replace"), headers=headers)

    async def _error(self, request: HttpRequest, error: ModelyardError) -> Answer:
        status = http_status_of(error)
        answer = await self._html(
            request, "error.html", lambda: {"status": status, "message": error.message}, status=status
        )
        if status == 401:
            answer.headers.append((b"www-authenticate", b'Basic realm="modelyard", charset="UTF-8"'))
        return answer


def _renderer(**common: str) -> Callable[[str, Mapping[str, object]], str]:
    """Renders a template, by its name, with values of its own."""
    with needs_extra("serving", "jinja2", purpose="--console"):
        import jinja2
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(str(__package__)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(common, dump=readable)
    return lambda name, values: environment.get_template(name).render(values)
