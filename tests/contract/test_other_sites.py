"""A browser that once got a name and a password for this server sends them along for pages of other sites, too."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import httpx
import pytest

from modelyard.serving.transports.http import HttpRequest
from tests.support.access import bearer, entry, key_of, send
from tests.support.models import publish_affine
from tests.support.pages import text_of
from tests.support.server import RunningServer, serve

BASIC = {"authorization": "Basic " + base64.b64encode(f"anybody:{key_of('operator')}".encode()).decode()}
LOAD = "POST /v2/repository/models/affine/load"
FORM = {"signature": (None, "serving_default"), "body": (None, '{"instances": [1.0]}')}


@pytest.fixture(scope="module", params=["native", "python"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("sites")
    publish_affine(folder / "models" / "affine", slope=2.0, intercept=1.0)
    file = folder / "access.toml"
    file.write_text(entry("operator", "admin", "predict", "metadata", "metrics"))
    flags = [
        f"--access_file={file}", "--console", "--model_control_mode=explicit", f"--transport={request.param}",
        f"--model_repository={folder / 'models'}",
    ]  # fmt: skip
    with serve(None, model="affine", log_dir=folder, flags=flags, wait=False, admin=False) as running:
        running.wait_until(lambda: send(running, "GET /v2/health/live")[0] == 200, 60, "live")
        assert send(running, LOAD, headers=BASIC, body=b"")[0] == 200
        yield running


def senders(server: RunningServer) -> dict[str, tuple[dict[str, str], bool]]:
    """What a browser says of the page that sent a request, and whether that was one of this server."""
    own = server.rest_url.replace("localhost", "127.0.0.1")
    return {
        "no browser": ({}, True),
        "own page": ({"origin": own, "sec-fetch-site": "same-origin"}, True),
        "own page over plain http": ({"origin": own, "host": own.partition("://")[2]}, True),
        "own page, whose port a proxy wrote down": ({"origin": "http://a.example", "host": "a.example:80"}, True),
        "own page, the same with TLS": ({"origin": "https://a.example", "host": "a.example:443"}, True),
        "another port of the host": ({"origin": "http://a.example", "host": "a.example:443"}, False),
        # The proxy has taken another name for it.
        "own page behind a proxy": ({"origin": "https://models.example", "sec-fetch-site": "same-origin"}, True),
        "other site": ({"origin": "https://evil.example", "sec-fetch-site": "cross-site"}, False),
        "other host of the site": ({"origin": "https://b.models.example", "sec-fetch-site": "same-site"}, False),
        "other site over plain http": ({"origin": "http://evil.example"}, False),
        "other site, without Origin": ({"sec-fetch-site": "cross-site"}, False),
        "other port": ({"origin": "http://127.0.0.1:1"}, False),
        "sandbox": ({"origin": "null"}, False),
    }


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("POST /v2/logging", b"{}"),
        (LOAD, b""),
        ("POST /v1/models/affine:predict", b'{"instances": [1.0]}'),
        ("POST /v2/models/affine/infer", b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}'),
    ],
)
def test_a_page_of_another_site_has_no_use_of_the_browsers_password(
    server: RunningServer, route: str, body: bytes
) -> None:
    for name, (headers, own) in senders(server).items():
        # As a form may send it, without asking the server first.
        status, text, _ = send(server, route, headers={**BASIC, **headers, "content-type": "text/plain"}, body=body)
        assert status == (200 if own else 401), (name, text)
        # No browser sends these on its own.
        for key in (bearer(key_of("operator")), {"x-api-key": key_of("operator")}):
            assert send(server, route, headers={**key, **headers}, body=body)[0] == 200, name


def test_the_consoles_forms_are_those_of_its_own_pages(server: RunningServer) -> None:
    url = server.rest_url + "/console/models/affine"
    for name, (headers, own) in senders(server).items():
        page = httpx.post(url, files=FORM, headers={**BASIC, **headers}, trust_env=False)
        assert ("200 after" in text_of(page.text)) == own, (name, text_of(page.text))
        # A link from another site is followed.
        assert httpx.get(url, headers={**BASIC, **headers}, trust_env=False).status_code == 200, name


def test_nor_of_its_certificate() -> None:
    def shown(method: str, **headers: str) -> bytes | None:
        request = HttpRequest(
            method=method, path="/", query="", headers={"host": "a:1", **headers}, body=b"", client="b",
            certificate=b"der",
        )  # fmt: skip
        return request.credentials.certificate

    assert shown("POST") == shown("POST", origin="http://a:1") == shown("GET", origin="http://c") == b"der"
    assert shown("POST", origin="http://c") is None
