"""Receives spans over OTLP, by HTTP, as a collector does."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support.waiting import until


class Collector:
    """Spans that came, each with the name of its service."""

    def __init__(self) -> None:
        self.port = 0
        self._lock = threading.Lock()
        self._spans: list[tuple[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, message: ExportTraceServiceRequest) -> None:
        with self._lock:
            for resource in message.resource_spans:
                names = [each.value.string_value for each in resource.resource.attributes if each.key == "service.name"]
                self._spans += [(names[0], span) for scope in resource.scope_spans for span in scope.spans]

    def spans(self, wanted: Callable[[str, Any], bool], count: int, timeout_s: float = 30.0) -> list[Any]:
        """Spans that a condition holds for, once there are so many."""

        def found() -> list[Any]:
            with self._lock:
                return [span for service, span in self._spans if wanted(service, span)]

        until(lambda: len(found()) >= count, timeout_s, lambda: f"{len(found())} of {count} spans came")
        return found()


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            collector.take(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield collector
        server.shutdown()
