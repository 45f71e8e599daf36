"""Operations that need a model's metadata at the same time ask for it once, and share what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from modelyard import errors
from modelyard.clients import AsyncClient, ClientOptions, connect, connect_async
from tests.clients.conftest import peer
from tests.clients.http_script import read_message
from tests.support.waiting import until

_X = {"name": "x", "dtype": "DT_FLOAT", "tensor_shape": {"dim": [{"size": "-1"}]}}
_METADATA = {
    "model_spec": {"name": "m", "signature_name": "", "version": "1"},
    "metadata": {
        "signature_def": {
            "signature_def": {
                "serving_default": {"inputs": {"x": _X}, "outputs": {"y": _X}, "method_name": "predict"},
            }
        }
    },
}
_ROWS: dict[str, object] = {"x": [1.0]}


class Model:
    """A model over REST; its metadata come when the gate is open, after as many failures as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.asked = 0
        self.failures = failures
        self.gate = threading.Event()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        with peer(self._answer) as port:
            yield f"http://127.0.0.1:{port}"

    def _answer(self, connection: socket.socket) -> None:
        while (message := read_message(connection)) is not None:
            status, body = "200 OK", b'{"outputs": [2.0]}'
            if b"/metadata" in message[0]:
                with self._lock:
                    self.asked += 1
                    failed = self.asked <= self.failures
                self.gate.wait(20)
                status = "500 Broken" if failed else status
                body = b'{"error": "broken"}' if failed else json.dumps(_METADATA).encode()
            connection.sendall(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)


def _values(answers: list[Any]) -> list[Any]:
    return [answer if isinstance(answer, BaseException) else answer["y"].tolist() for answer in answers]


def test_threads_ask_once() -> None:
    model = Model()
    with model.serve() as url, connect(url) as client, ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(client.predict, "m", _ROWS) for _ in range(8)]
        threading.Timer(0.3, model.gate.set).start()
        assert _values([call.result(20) for call in calls]) == [[2.0]] * 8
    assert model.asked == 1


def test_threads_share_an_error_and_the_next_call_asks_again() -> None:
    model = Model(failures=1)
    with model.serve() as url, connect(url) as client, ThreadPoolExecutor(8) as threads:
        calls = [threads.submit(client.predict, "m", _ROWS) for _ in range(8)]
        threading.Timer(0.3, model.gate.set).start()
        failures = [call.exception(20) for call in calls]
        assert {type(failure) for failure in failures} == {errors.InternalError}
        assert len({id(failure) for failure in failures}) == 8
        assert model.asked == 1
        assert client.predict("m", _ROWS)["y"].tolist() == [2.0]


async def _begun(client: AsyncClient, model: Model, count: int) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(client.predict("m", _ROWS)) for _ in range(count)]
    while not model.asked:
        await asyncio.sleep(0.01)
    return tasks


@pytest.mark.parametrize("failures", [0, 1])
def test_tasks_ask_once(failures: int) -> None:
    async def run(url: str) -> list[Any]:
        async with connect_async(url) as client:
            tasks = await _begun(client, model, 50)
            model.gate.set()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert model.asked == 1
            assert (await client.predict("m", _ROWS))["y"].tolist() == [2.0]
            return answers

    model = Model(failures)
    with model.serve() as url:
        answers = asyncio.run(run(url))
    if failures:
        assert {type(answer) for answer in answers} == {errors.InternalError}
    else:
        assert _values(answers) == [[2.0]] * 50


@pytest.mark.parametrize("cancelled", [0, 3])
def test_a_cancelled_task_cancels_no_other(cancelled: int) -> None:
    async def run(url: str) -> list[Any]:
        async with connect_async(url) as client:
            tasks = await _begun(client, model, 5)
            tasks.pop(cancelled).cancel()
            await asyncio.sleep(0.05)
            model.gate.set()
            return await asyncio.gather(*tasks)

    model = Model()
    with model.serve() as url:
        assert _values(asyncio.run(run(url))) == [[2.0]] * 4
    # The first one asks; where it is cancelled, another one asks anew.
    assert model.asked == (2 if cancelled == 0 else 1)


def test_each_waits_no_longer_than_its_own_deadline() -> None:
    async def run(url: str) -> None:
        async with connect_async(url, ClientOptions(timeout_s=20)) as client:
            short = asyncio.create_task(client.predict("m", _ROWS, timeout_s=0.2))
            (long,) = await _begun(client, model, 1)
            late = asyncio.create_task(client.predict("m", _ROWS, timeout_s=0.3))
            for task in (short, late):
                with pytest.raises(errors.DeadlineExceededError, match=r"0\.[23]"):
                    await task
            model.gate.set()
            assert (await long)["y"].tolist() == [2.0]

    model = Model()
    with model.serve() as url:
        asyncio.run(run(url))


def test_a_server_that_names_other_signatures_each_time_fills_no_memory() -> None:
    asked: list[int] = []
    signature = {"inputs": {"x": _X}, "outputs": {"y": _X}, "method_name": "predict"}

    def answer(connection: socket.socket) -> None:
        while (message := read_message(connection)) is not None:
            body = b'{"outputs": "nothing that suits"}'
            if b"/metadata" in message[0]:
                asked.append(len(asked))
                names = ["serving_default", *(f"s{len(asked)}_{number}" for number in range(400))]
                document = {"signature_def": {"signature_def": dict.fromkeys(names, signature)}}
                body = json.dumps({**_METADATA, "metadata": document}).encode()
            connection.sendall(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    with peer(answer) as port, connect(f"http://127.0.0.1:{port}") as client:
        for _ in range(8):
            with pytest.raises(errors.ProtocolError):
                client.predict("m", _ROWS)
        assert len(asked) >= 8
        assert len(client._engine.protocol._cache) < 1500


#: A thread asks, and waits for the answer, while the process is forked; the parent hands its child's exit code on.
FORKED = """
import os, sys, threading, time
from modelyard.clients import connect
client = connect(sys.argv[1])
threading.Thread(target=client.predict, args=("m", {"x": [1.0]})).start()
while not client._engine.protocol._questions:
    time.sleep(0.01)
child = os.fork()
if not child:
    os._exit(0 if client.predict("m", {"x": [1.0]}, timeout_s=10)["y"].tolist() == [2.0] else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_asks_itself() -> None:
    model = Model()
    with model.serve() as url:
        with subprocess.Popen([sys.executable, "-c", FORKED, url]) as process:
            until(lambda: model.asked == 2 or process.poll() is not None)
            model.gate.set()
            assert process.wait(30) == 0
    assert model.asked == 2
