"""The console over HTTP: what its pages say, what its forms call, and what protects whoever looks at them."""

from __future__ import annotations

import html
import json
import os
import re
import time
import urllib.request
from pathlib import Path

import httpx
import pytest

from modelyard.training.data import load_fashion_mnist
from tests.support.models import publish_affine
from tests.support.pages import text_of
from tests.support.server import RunningServer, free_port, run_to_end, serve, without

FASHION, AFFINE, WORDS = (f"/console/models/{name}" for name in ("fashion", "affine", "words"))
PAGES = ("/console", "/console/", "/console/live", "/console/api", FASHION, AFFINE, WORDS)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


def get(server: RunningServer, path: str) -> httpx.Response:
    return httpx.get(server.rest_url + path, trust_env=False)


def send(server: RunningServer, path: str, fields: dict[str, str], *files: tuple[str, bytes], **headers: str):
    parts = [("files", file) for file in files] or [("files", ("", b""))]
    return httpx.post(server.rest_url + path, data=fields, files=parts, headers=headers, trust_env=False)


def png(index: int) -> bytes:
    from io import BytesIO

    from PIL import Image

    buffer = BytesIO()
    Image.fromarray(load_fashion_mnist().test_images[index]).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("path", [*PAGES, "/console/nothing"])
def test_pages_bring_nothing_foreign_and_no_inline_script(console_server: RunningServer, path: str) -> None:
    page = get(console_server, path)
    assert page.status_code == (404 if path.endswith("nothing") else 200)
    assert page.headers["content-security-policy"] == POLICY
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"
    assert re.findall(r"<script[^>]*>(?!</script>)|<style|\son\w+=|\sstyle=|https?://", page.text) == []
    for place in re.findall(r'(?:src|href|action)="([^"#]+)', page.text):
        if not place.startswith("data:"):
            target = httpx.URL(console_server.rest_url + path).join(html.unescape(place))
            assert httpx.get(target, trust_env=False).status_code == 200, place


def test_the_first_page_shows_states_labels_and_why_a_version_failed(console_server: RunningServer) -> None:
    text = text_of(get(console_server, "/console").text)
    assert re.search(r"affine ready .*3 END .* Version 3 failed: onnxruntime cannot load .*Protobuf parsing", text)
    assert re.search(r"2 default AVAILABLE canary onnxruntime [\d.]+ kB 2026-01-01", text)
    assert re.search(r"1 AVAILABLE stable onnxruntime", text)


