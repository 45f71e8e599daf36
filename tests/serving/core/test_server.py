"""The core by itself: what it answers without the Python handlers, and what it counts."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.support.server import free_port
from tests.support.waiting import until

core = pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core")

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HandedOver:
    """In place of the handlers: says that a request came to Python."""

    def rest(self, exchange: Any) -> None:
        exchange.respond(418, [], b"handed over")

    def gone(self, item: Any) -> None:
        """Nobody waits for it."""

    def learn(self, *key: Any) -> None:
        """There are no other plans."""


def run(batch: Sequence[tuple[bytes, tuple[int, ...]]], waited: Any) -> Any:
    """Labels of numbers, and twice them; text for those that are not negative."""
    ((data, shape),) = batch
    assert waited is None
    values = np.frombuffer(data, np.float32)
    labels = [f"größe {value:g}" if value >= 0 else b"\xff" for value in values]
    return [(shape, labels), (shape, (values * 2).tobytes())]


@pytest.fixture
def server() -> Iterator[tuple[Any, int]]:
    port = free_port()
    server = core.Server(
        HandedOver(), threads=1, max_body_bytes=1 << 20, max_message_bytes=1 << 20, rest_timeout_s=30.0,
        wrong_rest_port="", wrong_grpc_port="",
    )  # fmt: skip
    added = server.add_plan(
        model="m", version=None, label=None, signature="", wanted=[], answers=7, name="serving_default", backend="none",
        inputs=[("x", "float32", [-1])], outputs=[("label", "string"), ("y", "float32")], run=run, max_rows=8,
        shared=True, parallel=1,
    )  # fmt: skip
    assert added
    server.listen(grpc=False, port=port)
    yield server, port
    server.stop(1.0)


def ask(port: int, path: str, body: Any) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
    try:
        with _OPENER.open(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read()


def infer(values: Sequence[float], **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(values)], "data": values}], **more}


def test_strings_are_answered_without_the_handlers(server: tuple[Any, int]) -> None:
    _, port = server
    status, body = ask(port, "/v1/models/m:predict", {"instances": [1.0, 2.5]})
    assert status == 200, body
    assert json.loads(body)["predictions"] == [{"label": "größe 1", "y": 2.0}, {"label": "größe 2.5", "y": 5.0}]
    status, body = ask(port, "/v2/models/m/infer", infer([3.0]))
    label, number = json.loads(body)["outputs"]
    assert (label["datatype"], label["data"], number["data"]) == ("BYTES", ["größe 3"], [6.0])
    status, body = ask(port, "/v2/models/m/infer", infer([-1.0], parameters={"binary_data_output": True}))
    assert (status, body[-9:]) == (200, b"\1\0\0\0\xff" + np.float32(-2).tobytes())


def test_a_batch_is_counted_with_its_first_answer(server: tuple[Any, int]) -> None:
    core_server, port = server
    assert ask(port, "/v1/models/m:predict", {"instances": [-1.0]}) == (418, b"handed over")
    # Python computes it again, and counts it.
    assert core_server.take_statistics() == []
    for _ in range(2):
        assert ask(port, "/v1/models/m:predict", {"instances": [1.0, 2.0]})[0] == 200
    (found,) = core_server.take_statistics()
    count, *times = found["executions"][2]
    assert (count, found["succeeded"], found["rows"], sum(found["runtime"][0])) == (2, 2, 4, 2)
    # No request shared a batch: what it took is the sum of its parts.
    assert times == [found[f"{part}_ns"] for part in ("input", "infer", "output")]
    assert min(times) > 0
    assert found["total_ns"] == found["queue_ns"] + sum(times)
    # Numbers and counts of native buckets, zeros, and the sum.
    assert found["batch_rows"] == ([(8, 2)], 0, 4.0)
    assert found["batch_padding"] == ([], 2, 0.0)
    assert found["batch_requests"] == ([(0, 2)], 0, 2.0)
    assert found["signature"] == "serving_default" and sum(count for _, count in found["queue"][0]) == 2


def test_inputs_of_strings_are_no_plan(server: tuple[Any, int]) -> None:
    core_server, _ = server
    assert not core_server.add_plan(
        model="m", version=1, label=None, signature="", wanted=[], answers=1, name="", backend="", run=run, max_rows=1,
        inputs=[("x", "string", None)], outputs=[("y", "string")], shared=True, parallel=1,
    )  # fmt: skip


def test_other_things_than_strings_are_handed_over(server: tuple[Any, int]) -> None:
    core_server, port = server
    assert core_server.add_plan(
        model="odd", version=None, label=None, signature="", wanted=[], answers=1, name="", backend="",
        run=lambda batch, waited: [((1,), [1.5])],
        max_rows=1, inputs=[("x", "float32", None)], outputs=[("y", "string")], shared=True, parallel=1,
    )  # fmt: skip
    assert ask(port, "/v1/models/odd:predict", {"instances": [1.0]}) == (418, b"handed over")


@pytest.mark.parametrize(("elsewhere", "largest"), [(False, 8), (True, 48)])
def test_only_batches_that_this_processor_computes_are_cut(
    server: tuple[Any, int], elsewhere: bool, largest: int
) -> None:
    core_server, port = server
    sizes: list[int] = []
    gate, entered = threading.Event(), threading.Event()
    gate.set()

    def double(batch: Sequence[tuple[bytes, tuple[int, ...]]], waited: object) -> Any:
        entered.set()
        gate.wait(30)
        ((data, shape),) = batch
        sizes.append(shape[0])
        # Short enough to be computed in place, where answers wait meanwhile.
        time.sleep(0.003)
        return [(shape, data)]

    assert core_server.add_plan(
        model="quick", version=None, label=None, signature="", wanted=[], answers=1, name="", backend="", run=double,
        inputs=[("x", "float32", [-1])], outputs=[("y", "float32")], max_rows=64, shared=True, parallel=1,
        elsewhere=elsewhere,
    )  # fmt: skip

    def eight() -> int:
        return ask(port, "/v1/models/quick:predict", {"instances": [1.0] * 8})[0]

    # So many that one which was slow by chance is forgotten.
    assert [eight() for _ in range(30)] == [200] * 30
    gate.clear()
    entered.clear()
    with ThreadPoolExecutor(7) as pool:
        waiting = [pool.submit(eight)]
        entered.wait(30)
        waiting += [pool.submit(eight) for _ in range(6)]
        until(lambda: core_server.waiting >= 7)
        gate.set()
        assert [each.result() for each in waiting] == [200] * 7
    assert (max(sizes), sum(sizes)) == (largest, 8 * 37)


def test_batching_parameters_are_kept(server: tuple[Any, int]) -> None:
    core_server, port = server
    batches: list[tuple[list[float], list[int]]] = []
    gate, entered = threading.Event(), threading.Event()
    gate.set()

    def double(batch: Sequence[tuple[bytes, tuple[int, ...]]], waited: Sequence[tuple[int, float]]) -> Any:
        entered.set()
        gate.wait(30)
        values = np.frombuffer(batch[0][0], np.float32)
        batches.append((values.tolist(), [rows for rows, _ in waited]))
        assert all(0 <= microseconds < 30e6 for _, microseconds in waited)
        return [(batch[0][1], (values * 2).tobytes())]

    for model, timeout_s, queued in (("patient", 20.0, 100), ("brief", 0.5, 100), ("narrow", 0.0, 4)):
        assert core_server.add_plan(
            model=model, version=None, label=None, signature="", wanted=[], answers=1, name="", backend="", run=double,
            inputs=[("x", "float32", [-1])], outputs=[("y", "float32")], shared=True, parallel=1, max_rows=4,
            batching=(timeout_s, queued, [2, 4]),
        )  # fmt: skip

    def predict(model: str, *values: float) -> tuple[int, Any]:
        status, body = ask(port, f"/v1/models/{model}:predict", {"instances": values})
        return status, json.loads(body).get("predictions") if status == 200 else body.decode()

    with ThreadPoolExecutor(4) as pool:
        # It is full, and waits for nothing more.
        started = time.monotonic()
        answers = list(pool.map(lambda value: predict("patient", value), [1.0, 2.0, 3.0, 4.0]))
        assert answers == [(200, [2.0]), (200, [4.0]), (200, [6.0]), (200, [8.0])]
        assert time.monotonic() - started < 15
        ((values, rows),) = batches
        assert (sorted(values), rows) == ([1.0, 2.0, 3.0, 4.0], [1, 1, 1, 1])
        batches.clear()
        # It is not full: its time passes, and it is padded.
        started = time.monotonic()
        assert predict("brief", 5.0, 6.0, 7.0) == (200, [10.0, 12.0, 14.0])
        assert 0.5 <= time.monotonic() - started < 15
        assert batches == [([5.0, 6.0, 7.0, 5.0], [3])]
        assert predict("brief", *[1.0] * 5) == (418, "handed over")
        # One is computed, four rows wait, and no more may.
        gate.clear()
        entered.clear()
        first = pool.submit(predict, "narrow", 1.0)
        assert entered.wait(30)
        waiting = [pool.submit(predict, "narrow", float(n), float(n)) for n in (2, 3)]
        until(lambda: core_server.waiting >= 3)
        status, text = predict("narrow", 4.0)
        assert (status, "The batch scheduling queue to which this task was submitted is full" in text) == (503, True)
        gate.set()
        assert [first.result(), *(each.result() for each in waiting)] == [
            (200, [2.0]), (200, [4.0, 4.0]), (200, [6.0, 6.0]),
        ]  # fmt: skip
