"""An object store that stalls, lies about lengths, damages what it sends, or answers 503."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from benchmarks.torture.cases import Result, Scratch, case, expect
from benchmarks.torture.repository import served
from modelyard.artifact import RemotePath
from tests.support.admin import ask, available, config_text, model_text
from tests.support.models import publish_affine
from tests.support.object_store import s3
from tests.support.server import serve
from tests.support.waiting import until


class _Store(ThreadingHTTPServer):
    """Passes everything on to a store, and answers for it while it misbehaves."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.mode = "well"
        self.asked = 0
        self.release = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Store

    def do_GET(self) -> None:
        store, mode = self.server, self.server.mode
        store.asked += 1
        if mode == "stalls":
            store.release.wait(120)
        if mode == "is away":
            self._reply(503, [], b"")
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        upstream = http.client.HTTPConnection(urlsplit(store.upstream).netloc, timeout=60)
        with contextlib.closing(upstream):
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            upstream.request(self.command, self.path, body, headers)
            response = upstream.getresponse()
            content, found = response.read(), response.getheaders()
        is_file = self.command == "GET" and self.path.endswith(".onnx")
        if is_file and mode == "damages":
            content = content[:-1] + bytes([content[-1] ^ 1])
        self._reply(response.status, found, content, cut=is_file and mode == "lies about lengths")

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _reply(self, status: int, headers: list[tuple[str, str]], content: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        length = dict((name.lower(), value) for name, value in headers).get("content-length", str(len(content)))
        self.send_header("content-length", length if self.command == "HEAD" else str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle_one_request(self) -> None:
        with contextlib.suppress(OSError):
            super().handle_one_request()


@contextlib.contextmanager
def _store(upstream: str) -> Iterator[_Store]:
    store = _Store(upstream)
    thread = threading.Thread(target=store.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.release.set()
        store.shutdown()
        store.server_close()


@case("repository", "an object store that misbehaves, beside a model on disk", own=True, short=False)
def stores(scratch: Scratch) -> Result:
    """New versions come while it does: the last good one serves, the model on disk goes on, and all recovers."""
    longest = 0.0
    with s3("models") as environment, _store(environment["AWS_ENDPOINT_URL"]) as store:
        remote, local = RemotePath("s3://models/m"), scratch.folder / "local"
        publish_affine(remote, slope=2.0, intercept=1.0)
        publish_affine(local, slope=2.0, intercept=1.0)
        entries = [model_text("local", local), model_text("m", "s3://models/m")]
        config = scratch.folder / "config"
        config.write_text(config_text(*entries))
        with serve(
            None, model="m", log_dir=scratch.folder, flags=[
                f"--model_config_file={config}", f"--transport={scratch.transport}",
                "--load_retry_interval_micros=500000",
            ], env={**environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{store.server_port}"},
        ) as server:  # fmt: skip
            for mode in ("stalls", "is away", "lies about lengths", "damages"):
                store.mode, store.asked = mode, 0
                store.release.clear()
                newer = publish_affine(remote, slope=2.0, intercept=1.0).number
                beside = publish_affine(local, slope=2.0, intercept=1.0).number
                until(lambda: store.asked, 30, f"{mode}: the store is asked")
                served(server, "local", beside, f"while the store {mode}")
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    answers = [ask(server, "m"), ask(server, "local")]
                    expect(answers == [3.0, 3.0], f"while the store {mode}: {answers}")
                expect(newer not in available(server, "m"), f"version {newer} was served while the store {mode}")
                started = time.monotonic()
                store.mode = "well"
                store.release.set()
                served(server, "m", newer, f"after the store {mode}", 90)
                longest = max(longest, time.monotonic() - started)
    return Result(inputs=4, text="the last good version served meanwhile", figures={"recovered_after_s": longest})