def test_a_form_is_prefilled_with_a_request_that_works(console_server: RunningServer) -> None:
    for path, name in ((AFFINE, "serving_default"), (FASHION, "serving_default"), (WORDS, "serving_default")):
        page = get(console_server, path).text
        part = page[page.index(f">{name} <") :]
        (body, *_) = map(html.unescape, re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", part, re.DOTALL))
        status, answer = console_server.post(path.replace("/console", "/v1") + ":predict", body.encode())
        assert status == 200, answer
        answered = send(console_server, path, {"signature": name, "body": body})
        assert answered.status_code == 200
        assert "200 after" in text_of(answered.text)


@pytest.mark.parametrize(
    ("where", "y"), [("", 7.0), ("versions/1", 5.0), ("labels/canary", 7.0), ("labels/stable", 5.0)]
)
def test_a_form_calls_the_version_that_it_names(console_server: RunningServer, where: str, y: float) -> None:
    fields = {"signature": "serving_default", "where": where, "body": '{"instances": [2.0, 0.0]}'}
    text = text_of(send(console_server, AFFINE, fields).text)
    assert f"Example 1 Output Value y {y}" in text
    assert "Example 2 Output Value y 1.0" in text
    assert f"{console_server.rest_url.split('//')[0]}" not in text
    between = f"/{where}" if where else ""
    assert f"URL/v1/models/affine{between}:predict" in text


def test_images_are_answered_with_labels_and_probabilities(console_server: RunningServer) -> None:
    page = send(console_server, FASHION, {"signature": "image_bytes"}, ("a.png", png(1)), ("b.png", png(2)))
    text = text_of(page.text)
    assert re.search(r"Example 1, a.png .*label Pullover .*Class Bar Value Pullover 99\.\d% Coat 0\.\d%", text)
    assert re.search(r"Example 2, b.png .*label Trouser", text)
    assert page.text.count('<img src="data:image/png;base64,') == 2


@pytest.mark.parametrize(
    ("body", "status", "complaint"),
    [
        ("{", 400, "JSON Parse error"),
        ('{"instances": ["x"]}', 400, "is not of expected type: float"),
        ('{"signature_name": "none", "instances": [1]}', 400, '"none" not found in signature def'),
        ('{"instances": [1], "signature_name": "<script>alert(1)</script>"}', 400, "<script>alert(1)</script>"),
    ],
)
def test_a_refusal_is_shown_and_quoted(console_server: RunningServer, body: str, status: int, complaint: str) -> None:
    page = send(console_server, AFFINE, {"signature": "serving_default", "body": body})
    assert page.status_code == 200
    assert f"{status} after" in text_of(page.text)
    assert complaint in html.unescape(page.text)
    assert "<script>alert" not in page.text


def test_what_no_form_of_the_console_sends_is_refused(console_server: RunningServer) -> None:
    fields = {"signature": "serving_default", "body": '{"instances": [1.0]}'}
    refused = {
        "another site": send(console_server, AFFINE, fields, **{"sec-fetch-site": "cross-site"}),
        "place": send(console_server, AFFINE, {**fields, "where": "../../v2/repository"}),
        "file": send(console_server, AFFINE, fields, ("a.png", png(1))),
        "expected multipart/form-data": httpx.post(console_server.rest_url + AFFINE, data=fields, trust_env=False),
        "read by GET": httpx.post(console_server.rest_url + "/console/live", trust_env=False),
        "at most 33554432": send(console_server, FASHION, {"signature": "image_bytes"}, ("a", bytes(33 << 20))),
    }
    assert {name: page.status_code for name, page in refused.items()} == {
        name: 413 if "most" in name else 400 for name in refused
    }
    assert "sent by another site" in refused.pop("another site").text
    assert "expected versions/N" in html.unescape(refused.pop("place").text)
    assert "takes no images" in refused.pop("file").text
    assert [name for name, page in refused.items() if name not in page.text] == []


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("/console/models/none", "There is no model 'none' here."),
        ("/console/models/%3Cscript%3E", "There is no model '<script>' here."),
        ("/console/models/affine/versions/1/report", "has no export report"),
        ("/console/models/affine/versions/9/report", "has no export report"),
        ("/console/models/..%2Faffine/versions/3/report", "There is no model"),
        ("/console/static/..%2F_app.py", "There is no page"),
    ],
)
def test_what_is_not_there(console_server: RunningServer, path: str, complaint: str) -> None:
    page = get(console_server, path)
    assert page.status_code == 404
    assert complaint in html.unescape(page.text)
    assert "<script>'" not in page.text


def test_a_report_is_served_in_a_sandbox(console_server: RunningServer) -> None:
    page = get(console_server, "/console/models/affine/versions/3/report")
    assert page.status_code == 200
    assert "<h1>Checked</h1>" in page.text
    policy = page.headers["content-security-policy"].split("; ")
    # A sandbox that allows nothing: no script, no form, and an origin of its own.
    assert "sandbox" in policy
    assert "default-src 'none'" in policy
    assert not any(each.startswith("script-src") for each in policy)


def test_a_report_is_a_file_of_its_version(tmp_path: Path) -> None:
    """A version is shown that was refused, and whoever put it there may have put a link in the report's place."""
    publish_affine(tmp_path / "m", slope=1.0, intercept=0.0)
    (tmp_path / "secret").write_text("secret words")
    reports = {2: tmp_path / "secret", 3: Path("/proc/self/environ"), 4: Path("a" * 300)}
    for number, target in reports.items():
        (tmp_path / "m" / str(number)).mkdir()
        (tmp_path / "m" / str(number) / "report.html").symlink_to(target)
    (tmp_path / "m" / "5").mkdir()
    os.mkfifo(tmp_path / "m" / "5" / "report.html")
    with serve(tmp_path / "m", model="m", log_dir=tmp_path, flags=["--console"], wait=False) as server:
        server.wait_available(1)
        page = get(server, "/console")
        assert page.status_code == 200 and "/report" not in page.text
        for number in (*reports, 5):
            page = get(server, f"/console/models/m/versions/{number}/report")
            assert page.status_code == 404 and "has no export report" in page.text


