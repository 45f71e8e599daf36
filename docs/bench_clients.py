"""Measures the clients against what users have today, and writes the table of docs/clients.md.

Contenders take turns on the same server with the same payload (A B A B ...), so
that whatever else the machine does meets both; the ratio of each turn is theirs
alone, and the table has the median of the ratios.

    python docs/bench_clients.py [--write] [--turns N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "clients.md"
START, END = "<!-- clients-table: written by docs/bench_clients.py -->", "<!-- clients-table: end -->"
TURN_S = 0.5
IN_FLIGHT = 64


def main() -> int:
    """Measures, prints the table, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into docs/clients.md")
    parser.add_argument("--turns", type=int, default=7, help="turns of each contender (default %(default)s)")
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.path.insert(0, str(ROOT))
    table = measure(args.turns)
    print(table)
    if args.write:
        text = PAGE.read_text()
        before, rest = text.split(START)
        PAGE.write_text(f"{before}{START}\n{table}\n{END}{rest.split(END)[1]}")
    return 0


def measure(turns: int) -> str:
    """Runs every comparison and returns the table."""
    from modelyard.training.data import load_fashion_mnist
    from tests.support.classifier import publish_classifier
    from tests.support.models import publish_affine
    from tests.support.server import serve

    rng = np.random.default_rng(0)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        publish_classifier(folder / "fashion", load_fashion_mnist(allow_download=False))
        publish_affine(folder / "affine", slope=0.5, intercept=2)
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
                if model == "fashion":
                    rows.append(asyncio.run(_concurrent(server.grpc_address, model, *entries[0][1:], turns)))
    head = "| | payload | modelyard | reference | ratio, median | lowest to highest |\n|---|---|---|---|---|---|"
    where = (
        f"{os.cpu_count()} cores shared by client and server, {platform.machine()}, Python {platform.python_version()}."
    )
    return "\n".join([head, *rows, "", where])


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


def _compare(transport: str, label: str, ours: Callable[[], Any], theirs: Callable[[], Any], turns: int) -> str:
    ours(), theirs()
    rates: list[tuple[float, float]] = [(_rate(ours), _rate(theirs)) for _ in range(turns)]
    ratios = sorted(a / b for a, b in rates)
    reference = "official stub, make_tensor_proto, make_ndarray" if transport == "gRPC" else "requests, tolist()"
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


async def _concurrent(address: str, model: str, key: str, array: Any, turns: int) -> str:
    """p99 with 64 calls in flight, beside the same bytes on a bare channel that neither encodes nor decodes."""
    import grpc

    from modelyard.clients import connect_async
    from modelyard.clients._requests import Target, predict_message
    from modelyard.wire import PREDICTION_SERVICE

    body = predict_message(Target(model=model), "", {key: array}, ())
    ratios, pairs = [], []
    async with connect_async(f"grpc://{address}") as client, grpc.aio.insecure_channel(address) as channel:
        bare: Any = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, None, None)
        for _ in range(turns):
            ours = await _p99(lambda: client.predict(model, {key: array}))
            theirs = await _p99(lambda: bare(body, timeout=60))
            ratios.append(ours / theirs)
            pairs.append((ours, theirs))
    ratios.sort()
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    return (
        f"| gRPC, asynchronous, {IN_FLIGHT} in flight | 1 image 28x28, p99 | {a * 1000:.1f} ms | {b * 1000:.1f} ms "
        f"(bare grpc.aio channel, the same bytes) | **{statistics.median(ratios):.2f}** | "
        f"{ratios[0]:.2f} to {ratios[-1]:.2f} |"
    )


async def _p99(call: Callable[[], Any]) -> float:
    times: list[float] = []
    until = time.perf_counter() + 2 * TURN_S

    async def worker() -> None:
        while (started := time.perf_counter()) < until:
            await call()
            times.append(time.perf_counter() - started)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return sorted(times)[int(len(times) * 0.99)]


if __name__ == "__main__":
    sys.exit(main())
