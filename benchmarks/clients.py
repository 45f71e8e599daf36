"""Measures the clients against what users have today, and writes the table of docs/clients.md.

Contenders take turns on the same server with the same payload (A B A B ...), so
that whatever else the machine does meets both; the ratio of each turn is theirs
alone, and the table has the median of the ratios. Where a client is compared with
the server's own latency, each has a core, as a client on another machine has its own.

The server's own p99 is what h2load sees (Debian's nghttp2-client; rows that need
it are left out without it): a native program, of which next to nothing is in the figure.

    python -m benchmarks.clients [--write] [--turns N]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import write_section

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "clients.md"
START, END = "<!-- clients-table: written by benchmarks/clients.py -->", "<!-- clients-table: end -->"
TURN_S = 0.5
IN_FLIGHT = 64
SLOW = "a model that takes milliseconds"


def main() -> int:
    """Measures, prints the table, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into docs/clients.md")
    parser.add_argument("--turns", type=int, default=5, help="turns of each contender (default %(default)s)")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    table = measure(args.turns)
    print(table)
    if args.write:
        write_section(PAGE, START, END, table)
    return 0


def measure(turns: int) -> str:
    """Runs every comparison and returns the table."""
    from modelyard.training.data import load_fashion_mnist
    from tests.support.classifier import publish_classifier
    from tests.support.models import publish_affine, publish_slow
    from tests.support.server import serve

    rng = np.random.default_rng(0)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        publish_classifier(folder / "fashion", load_fashion_mnist(allow_download=False))
        publish_affine(folder / "affine", slope=0.5, intercept=2)
        publish_slow(folder / "slow", loops=2, tried=True)
        payloads: dict[str, list[tuple[str, str, Any]]] = {
            "fashion": [
                ("1 image 28x28 in, 3 small outputs", "image", rng.random((1, 28, 28, 1), np.float32)),
                ("32 images 28x28 in, 3 small outputs", "image", rng.random((32, 28, 28, 1), np.float32)),
            ],
            "affine": [
                ("784 floats in and out", "x", rng.random(784, np.float32)),
                ("25,088 floats in and out", "x", rng.random(32 * 784, np.float32)),
                ("150,528 floats in and out", "x", rng.random(224 * 224 * 3, np.float32)),
            ],
        }
        for model, entries in payloads.items():
            with serve(folder / model, model=model, log_dir=folder) as server:
                for label, key, array in entries:
                    rows.append(_compare("gRPC", label, *_grpc(server.grpc_address, model, key, array), turns))
                    rows.append(_compare("REST", label, *_rest(server.rest_url, model, key, array), turns))
                if model == "affine":
                    label, key, array = entries[0]
                    for url in (f"grpc://{server.grpc_address}", server.rest_url):
                        rows.append(_compare_transports(url, label, model, key, array, turns))
        label, key, array = payloads["affine"][0]
        # The official stub brought TensorFlow into this process. Each full look of the garbage collector at it would
        # take 30 ms; programs that use a client instead do not have it.
        gc.collect()
        gc.freeze()
        with _on_its_own_core(folder, "affine") as server:
            for url in (f"grpc://{server.grpc_address}", server.rest_url):
                rows.append(asyncio.run(_concurrent(url, label, "affine", key, array, turns, "library")))
                if shutil.which("h2load"):
                    rows.append(asyncio.run(_concurrent(url, label, "affine", key, array, turns, "h2load")))
        if shutil.which("h2load"):
            # The server is what callers wait for here, as it is with most models.
            with _on_its_own_core(folder, "slow", ["--greedy_batching=false"]) as server:
                for url in (f"grpc://{server.grpc_address}", server.rest_url):
                    one = np.zeros(1, np.float32)
                    rows.append(asyncio.run(_concurrent(url, SLOW, "slow", "x", one, turns, "h2load")))
    head = "| | payload | modelyard | reference | ratio, median | lowest to highest |\n|---|---|---|---|---|---|"
    where = (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}. Client and server share "
        "them, but for the asynchronous rows, where the server has one and clients another."
    )
    return "\n".join([head, *rows, "", where])


@contextmanager
def _on_its_own_core(folder: Path, model: str, flags: Sequence[str] = ()) -> Iterator[Any]:
    """A server on the first core, and this thread and what it starts on the last."""
    from tests.support.server import serve

    cores = sorted(os.sched_getaffinity(0))
    try:
        # Threads and processes begin where the thread is that starts them.
        os.sched_setaffinity(0, cores[:1])
        with serve(folder / model, model=model, log_dir=folder, flags=flags) as server:
            os.sched_setaffinity(0, cores[-1:])
            yield server
    finally:
        os.sched_setaffinity(0, cores)


def _grpc(address: str, model: str, key: str, array: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import grpc
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    from modelyard.clients import connect

    channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    client = connect(f"grpc://{address}")

    def official() -> Any:
        request = predict_pb2.PredictRequest()
        request.model_spec.name = model
        request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
        response = stub.Predict(request, timeout=60)
        return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}

    return (lambda: client.predict(model, {key: array})), official


