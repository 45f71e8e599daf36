"""The generator against a real server: every API and payload, waiting that is counted, and servers that misbehave."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.errors import ConfigurationError, LoadTestError
from modelyard.loadtests import LoadTestOptions
from modelyard.loadtests.generate import Log, Outcome, _server_metrics, run_open, run_precisely, session
from modelyard.loadtests.generate._http1 import Http1Sender
from modelyard.loadtests.generate._sender import endpoint
from modelyard.loadtests.options import constant
from modelyard.loadtests.traffic import APIS, PAYLOADS, Images, ImageTraffic, Request, load_images, read_recording
from modelyard.training.data import FashionMnist
from modelyard.wire import serving_pb2
from tests.support.classifier import publish_classifier
from tests.support.metrics import monitoring_flag
from tests.support.records import write_records
from tests.support.server import RunningServer, free_port, serve

KINDS = tuple(f"{api} {payload}" for api in APIS for payload in PAYLOADS)


def publish_with_examples(model_dir: Path, data: FashionMnist) -> None:
    """The classifier, with a signature more: the same computation from tf.Example messages."""
    version = publish_classifier(model_dir, data)
    manifest = version.path / "manifest.json"
    values = json.loads(manifest.read_text())
    del values["sha256"]
    values["signatures"]["example"] = {
        **values["signatures"]["serving_default"],
        "inputs": [{"name": "examples", "dtype": "string", "shape": [-1]}],
        "decode": {
            "kind": "example",
            "input": "examples",
            "features": [
                {"name": "image", "dtype": "float32", "shape": [28, 28, 1], "default": None, "input": None},
            ],
        },
    }
    manifest.write_text(json.dumps(values))


@pytest.fixture(scope="module")
def images() -> Images:
    return load_images()


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory, fashion: FashionMnist) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("generator")
    publish_with_examples(folder / "fashion", fashion)
    with serve(folder / "fashion", model="fashion", log_dir=folder, flags=[monitoring_flag(folder)]) as running:
        yield running


def options(server: RunningServer, **changes: Any) -> LoadTestOptions:
    return LoadTestOptions(grpc_url=f"grpc://{server.grpc_address}", rest_url=server.rest_url, **changes)


def make_requests(load: LoadTestOptions, kinds: Sequence[str], images: Images, distinct: int = 128) -> list[Request]:
    return ImageTraffic(images).requests(load, kinds, distinct=distinct)


def closed(load: LoadTestOptions, requests: Sequence[Request], seconds: float) -> Log:
    async def main() -> Log:
        async with session(load, requests, warm_up=False) as opened:
            return await opened.generator.closed(requests, in_flight=8, seconds=seconds)

    return run_precisely(main())


def test_requests_leave_no_garbage_whose_collection_would_delay_others(
    classifier: RunningServer, images: Images
) -> None:
    load = options(classifier)
    requests = make_requests(load, KINDS, images, distinct=12)

    async def main() -> tuple[int, int]:
        async with session(load, requests) as opened:
            gc.collect()
            gc.disable()
            try:
                log = await opened.generator.closed(requests, in_flight=8, seconds=2)
                return len(log.ok), gc.collect()
            finally:
                gc.enable()

    answered, collected = run_precisely(main())
    assert answered > 200
    # Four objects of each, where a request and what cancels it know each other.
    assert collected < answered / 2


def test_a_run_leaves_frozen_what_its_process_has_frozen() -> None:
    async def count() -> int:
        return gc.get_freeze_count()

    # By conftest.py, after the tests were collected.
    before = gc.get_freeze_count()
    during = run_precisely(count())
    # Some of it may end meanwhile.
    assert before >= during >= gc.get_freeze_count() > 0


def test_every_api_and_payload_gives_the_same_classes(classifier: RunningServer, images: Images) -> None:
    load = options(classifier, rows=2)
    requests = make_requests(load, KINDS, images, distinct=12)

    async def main() -> Log:
        async with session(load, requests, warm_up=False) as opened:
            return await opened.generator.closed(requests, in_flight=8, seconds=60, at_most=len(requests))

    rows = run_precisely(main()).by_kind()
    assert {row.name for row in rows} == set(KINDS)
    assert [(row.requests, row.failures, row.known) for row in rows] == [(12, 0, 24)] * len(KINDS)
    # Image files are resized by the server, and a means classifier does not mind.
    assert len({row.matches for row in rows}) == 1
    assert rows[0].matches / 24 > 0.5


def test_latency_counts_from_the_moment_a_request_was_due(classifier: RunningServer, images: Images) -> None:
    """A server that stands still for half a second delays every request that was due meanwhile, and each one counts."""
    load = options(classifier)
    requests = make_requests(load, ["grpc image"], images, distinct=8)
    pid = classifier.process.pid

    def answered() -> int:
        (model,) = json.loads(classifier.get(f"/v2/models/{classifier.model}/stats")[1])["model_stats"]
        return int(model["inference_count"])

    def stand_still() -> None:
        # Not by the clock: how long it takes to begin depends on what else this process holds.
        before = answered()
        while answered() < before + 50:
            time.sleep(0.02)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)

    def with_a_pause(run: Any) -> Any:
        thread = threading.Thread(target=stand_still)
        thread.start()
        try:
            return run()
        finally:
            thread.join()

    opened = with_a_pause(lambda: run_open(load, requests, constant(100, 1.5), poisson=False).log)
    assert opened.measured().failures == 0
    assert len(opened.intended) == 150
    # Between 100 ms and the whole pause: requests of 0.4 seconds.
    assert 20 <= int(np.sum(opened.latency_ms > 100)) <= 120
    assert opened.latency_ms.max() > 400
    # A closed loop sends next to nothing while it waits: its slow requests are as many as are in flight.
    waiting = with_a_pause(lambda: closed(load, requests, 1.5))
    assert 1 <= int(np.sum(waiting.latency_ms > 400)) <= 8


def test_a_closed_loop_lasts_until_the_last_answer() -> None:
    """Eight answers after 0.3 s are no more than 27 per second, though the last request was sent within 0.1 s."""

    class Slow(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            time.sleep(0.3)
            self.send_response(200)
            self.send_header("content-length", "14")
            self.end_headers()
            self.wfile.write(b'{"outputs":[]}')

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        load = LoadTestOptions(grpc_url="", rest_url=f"http://127.0.0.1:{server.server_port}")
        row = closed(load, [Request(kind="rest x", api="rest", path="/", body=b"{}")], 0.1).measured()
        server.shutdown()
    assert (row.requests, row.failures) == (8, 0)
    assert row.seconds >= 0.3
    assert row.answered_per_s <= 8 / 0.3


def test_the_server_tells_where_its_time_went(classifier: RunningServer, images: Images) -> None:
    load = options(classifier)
    requests = make_requests(load, ["grpc image", "rest image"], images, distinct=4)
    run = run_open(load, requests, constant(80, 1.5))
    assert run.server
    assert sum(split.requests for split in run.server) >= 60
    for split in run.server:
        assert split.total_ms > 0
        assert 0 < split.compute_ms <= split.total_ms


def test_refusals_failures_and_breaks_are_told_apart(tmp_path: Path, fashion: FashionMnist, images: Images) -> None:
    publish_classifier(tmp_path / "fashion", fashion)
    with serve(tmp_path / "fashion", model="fashion", log_dir=tmp_path) as server:
        load = options(server, timeout_s=0.3)
        requests = make_requests(load, ["grpc image", "rest image"], images, distinct=2)
        missing = make_requests(
            dataclasses.replace(load, model="shoes"), ["grpc image", "rest image"], images, distinct=1
        )
        log = closed(load, missing, 0.2)
        assert set(log.outcome) == {Outcome.FAILED}
        assert any("grpc image: gRPC status 5" in text for text in log.reasons)
        assert any("rest image: HTTP 404" in text for text in log.reasons)
        os.kill(server.process.pid, signal.SIGSTOP)
        log = closed(load, requests, 0.1)
        os.kill(server.process.pid, signal.SIGCONT)
        assert set(log.outcome) == {Outcome.TIMEOUT}
        server.process.kill()
        server.process.wait()
        log = closed(load, requests, 0.1)
        assert set(log.outcome) == {Outcome.UNREACHABLE}


def test_a_run_does_not_begin_where_nothing_is_answered(classifier: RunningServer, images: Images) -> None:
    load = options(classifier, model="shoes")
    requests = make_requests(load, ["rest image"], images, distinct=2)
    with pytest.raises(LoadTestError, match="no request 'rest image' was answered rightly. rest image: HTTP 404"):
        run_open(load, requests, constant(10, 1))
    nobody = LoadTestOptions(grpc_url=f"grpc://127.0.0.1:{free_port()}", rest_url="")
    with pytest.raises(LoadTestError, match="no request 'grpc image'"):
        run_open(nobody, make_requests(nobody, ["grpc image"], images, distinct=2), constant(10, 1))


def test_wrong_classes_are_answers_that_do_not_agree(wrong_server: RunningServer, images: Images) -> None:
    load = options(wrong_server)
    requests = make_requests(load, ImageTraffic(images).kinds(load), images, distinct=8)
    row = run_open(load, requests, constant(100, 0.5)).log.measured()
    assert row.failures == 0
    assert row.matches / row.known < 0.2


@pytest.mark.parametrize(
    ("kinds", "changes", "message"),
    [
        (["grpc video"], {}, "Cannot send the kind of request 'grpc video': expected one of image, image_bytes, ex"),
        (["soap image"], {}, "Unknown kind of request 'soap image'"),
        (["rest image"], {"rest_url": ""}, "There is no server for 'rest image': give --host-rest"),
        (["grpc-v2 image"], {"grpc_url": ""}, "give --host-grpc"),
        (["grpc image"], {"grpc_url": "tcp://x"}, "Cannot connect to 'tcp://x'"),
    ],
)
def test_kinds_that_cannot_be_sent(images: Images, kinds: list[str], changes: dict[str, Any], message: str) -> None:
    load = dataclasses.replace(LoadTestOptions(), kinds=tuple(kinds), **changes)
    with pytest.raises(ConfigurationError, match=message):
        run_open(load, make_requests(load, ImageTraffic(images).kinds(load), images, distinct=1), constant(1, 1))


def test_a_model_without_examples(server: RunningServer, images: Images) -> None:
    with pytest.raises(ConfigurationError, match="has no signature that takes tf.Example messages"):
        make_requests(options(server), ["grpc example"], images)


# ---- replay ---------------------------------------------------------------------------------------------------------


def record(path: Path, messages: Sequence[serving_pb2.PredictionLog]) -> None:
    write_records(path, [message.SerializeToString() for message in messages])


@pytest.fixture(scope="module")
def recording(classifier: RunningServer, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight requests of one second, four of the third after it, with the answers that the server gave."""
    import grpc

    load = options(classifier)
    messages = []
    with grpc.insecure_channel(classifier.grpc_address) as channel:
        for index, request in enumerate(make_requests(load, ["grpc image"], images, distinct=12)):
            message = serving_pb2.PredictionLog()
            message.log_metadata.timestamp_secs = 1_700_000_000 + (0 if index < 8 else 3)
            message.predict_log.request.ParseFromString(request.body or b"")
            answer = channel.unary_unary(request.path, None, None)(request.body, timeout=10)
            message.predict_log.response.ParseFromString(answer)
            messages.append(message)
    path = tmp_path_factory.mktemp("recording") / "requests"
    record(path, messages)
    return path