def test_live_numbers_are_those_of_the_requests(console_server: RunningServer) -> None:
    def row(page: str) -> list[str]:
        cells = re.search(r'<tr><th scope="row">words</th>(.*?)</tr>', page)
        return re.findall(r">([^<]*)</td>", cells[1]) if cells else ["1", *["–"] * 6, "0", "0"]

    # Counters are read once a second at most.
    time.sleep(1.1)
    before = row(get(console_server, "/console/live").text)
    body = json.dumps({"instances": [{"ids": [1, 2], "word": "a"}, {"ids": [0, 1], "word": "b"}]}).encode()
    for _ in range(20):
        assert console_server.post("/v1/models/words:predict", body)[0] == 200
    assert console_server.post("/v1/models/words:predict", b"{}")[0] == 400
    time.sleep(1.1)
    page = get(console_server, "/console/live").text
    after = row(page)
    assert int(after[-2]) - int(before[-2]) == 20
    assert 1 < float(after[3]) <= 2, "rows per batch, with those of other tests a moment ago"
    assert 0 < float(after[6]) < float(after[4]), "the model's part of the time"
    assert re.search(r"words INVALID_ARGUMENT [\d.]+ \d+", text_of(page))
    assert re.search(r"Median latency [\d.]+ ms 90th percentile [\d.]+ ms", text_of(page))
    assert 'aria-label="Requests per second: answered between' in page


def test_a_replaced_version_makes_no_rate_negative(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=1.0)
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=["--console"]) as server:
        get(server, "/console/live")
        for _ in range(50):
            assert server.post("/v1/models/affine:predict", b'{"instances": [1.0]}')[0] == 200
        time.sleep(1.1)
        get(server, "/console/live")
        publish_affine(tmp_path / "affine", slope=3.0, intercept=1.0)
        gone = "/v1/models/affine/versions/1"
        server.wait_until(lambda: '"AVAILABLE"' not in server.get(gone)[1], 30, "version 1 replaced")
        server.wait_until(lambda: '"END"' in server.get(gone)[1], 30, "version 1 unloaded")
        time.sleep(1.1)
        page = get(server, "/console/live").text
        rate = re.search(r"Answered per second ([-\d.]+)", text_of(page))
        assert rate is not None and float(rate[1]) >= 0
        assert 'aria-label="Requests per second: answered between 0 and' in page


def test_a_version_that_cannot_be_read_costs_no_page(tmp_path: Path) -> None:
    publish_affine(tmp_path / "affine", slope=2.0, intercept=1.0)
    (tmp_path / "affine" / "2" / "manifest.json").mkdir(parents=True)
    with serve(tmp_path / "affine", model="affine", log_dir=tmp_path, flags=["--console"]) as server:
        for page in ("/console", AFFINE):
            assert get(server, page).status_code == 200
        assert "manifest.json cannot be read" in text_of(get(server, AFFINE).text)


def test_the_api_page_has_every_operation_of_the_document(console_server: RunningServer) -> None:
    document = json.loads(console_server.get("/openapi.json")[1])
    page = get(console_server, "/console/api").text
    names = {operation["operationId"] for methods in document["paths"].values() for operation in methods.values()}
    assert set(re.findall(r'<details class="operation" id="([^"]+)"', page)) == names | {
        f"schema-{name}" for name in document["components"]["schemas"]
    }


def test_the_console_is_off_unless_it_is_asked_for(tmp_path: Path, console_server: RunningServer) -> None:
    folder = console_server.log.parent / "console"
    with serve(folder / "words", model="words", log_dir=tmp_path) as server:
        status, body = server.get("/console")
        assert (status, "start the server with --console" in body) == (404, True)
        assert server.get("/console/live")[0] == 404
        assert server.get("/openapi.json")[0] == 200


def test_other_methods_and_the_api_pass_through(console_server: RunningServer) -> None:
    request = urllib.request.Request(f"{console_server.rest_url}/console", method="DELETE")
    assert console_server.request(request)[0] == 400
    assert console_server.get("/v1/models/affine")[0] == 200
    assert console_server.get("/consoles")[0] == 404


def test_what_the_console_needs_is_named(tmp_path: Path, console_server: RunningServer) -> None:
    flags = [f"--model_base_path={console_server.log.parent}/console/words", "--console", "--port=0"]
    code, text = run_to_end(*flags, "--rest_api_port=0", "--grpc_socket_path=/tmp/x")
    assert (code, "set --rest_api_port=8501, too" in text) == (2, True), text
    code, text = run_to_end(*flags, f"--rest_api_port={free_port()}", env=without(tmp_path / "env", "jinja2"))
    assert (code, "--console needs the package 'jinja2'" in text) == (1, True), text
    assert "pip install 'modelyard[serving]'" in text
