"""Small requests that become large: by compression, by one value for many, as images. Memory stays bounded."""

from __future__ import annotations

import gzip
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from modelyard.wire import PREDICTION_SERVICE, serving_pb2, tensorflow_pb2
from tests.support.access import send
from tests.support.metrics import monitoring_flag, scrape
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve

psutil = pytest.importorskip("psutil")
LIMIT = 50_000_000
NUMBERS = 1_000_000
V1, V2 = "/v1/models/affine:predict", "/v2/models/affine/infer"


@pytest.fixture(scope="module", params=["native", "python"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("decoded")
    publish_affine(folder / "affine", slope=2.0, intercept=1.0)
    flags = [f"--max_inflight_bytes={LIMIT}", f"--transport={request.param}", monitoring_flag(folder)]
    with serve(folder / "affine", model="affine", log_dir=folder, flags=flags) as running:
        yield running


@contextmanager
def peak(server: RunningServer) -> Iterator[list[int]]:
    """The most bytes that the server has at a time, beyond what it had before."""
    process = psutil.Process(server.process.pid)
    before, found, over = process.memory_info().rss, [0], threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            found[0] = max(found[0], process.memory_info().rss - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def values(path: str, count: int) -> bytes:
    numbers = b"1.5," * (count - 1) + b"1.5"
    if path == V1:
        return b'{"instances":[%b]}' % numbers
    return b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"data":[%b]}]}' % (count, numbers)


@pytest.mark.parametrize("path", [V1, V2])
def test_compressed_bodies_count_with_what_they_become(server: RunningServer, path: str) -> None:
    body = gzip.compress(values(path, NUMBERS))
    assert len(body) < 5_000

    def ask(_: int) -> tuple[int, str, bool]:
        status, text, headers = send(server, f"POST {path}", headers={"content-encoding": "gzip"}, body=body)
        return status, text[:200], "retry-after" in {name.lower() for name in headers}

    assert ask(0)[0] == 200
    with peak(server) as most, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 429}, answers
    refused = rf"Decoded requests hold \d+ bytes already, of --max_inflight_bytes={LIMIT}; ask again later\."
    for status, text, hint in answers:
        assert hint == (status == 429)
        assert status == 200 or re.search(refused, text)
    # All of them at once had taken 850 MB.
    assert most[0] < 3e8
    # What is too large alone would never be let in.
    large = gzip.compress(values(path, 2 * NUMBERS))
    status, text, _ = send(server, f"POST {path}", headers={"content-encoding": "gzip"}, body=large)
    assert (status, f"expected at most {LIMIT}, the server's --max_inflight_bytes" in text) == (413, True)
    assert 'reason="bytes"' in server.get("/metrics")[1]
    assert send(server, f"POST {path}", body=values(path, 10))[0] == 200


def test_examples_count_too(server: RunningServer) -> None:
    body = gzip.compress(b'{"examples":[%b1.5]}' % (b"1.5," * (2 * NUMBERS)))
    for verb in ("classify", "regress"):
        route = f"POST /v1/models/affine:{verb}"
        status, text, _ = send(server, route, headers={"content-encoding": "gzip"}, body=body)
        assert (status, "the server's --max_inflight_bytes" in text) == (413, True), text[:200]


@pytest.mark.parametrize("path", [V1, V2])
def test_what_is_held_is_shown_and_given_back(server: RunningServer, path: str) -> None:
    held = ":modelyard:serving:request_bytes_in_flight"
    body, most = gzip.compress(values(path, NUMBERS)), 0.0

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(send, server, f"POST {path}", headers={"content-encoding": "gzip"}, body=body)
        while not asked.done():
            most = max(most, scrape(server)[held, frozenset()])
    assert most > 32 * (NUMBERS - 1)
    assert scrape(server)[held, frozenset()] == 0


def test_a_value_for_all_of_a_tensor_counts_as_all_of_it(server: RunningServer) -> None:
    def ask(count: int) -> tuple[str, str]:
        request = serving_pb2.PredictRequest()
        request.model_spec.name = "affine"
        tensor = request.inputs["x"]
        tensor.dtype = tensorflow_pb2.DT_FLOAT
        tensor.tensor_shape.dim.add().size = count
        tensor.float_val.append(1.0)
        data = request.SerializeToString()
        assert len(data) < 50
        with grpc.insecure_channel(server.grpc_address, options=[("grpc.max_receive_message_length", -1)]) as channel:
            try:
                channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)(data, timeout=60)
            except grpc.RpcError as exc:
                return exc.code().name, exc.details() or ""
        return "OK", ""

    # The server learns what such a request takes.
    assert ask(6_000_000)[0] == "OK"
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, [6_000_000] * 16))
    assert {code for code, _ in answers} == {"OK", "RESOURCE_EXHAUSTED"}, answers
    texts = {text for code, text in answers if code != "OK"}
    assert any(f"of --max_inflight_bytes={LIMIT}" in text for text in texts), texts
    code, text = ask(17_000_000)
    assert (code, "must be sent in full" in text) == ("RESOURCE_EXHAUSTED", True)