def test_a_recording_is_sent_when_it_was(recording: Path) -> None:
    found = read_recording(recording)
    assert found.arrivals(1) == pytest.approx([*np.arange(8) / 8, *(3 + np.arange(4) / 4)])
    assert found.arrivals(10) == pytest.approx(found.arrivals(1) / 10)


def test_recorded_answers_are_the_expected_ones(recording: Path, classifier: RunningServer, images: Images) -> None:
    found = read_recording(recording)
    log = closed(options(classifier), found.requests, 0.3)
    assert log.measured().matches == log.measured().known > 0
    other = dataclasses.replace(found.requests[0], expected=found.requests[1].expected)
    assert closed(options(classifier), [other], 0.1).measured().matches == 0


def test_recordings_that_cannot_be_used(tmp_path: Path, recording: Path) -> None:
    untimed = tmp_path / "untimed"
    message = serving_pb2.PredictionLog()
    message.predict_log.request.model_spec.name = "m"
    record(untimed, [message])
    with pytest.raises(ConfigurationError, match="has no times"):
        read_recording(untimed).arrivals(1)
    data = bytearray(recording.read_bytes())
    data[40] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "cut").write_bytes(data[:10])
    for name, text in (
        ("damaged", "another checksum"),
        ("empty", "holds no request"),
        ("cut", "damaged at byte 0"),
        ("missing", "Cannot read"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            read_recording(tmp_path / name)


def test_a_server_that_hangs_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_server_metrics, "_PATIENCE_S", 0.1)

    async def look(port: int) -> list[bool]:
        sender = Http1Sender(endpoint(f"http://127.0.0.1:{port}"), max_connections=1)
        watcher = _server_metrics.Watcher(sender)
        try:
            # The second one finds the connection free.
            return [await watcher.look(time.perf_counter()) for _ in range(2)]
        finally:
            await sender.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert asyncio.run(asyncio.wait_for(look(silent.getsockname()[1]), 20)) == [False, False]