def _rest(url: str, model: str, key: str, array: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    import requests

    from modelyard.clients import connect

    session = requests.Session()
    client = connect(url)

    def plain() -> Any:
        answer = session.post(f"{url}/v1/models/{model}:predict", json={"inputs": {key: array.tolist()}}, timeout=60)
        outputs = answer.json()["outputs"]
        return {
            name: np.array(value) for name, value in (outputs if isinstance(outputs, dict) else {"": outputs}).items()
        }

    return (lambda: client.predict(model, {key: array})), plain


def _compare_transports(url: str, label: str, model: str, key: str, array: Any, turns: int) -> str:
    from modelyard.clients import ClientOptions, connect

    own, library = connect(url), connect(url, ClientOptions(transport="library"))
    name = "grpcio" if url.startswith("grpc") else "httpx"
    return _compare(
        name, label, lambda: own.predict(model, {key: array}), lambda: library.predict(model, {key: array}), turns
    )


def _compare(transport: str, label: str, ours: Callable[[], Any], theirs: Callable[[], Any], turns: int) -> str:
    ours(), theirs()
    rates: list[tuple[float, float]] = [(_rate(ours), _rate(theirs)) for _ in range(turns)]
    ratios = sorted(a / b for a, b in rates)
    reference = {
        "gRPC": "official stub, make_tensor_proto, make_ndarray",
        "REST": "requests, tolist()",
    }.get(transport, f"the same client over {transport}")
    transport = {"grpcio": "gRPC", "httpx": "REST"}.get(transport, transport)
    a, b = (statistics.median(column) for column in zip(*rates, strict=True))
    return (
        f"| {transport} | {label} | {a:,.0f} calls/s | {b:,.0f} calls/s ({reference}) | "
        f"**{statistics.median(ratios):.2f}** | {ratios[0]:.2f} to {ratios[-1]:.2f} |"
    )


def _rate(call: Callable[[], Any]) -> float:
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < TURN_S or count < 2:
        call()
        count += 1
    return count / passed


async def _concurrent(url: str, label: str, model: str, key: str, array: Any, turns: int, other: str) -> str:
    """p99 with 64 calls in flight, beside that of the same client over a library, or of h2load."""
    from modelyard.clients import ClientOptions, connect_async

    grpc = url.startswith("grpc")
    ratios, pairs = [], []
    async with connect_async(url) as own, connect_async(url, ClientOptions(transport="library")) as library:
        for client in (own, library):
            await client.predict(model, {key: array})
        for _ in range(turns):
            ours, count = await _p99(lambda: own.predict(model, {key: array}))
            if other == "h2load":
                theirs = _h2load(url, model, key, array, count)
            else:
                theirs, _ = await _p99(lambda: library.predict(model, {key: array}))
            ratios.append(ours / theirs)
            pairs.append((ours, theirs))
    ratios.sort()
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    name = "the server's own: h2load" if other == "h2load" else f"the same client over {'grpcio' if grpc else 'httpx'}"
    return (
        f"| {'gRPC' if grpc else 'REST'}, asynchronous, {IN_FLIGHT} in flight | {label}, p99 | {a * 1000:.1f} ms | "
        f"{b * 1000:.1f} ms ({name}) | **{statistics.median(ratios):.2f}** | {ratios[0]:.2f} to {ratios[-1]:.2f} |"
    )


def _h2load(url: str, model: str, key: str, array: Any, count: int) -> float:
    """p99 of as many calls as the client made: what happens once a second, happens to both."""
    from modelyard.clients.protocols import Target, predict_json, predict_message

    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        if url.startswith("grpc"):
            message = predict_message(Target(model=model), "", {key: array}, ())
            body.write_bytes(b"\0" + len(message).to_bytes(4) + message)
            path = f"{url.replace('grpc', 'http')}/tensorflow.serving.PredictionService/Predict"
            how = ["-c1", f"-m{IN_FLIGHT}", "-H", "content-type: application/grpc", "-H", "te: trailers", path]
        else:
            body.write_bytes(predict_json("", {key: array}))
            how = ["--h1", f"-c{IN_FLIGHT}", "-m1", "-H", "content-type: application/json"]
            how.append(f"{url}/v1/models/{model}:predict")
        command = ["h2load", "-t1", f"-n{count}", "-d", str(body), f"--log-file={log}", *how]
        subprocess.run(command, check=True, capture_output=True)
        times = sorted(int(line.split()[2]) for line in log.read_text().splitlines() if line.split()[1] == "200")
    return times[int(len(times) * 0.99)] / 1e6


async def _p99(call: Callable[[], Any]) -> tuple[float, int]:
    times: list[float] = []
    until = time.perf_counter() + 2 * TURN_S

    async def worker() -> None:
        while (started := time.perf_counter()) < until:
            await call()
            times.append(time.perf_counter() - started)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return sorted(times)[int(len(times) * 0.99)], len(times)


if __name__ == "__main__":
    sys.exit(main())
