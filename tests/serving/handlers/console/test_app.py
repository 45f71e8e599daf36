"""Who may look, and what other packages give the console to show."""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from modelyard.errors import ModelyardError, PermissionDeniedError, UnauthenticatedError
from modelyard.serving.access import Access
from modelyard.serving.config import LoadOptions, ModelConfig, ServerOptions, WatchOptions
from modelyard.serving.handlers.console import ConsoleApp
from modelyard.serving.handlers.console._models import readable
from modelyard.serving.handlers.openapi import openapi_document
from modelyard.serving.handlers.rest import RestApp, signatures_of
from modelyard.serving.metrics import Metrics, exposition
from modelyard.serving.prediction import Predictor
from modelyard.serving.repository import ModelManager
from modelyard.serving.servables import load_servable
from modelyard.serving.transports.http import Answer, HttpRequest, answer_of
from tests.support.models import publish_affine

Make = Callable[..., ConsoleApp]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=1.0)
    metrics = Metrics()
    manager = ModelManager(
        [ModelConfig(name="affine", base_path=tmp_path / "affine")],
        lambda config, version, path: load_servable(config.name, version, path, LoadOptions()),
        WatchOptions(poll_wait_s=0),
    )
    manager.start()
    assert manager.wait_until_polled(20)
    predictor = Predictor(manager, metrics, workers=1)

    async def page(accept: str) -> tuple[str, bytes]:
        return exposition(metrics.snapshot(), accept)

    def make(api: type[RestApp] = RestApp, **fields: Any) -> ConsoleApp:
        return ConsoleApp(
            api(predictor, metrics, ServerOptions(), Access(), is_starting=manager.is_starting, metrics_page=page),
            manager=manager,
            predictor=predictor,
            metrics=metrics,
            statistics=predictor.statistics,
            document=lambda _: json.dumps(
                openapi_document({name: signatures_of(manager, name) for name in manager.names}, version="1")
            ),
            version="1",
            **fields,
        )

    yield make
    predictor.close()
    manager.stop()


def ask(app: ConsoleApp, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
    request = HttpRequest(method=method, path=path, query="", headers=headers, body=body, client="127.0.0.1")
    return asyncio.run(answer_of(app, request))


def test_who_has_no_credentials_is_asked_for_them(make: Make) -> None:
    def check(request: HttpRequest) -> None:
        if "authorization" not in request.headers:
            raise UnauthenticatedError("Expected a key; send it as the password.")

    app = make(check=check)
    refused = ask(app, "/console/live")
    assert refused.status == 401
    assert dict(refused.headers)[b"www-authenticate"] == b'Basic realm="modelyard", charset="UTF-8"'
    assert b"Expected a key" in refused.body
    assert ask(app, "/console/live", authorization="Basic eDp5").status == 200
    # What is not the console's is not its to refuse.
    assert ask(app, "/v1/models/affine").status == 200


def test_a_check_holds_for_every_page_and_file(make: Make) -> None:
    def check(_: HttpRequest) -> None:
        raise PermissionDeniedError("Not for you.")

    app = make(check=check)
    for path in ("/console", "/console/models/affine", "/console/static/console.js", "/console/x"):
        assert ask(app, path).status == 403, path
    assert ask(app, "/console/models/affine", "POST").status == 403


def test_a_form_s_call_carries_its_caller_s_header_fields(make: Make) -> None:
    seen: list[HttpRequest] = []

    class Listening(RestApp):
        async def answer(self, request: HttpRequest) -> Answer:
            seen.append(request)
            return await super().answer(request)

    body = b'--b\r\nContent-Disposition: form-data; name="body"\r\n\r\n{"instances": [1.0]}\r\n--b--\r\n'
    headers = {"content-type": "multipart/form-data; boundary=b", "authorization": "Basic eDp5"}
    page = ask(make(Listening), "/console/models/affine", "POST", body, **headers)
    assert page.status == 200
    assert b"3.0" in page.body
    (request,) = seen
    assert (request.method, request.path) == ("POST", "/v1/models/affine:predict")
    assert request.headers == {"authorization": "Basic eDp5"}
    assert request.client == "127.0.0.1"


def test_rows_about_canary_and_shadow_are_shown_and_escaped(make: Make) -> None:
    def traffic(model: str) -> Sequence[dict[str, str]]:
        return [{"Version": "2", "Role": f"canary of {model}", "Share": "5 %", "State": "<b>rolled back</b>: errors"}]

    page = ask(make(traffic=traffic), "/console/models/affine").body.decode()
    assert "Canary and shadow" in page
    assert "canary of affine" in page
    assert "<b>rolled" not in page
    assert "<b>rolled back</b>: errors" in html.unescape(page)
    assert "Canary and shadow" not in ask(make(), "/console/models/affine").body.decode()


def test_what_fails_by_our_fault_says_no_more_than_an_id(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: HttpRequest) -> None:
        raise RuntimeError("a secret")

    answer = ask(make(check=broken), "/console")
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert "a secret" in caplog.text


def test_a_body_that_did_not_come_whole_is_refused(make: Make) -> None:
    app = make()
    problem: ModelyardError = app.limits.too_large()
    request = HttpRequest(
        method="POST", path="/console/models/affine", query="", headers={}, body=b"", client=None, problem=problem
    )
    assert asyncio.run(app.answer(request)).status == 413


@pytest.mark.parametrize(
    "value",
    [
        {"instances": [[[[0.0]] * 30] * 20]},
        {"anyOf": [{"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number"}}}}] * 3},
        {"a": 1, "b": {"c": [1, 2, {"d": []}], "e": "ü"}},
        [],
        {},
        [[], [1], {}],
        "text",
        None,
    ],
)
def test_readable_text_is_the_same_json(value: Any) -> None:
    assert json.loads(readable(value)) == value


def test_rows_of_a_tensor_are_lines() -> None:
    row = ", ".join(["[0.125]"] * 20)
    value = {"signature_name": "short", "inputs": [[[0.125]] * 20] * 2}
    assert readable(value) == f'{{\n  "signature_name": "short",\n  "inputs": [[{row}],\n   [{row}]]\n}}'
