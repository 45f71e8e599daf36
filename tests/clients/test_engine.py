"""Retries, budgets, hedging, headers and limits, against servers that misbehave by a script."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest

from modelyard import errors
from modelyard.clients import ClientOptions, RetryOptions, connect, connect_async
from modelyard.clients.transport._engine import RetryBudget
from modelyard.wire import MODEL_SERVICE, serving_pb2
from tests.clients.conftest import connected, peer, url_of
from tests.support.server import RunningServer

STATUS = b'{"model_version_status": [{"version": "3", "state": "AVAILABLE"}]}'
QUICK = RetryOptions(attempts=3, first_pause_s=0.01, longest_pause_s=0.02)


class Script:
    """What a server does with its first, second, ... request; the last entry goes on for ever."""

    def __init__(self, *steps: str) -> None:
        self.steps = collections.deque(steps)
        self.seen: list[dict[str, str]] = []
        self.times: list[float] = []
        self.lock = threading.Lock()

    def next(self, headers: dict[str, str]) -> str:
        with self.lock:
            self.seen.append(headers)
            self.times.append(time.monotonic())
            return self.steps.popleft() if len(self.steps) > 1 else self.steps[0]


def read_request(connection: socket.socket) -> dict[str, str] | None:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(1 << 16)
        if not part:
            return None
        data += part
    lines = data.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}


def response(status: str, body: bytes, *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.contextmanager
def rest_server(script: Script) -> Iterator[str]:
    def answer(connection: socket.socket) -> None:
        while (headers := read_request(connection)) is not None:
            step = script.next(headers)
            if step == "ok":
                connection.sendall(response("200 OK", STATUS))
            elif step == "silent":
                connection.recv(1)
                return
            else:
                status, _, after = step.partition(" ")
                more = [f"retry-after: {after}"] if after else []
                connection.sendall(response(f"{status} X", b'{"error": "scripted"}', "x-request-id: theirs", *more))

    with peer(answer) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def grpc_server(script: Script) -> Iterator[str]:
    stop = threading.Event()

    def status(data: bytes, context: Any) -> bytes:
        step = script.next(dict(context.invocation_metadata()))
        if step == "silent":
            stop.wait(20)
        elif step != "ok":
            code, _, after = step.partition(" ")
            if after:
                context.set_trailing_metadata((("retry-after", after),))
            context.abort(
                {"503": grpc.StatusCode.UNAVAILABLE, "429": grpc.StatusCode.RESOURCE_EXHAUSTED}.get(
                    code, grpc.StatusCode.INTERNAL
                ),
                "scripted",
            )
        answer = serving_pb2.GetModelStatusResponse()
        answer.model_version_status.add(version=3, state=30)
        return answer.SerializeToString()

    method = MODEL_SERVICE["GetModelStatus"]
    server = grpc.server(futures.ThreadPoolExecutor(4))
    handlers = {method.name: grpc.unary_unary_rpc_method_handler(status)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(method.service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        stop.set()
        server.stop(None).wait(5)


SERVERS = {"grpc": grpc_server, "rest": rest_server}
KINDS = ["grpc", "rest", "grpc-async", "rest-async"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("code", ["503", "429"])
def test_what_passes_is_tried_again(kind: str, code: str) -> None:
    script = Script(code, code, "ok")
    with SERVERS[kind[:4]](script) as url, connected(url, kind, ClientOptions(retry=QUICK)) as client:
        assert client.status("m").available == (3,)
    assert len(script.seen) == 3
    # One operation has one identity, however often it is sent.
    assert len({headers["x-request-id"] for headers in script.seen}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_attempts_end_with_an_error_that_says_who_and_what(kind: str) -> None:
    script = Script("503")
    with SERVERS[kind[:4]](script) as url, connected(url, kind, ClientOptions(retry=QUICK)) as client:
        with pytest.raises(errors.UnavailableError) as caught:
            client.status("m")
    assert len(script.seen) == 3
    assert caught.value.model == "m"
    assert caught.value.server_message == "scripted"
    sent = script.seen[0]["x-request-id"]
    assert caught.value.request_id == ("theirs" if kind.startswith("rest") else sent)


@pytest.mark.parametrize("kind", KINDS)
def test_other_failures_are_not_tried_again(kind: str) -> None:
    script = Script("500", "ok")
    with SERVERS[kind[:4]](script) as url, connected(url, kind) as client:
        with pytest.raises(errors.InternalError):
            client.status("m")
    assert len(script.seen) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_retry_after_is_the_least_pause(kind: str) -> None:
    script = Script("503 1", "ok")
    with SERVERS[kind[:4]](script) as url, connected(url, kind, ClientOptions(retry=QUICK)) as client:
        assert client.status("m").available == (3,)
    first, second = script.times
    assert second - first >= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_beyond_the_deadline_is_not_begun(kind: str) -> None:
    script = Script("429 100", "ok")
    with SERVERS[kind[:4]](script) as url, connected(url, kind) as client:
        with pytest.raises(errors.OverloadedError) as caught:
            client.status("m", timeout_s=50)
    assert caught.value.retry_after_s == 100
    assert len(script.seen) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_for_a_model_ends_in_time_whatever_the_server_asks_for(kind: str) -> None:
    script = Script("503 1")
    with SERVERS[kind[:4]](script) as url, connected(url, kind) as client:
        start = time.monotonic()
        with pytest.raises(errors.DeadlineExceededError, match=r"not ready after 1\.5 s.*scripted"):
            client.wait_ready("m", 1.5)
        assert time.monotonic() - start < 2.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_request_wins_over_a_silent_first(kind: str) -> None:
    script = Script("silent", "ok")
    options = ClientOptions(hedge_after_s=0.1)
    with SERVERS[kind[:4]](script) as url, connected(url, kind, options) as client:
        assert client.status("m", timeout_s=15).available == (3,)
        assert len(script.seen) == 2
        # The first is still silent, and nobody waits for it.
        assert client.status("m", timeout_s=15).available == (3,)


def test_hedged_threads_meet_their_deadline_however_many_they_are() -> None:
    retry = RetryOptions(budget=64)
    options = ClientOptions(hedge_after_s=0.05, timeout_s=1.5, max_connections=200, retry=retry)
    took: list[float] = []

    with rest_server(Script("silent")) as url, connect(url, options) as client:

        def call() -> None:
            started = time.monotonic()
            with pytest.raises(errors.DeadlineExceededError):
                client.status("m")
            took.append(time.monotonic() - started)

        threads = [threading.Thread(target=call) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(took) == 64 and max(took) < 4


@pytest.mark.parametrize("kind", KINDS)
def test_slow_servers_get_no_more_hedged_calls_than_the_budget_has(kind: str) -> None:
    script = Script("silent")
    options = ClientOptions(hedge_after_s=0.02, retry=RetryOptions(attempts=1, budget=1, budget_ratio=0.1))
    with SERVERS[kind[:4]](script) as url, connected(url, kind, options) as client:
        for sent in (2, 3):
            with pytest.raises(errors.DeadlineExceededError):
                client.status("m", timeout_s=0.5)
            assert len(script.seen) == sent


@pytest.mark.parametrize("kind", KINDS)
def test_a_quick_answer_is_not_hedged(kind: str) -> None:
    script = Script("ok")
    with SERVERS[kind[:4]](script) as url, connected(url, kind, ClientOptions(hedge_after_s=10)) as client:
        client.status("m", timeout_s=15)
    assert len(script.seen) == 1


def test_the_budget_stops_repetitions_before_the_attempts_do() -> None:
    script = Script("503")
    retry = RetryOptions(attempts=4, first_pause_s=0.001, budget=2, budget_ratio=0.1)
    with rest_server(script) as url, connect(url, ClientOptions(retry=retry)) as client:
        for _ in range(5):
            with pytest.raises(errors.UnavailableError):
                client.status("m")
    # Five calls, and the two repetitions that the budget had: a tenth of a token each is not a third.
    assert len(script.seen) == 7


def test_attempts_may_be_thousands() -> None:
    script = Script("503")
    retry = RetryOptions(attempts=1100, first_pause_s=1e-5, longest_pause_s=1e-5, budget=2000)
    with rest_server(script) as url, connect(url, ClientOptions(retry=retry)) as client:
        with pytest.raises(errors.UnavailableError):
            client.status("m")
    assert len(script.seen) == 1100


def test_a_budget_earns_up_to_its_size() -> None:
    budget = RetryBudget(RetryOptions(budget=1, budget_ratio=0.5))
    assert [budget.spend(), budget.spend()] == [True, False]
    budget.earn()
    assert not budget.spend()
    for _ in range(10):
        budget.earn()
    assert [budget.spend(), budget.spend()] == [True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_and_tokens_travel(kind: str) -> None:
    script = Script("ok")
    tokens = iter(["first", "second"])
    options = ClientOptions(metadata={"x-team": "vision"}, token=lambda: next(tokens))
    with SERVERS[kind[:4]](script) as url, connected(url, kind, options) as client:
        client.status("m")
        client.status("m")
    assert [headers["authorization"] for headers in script.seen] == ["Bearer first", "Bearer second"]
    assert {headers["x-team"] for headers in script.seen} == {"vision"}
    for token in ("line\nbreak", "space "):
        with SERVERS[kind[:4]](script) as url, connected(url, kind, ClientOptions(token=token)) as client:
            with pytest.raises(errors.ConfigurationError, match="the token"):
                client.status("m")


@pytest.mark.parametrize("api", ["new", "old"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_goes_on_in_the_server(kind: str, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import trace

    class OldTracer(trace.NoOpTracer):
        """Of the API before 1.37."""

        def start_span(self, *_: Any, **__: Any) -> trace.Span:
            """The same for everybody, whose context is lost."""
            return trace.INVALID_SPAN

    if api == "old":
        monkeypatch.setattr(trace, "get_tracer", lambda _: OldTracer())
    context = trace.SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    script = Script("ok")
    with SERVERS[kind[:4]](script) as url, connected(url, kind) as client:
        with trace.use_span(trace.NonRecordingSpan(context)):
            client.status("m")
        client.status("m")
    assert script.seen[0]["traceparent"] == f"00-{0xABC:032x}-{0xDEF:016x}-01"
    assert "traceparent" not in script.seen[1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_beyond_the_limit_is_refused(kind: str) -> None:
    with SERVERS[kind[:4]](Script("ok")) as url:
        with connected(url, kind, ClientOptions(max_message_bytes=3)) as client:
            with pytest.raises(errors.RequestTooLargeError, match="larger than"):
                client.status("m")


def test_cancelling_a_call_cancels_the_servers_work() -> None:
    async def run() -> None:
        started, cancelled = asyncio.Event(), asyncio.Event()

        async def status(data: bytes, context: Any) -> bytes:
            started.set()
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return b""

        method = MODEL_SERVICE["GetModelStatus"]
        server = grpc.aio.server()
        handlers = {method.name: grpc.unary_unary_rpc_method_handler(status)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(method.service, handlers)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with connect_async(f"grpc://127.0.0.1:{port}") as client:
            call = asyncio.create_task(client.status("m"))
            await asyncio.wait_for(started.wait(), 10)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.wait_for(cancelled.wait(), 10)
            assert [endpoint.in_flight for endpoint in client._engine.pool.endpoints] == [0]
        await server.stop(None)

    asyncio.run(run())


def test_cancelling_over_rest_closes_the_connection() -> None:
    started, closed = threading.Event(), threading.Event()

    def answer(connection: socket.socket) -> None:
        read_request(connection)
        started.set()
        if connection.recv(1) == b"":
            closed.set()

    async def run(url: str) -> None:
        async with connect_async(url) as client:
            call = asyncio.create_task(client.status("m"))
            assert await asyncio.to_thread(started.wait, 10)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(closed.wait, 10)

    with peer(answer) as port:
        asyncio.run(run(f"http://127.0.0.1:{port}"))


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """What remembers spans, and what makes them."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter, provider


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("grpc", "tensorflow.serving.PredictionService/Predict"),
        ("rest", "POST /v1/models/{model}:predict"),
        ("rest-async", "POST /v1/models/{model}:predict"),
    ],
)
def test_a_span_is_named_after_the_prediction_and_not_the_metadata_before_it(
    server: RunningServer, kind: str, name: str, tracing: tuple[Any, Any]
) -> None:
    exporter, _ = tracing
    with connected(url_of(server, kind), kind) as client:
        # Of Python numbers both transports ask for the signature first.
        client.predict("half", {"x": [1.0]})
    assert [span.name for span in exporter.get_finished_spans()] == [name]


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_traces_gets_client_spans(kind: str, tracing: tuple[Any, Any]) -> None:
    from opentelemetry import trace

    exporter, provider = tracing
    script = Script("ok", "500")
    with SERVERS[kind[:4]](script) as url, connected(url, kind) as client:
        with provider.get_tracer("app").start_as_current_span("work") as work:
            client.status("m")
            with pytest.raises(errors.ModelyardError):
                client.status("m")
    first, second, outer = exporter.get_finished_spans()
    assert outer.context.span_id == work.get_span_context().span_id
    for span, headers in zip((first, second), script.seen, strict=True):
        assert span.kind is trace.SpanKind.CLIENT
        assert "m" not in span.name.split("/")
        assert span.parent is not None and span.parent.span_id == outer.context.span_id
        assert headers["traceparent"].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
        assert (span.attributes or {})["modelyard.request_id"] == headers["x-request-id"]
    assert (first.status.is_ok, second.status.status_code) == (True, trace.StatusCode.ERROR)
