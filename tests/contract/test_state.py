"""Signatures with state, and without a batch, over every API of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.clients import connect
from modelyard.export import ExportOptions, export
from tests.contract.test_warmup import predict_log, write_records
from tests.support.server import RunningServer, serve

CALLERS, CALLS = 8, 25


class Ledger(tf.Module):
    """A sum of all that was ever sent, a number that is no batch, and four rows at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.total = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def add(self, x: Any) -> dict[str, Any]:
        # Read and written apart: calls at the same time would lose some of it.
        total = self.total.read_value() + tf.reduce_sum(x)
        self.total.assign(total)
        return {"total": tf.ones_like(x) * total}

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, name="x")])
    def double(self, x: Any) -> dict[str, Any]:
        return {"y": 2.0 * x}

    @tf.function(input_signature=[tf.TensorSpec([4, 2], tf.float32, name="x")])
    def four(self, x: Any) -> dict[str, Any]:
        return {"y": tf.reduce_sum(x, 0)}


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With a manifest, and as a raw SavedModel with a request to add 3 in its warm-up file; both with batching."""
    folder = tmp_path_factory.mktemp("ledgers")
    models, module, rng = folder / "models", Ledger(), np.random.default_rng(0)
    data = {
        "add": {"x": rng.normal(size=16)},
        "double": {"x": rng.normal(size=16)},
        "four": {"x": rng.normal(size=(16, 4, 2))},
    }
    options = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.1)
    export(module, models / "published", data=data, formats=("saved_model",), options=options)
    signatures = {"add": module.add, "double": module.double, "four": module.four}
    tf.saved_model.save(module, str(models / "raw" / "1"), signatures=signatures)
    write_records(models / "raw" / "1", [predict_log(signature="add")])
    flags = [f"--model_repository={models}", "--enable_batching"]
    with serve(None, model="raw", log_dir=folder, flags=flags) as server:
        yield server


@pytest.fixture(params=["published", "raw"])
def ledger(request: pytest.FixtureRequest, ledgers: RunningServer) -> RunningServer:
    server = replace(ledgers, model=request.param)
    server.wait_available()
    return server


def test_calls_that_change_a_state_come_one_after_the_other(ledger: RunningServer) -> None:
    urls = [f"grpc://{ledger.grpc_address}", ledger.rest_url, f"http+v2://127.0.0.1:{ledger.rest_port}"]

    def add(caller: int) -> list[float]:
        with connect(urls[caller % len(urls)]) as client:
            answers = [client.predict(ledger.model, {"x": [1.0]}, signature="add") for _ in range(CALLS)]
        return [float(answer["total"][0]) for answer in answers]

    with ThreadPoolExecutor(CALLERS) as pool:
        totals = [total for each in pool.map(add, range(CALLERS)) for total in each]
    # From the state that was published, every call for itself, and none of them lost.
    assert sorted(totals) == [float(number) for number in range(1, CALLERS * CALLS + 1)]


def test_what_takes_no_batch_is_one_call(ledger: RunningServer) -> None:
    status, body = ledger.post(
        f"/v1/models/{ledger.model}:predict", json.dumps({"signature_name": "double", "inputs": 1.5}).encode()
    )
    assert (status, json.loads(body)) == (200, {"outputs": 3.0})
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    for url in (f"grpc://{ledger.grpc_address}", ledger.rest_url, f"grpc+v2://{ledger.grpc_address}"):
        with connect(url) as client, ThreadPoolExecutor(CALLERS) as pool:
            answer = client.predict(ledger.model, {"x": np.float32(4.0)}, signature="double")["y"]
            assert answer.shape == ()
            assert answer == 8.0
            calls = [
                pool.submit(client.predict, ledger.model, {"x": rows + n}, signature="four") for n in range(CALLERS)
            ]
            for number, each in enumerate(calls):
                np.testing.assert_array_equal(each.result()["y"], (rows + number).sum(0))


def test_metadata_says_the_shapes(ledger: RunningServer) -> None:
    _, body = ledger.get(f"/v1/models/{ledger.model}/metadata")
    definitions = json.loads(body)["metadata"]["signature_def"]["signature_def"]
    shapes = {name: definitions[name]["inputs"]["x"]["tensor_shape"]["dim"] for name in ("add", "double", "four")}
    assert {name: [int(each["size"]) for each in dims] for name, dims in shapes.items()} == {
        "add": [-1],
        "double": [],
        "four": [4, 2],
    }
