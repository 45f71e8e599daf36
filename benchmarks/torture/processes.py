"""Process faults under load: killed, stopped, without descriptors or memory, with backends that break."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
from onnx import TensorProto, helper

from benchmarks.torture.cases import Result, Scratch, case, expect
from benchmarks.torture.repository import SEED, SOON_S, served, wrapped
from modelyard.artifact import Signature, Source, TensorSpec, list_versions, verify_version
from modelyard.clients import Client, ClientOptions, RetryOptions, connect
from modelyard.errors import ModelyardError
from tests.support.admin import ask, available
from tests.support.models import publish_affine, publish_graphs, publish_hungry
from tests.support.server import RunningServer, serve
from tests.support.waiting import until

#: A deadline is kept when the answer, or the error, is there this much later.
LATE_S = 1.0


@contextlib.contextmanager
def crowd(clients: list[Client], timeout_s: float, *, errors: bool = True) -> Iterator[list[str]]:
    """Calls y = 2 x + 1 over all clients until the block ends; yields what went wrong, or took too long.

    A server that is not there answers nothing, so errors are right answers unless ``errors`` says otherwise; but some
    calls are answered.
    """
    wrong: list[str] = []
    ended = False

    def call(client: Client, x: float) -> int:
        answered = 0
        while not ended:
            x += 1
            started = time.monotonic()
            try:
                answer = client.predict("m", {"x": [x]}, timeout_s=timeout_s)["y"].tolist()
                answered += 1
                if answer != [2 * x + 1]:
                    wrong.append(f"{x} was answered by {answer}")
            except ModelyardError as exc:
                if not errors:
                    wrong.append(f"{x} was answered by {exc}")
                time.sleep(0.01)
            if time.monotonic() - started > timeout_s + LATE_S:
                wrong.append(f"a call took {time.monotonic() - started:.1f} s, its deadline was {timeout_s} s")
        return answered

    with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
        calls = [pool.submit(call, client, 1e3 * number) for number, client in enumerate(clients)]
        try:
            yield wrong
        finally:
            ended = True
    expect(sum(each.result() for each in calls), "no call was answered")


@case("processes", "a server killed at random moments", own=True, transports=("native", "python"))
def killed_server(scratch: Scratch) -> Result:
    """SIGKILL while versions come and clients call; the next one takes the same ports and folders."""
    model, rng, slowest = scratch.folder / "m", random.Random(SEED), 0.0
    publish_affine(model, slope=2.0, intercept=1.0)
    count = scratch.count(20, 2)
    command = ["-m", "modelyard.serving", f"--transport={scratch.transport}", f"--model_base_path={model}"]
    command += ["--model_name=m", "--file_system_poll_wait_seconds=0.1"]
    with serve(model, model="m", log_dir=scratch.folder, flags=command[2:3]) as server:
        command += [f"--port={server.grpc_port}", f"--rest_api_port={server.rest_port}"]
        urls = [f"grpc://{server.grpc_address}", server.rest_url]
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(connect(url)) for url in urls]
            wrong = stack.enter_context(crowd(clients, timeout_s=2.0))
            process = server.process
            for _ in range(count):
                time.sleep(rng.uniform(0.0, 0.5))
                newest = publish_affine(model, slope=2.0, intercept=1.0).number
                time.sleep(rng.uniform(0.0, 0.2))
                process.kill()
                process.wait()
                started = time.monotonic()
                with server.log.open("ab") as log:
                    process = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)
                again = RunningServer(
                    process=process, model="m", grpc_port=server.grpc_port, rest_port=server.rest_port, log=server.log
                )
                again.wait_available(newest)
                slowest = max(slowest, time.monotonic() - started)
            for client in clients:
                expect(client.predict("m", {"x": [1.0]}, timeout_s=5)["y"].tolist() == [3.0], "the clients of before")
        process.terminate()
        process.wait(30)
    expect(not wrong, "; ".join(wrong[:3]))
    return Result(
        inputs=count, text=f"seed {SEED}; no wrong answer, every deadline kept", figures={"back_after_s": slowest}
    )


@case("processes", "a server that is stopped and goes on", own=True, transports=("native", "python"), short=False)
def stopped_server(scratch: Scratch) -> Result:
    """SIGSTOP for ten seconds: callers keep their deadlines, and the newest requests are answered at once."""
    model, seconds = scratch.folder / "m", scratch.count(10, 1)
    publish_affine(model, slope=2.0, intercept=1.0)
    with serve(model, model="m", log_dir=scratch.folder, flags=[f"--transport={scratch.transport}"]) as server:
        with contextlib.ExitStack() as stack:
            urls = [f"grpc://{server.grpc_address}", server.rest_url]
            clients = [stack.enter_context(connect(url)) for url in urls * 8]
            wrong = stack.enter_context(crowd(clients, timeout_s=0.5))
            time.sleep(0.2)
            os.kill(server.process.pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(server.process.pid, signal.SIGCONT)
            started = time.monotonic()
            until(lambda: ask(server, "m") == 3.0, SOON_S)
            back = time.monotonic() - started
        expect(not wrong, "; ".join(wrong[:3]))
        expect("Traceback" not in server.log_text(), server.log_text()[-500:])
    return Result(inputs=1, text=f"{seconds} s; every deadline kept", figures={"answers_after_s": back})


@case("processes", "no descriptor left", own=True, transports=("native", "python"))
def no_descriptors(scratch: Scratch) -> Result:
    """200 connections to a server that may open 90 files: versions come once they are gone."""
    model = scratch.folder / "m"
    publish_affine(model, slope=2.0, intercept=1.0)
    python = wrapped(scratch.folder, 'prlimit --nofile=90 "$PYTHON" "$@"')
    flags = [f"--transport={scratch.transport}"]
    with serve(model, model="m", log_dir=scratch.folder, flags=flags, python=python) as server:
        process = psutil.Process(server.process.pid)
        before = process.num_fds()
        with contextlib.ExitStack() as crowd:
            for number in range(200):
                port = (server.rest_port, server.grpc_port)[number % 2]
                crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            until(lambda: process.num_fds() >= 89, SOON_S, lambda: f"{process.num_fds()} are open")
            newer = publish_affine(model, slope=2.0, intercept=1.0).number
            until(lambda: "Too many open files" in server.log_text(), SOON_S, server.log_text)
            busy = process.cpu_percent(1.0)
            expect(busy < 50, f"it turns at {busy:.0f} % of a core meanwhile")
        served(server, "m", newer, "afterwards", 30)
        expect(ask(server, "m") == 3.0, "its answer afterwards")
        until(lambda: process.num_fds() <= before + 4, SOON_S, lambda: f"{process.num_fds()} are open, {before} before")
    return Result(inputs=200, text="says so, and goes on when they are back")


@case("processes", "no memory left", own=True, transports=("native", "python"), short=False)
def no_memory(scratch: Scratch) -> Result:
    """Batches that need 10 GB, in a process that may take 2 GB more."""
    hungry, good = scratch.folder / "models" / "hungry", scratch.folder / "models" / "m"
    publish_affine(good, slope=2.0, intercept=1.0)
    publish_hungry(hungry, megabytes=10)
    count, batch = scratch.count(50, 5), json.dumps({"instances": [1.0] * 1000}).encode()
    flags = [f"--transport={scratch.transport}", f"--model_repository={hungry.parent}"]
    with serve(None, model="m", log_dir=scratch.folder, flags=flags) as server:
        served(server, "hungry", 1, "the start")
        process = psutil.Process(server.process.pid)
        limit = process.memory_info().vms + (2 << 30)
        subprocess.run(["prlimit", f"--as={limit}", f"--pid={process.pid}"], check=True)
        for _ in range(count):
            status, text = server.post("/v1/models/hungry:predict", batch)
            expect(status >= 400, f"the hungry model answers {status} {text[:100]}")
            expect(ask(server, "hungry") == 1.0, "a single row of the hungry model")
            expect(ask(server, "m") == 3.0, "the model beside it")
        expect(server.process.poll() is None, "it lives")
    return Result(
        inputs=count,
        text=f"each refused with {status} {text[:100]!r}; single rows and the model beside it are answered",
    )


def _odd(kind: str, model: Path) -> None:
    """Publishes a version whose outputs are not what its manifest says."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])
    dtype, shape = (TensorProto.INT64 if kind == "dtype" else TensorProto.FLOAT), [] if kind == "scalar" else ["n"]
    nodes = {
        "rows": helper.make_node("Concat", ["x", "x"], ["y"], axis=0),
        "one row": helper.make_node("ReduceSum", ["x"], ["y"], keepdims=1),
        "scalar": helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0),
        "dtype": helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT64),
        "NaN": helper.make_node("Log", ["x"], ["y"]),
    }
    y = helper.make_tensor_value_info("y", dtype, shape)
    spec = TensorSpec(name="x", dtype="float32", shape=(-1,))
    signature = Signature(
        inputs=(spec,), outputs=(TensorSpec(name="y", dtype="float32", shape=(-1,)),), compute="serving_default"
    )
    graph = helper.make_graph([nodes[kind]], "odd", [x], [y])
    publish_graphs(model, {"serving_default": graph}, {"serving_default": signature}, Source())


@case("processes", "outputs of wrong shapes and dtypes, and NaN", own=True, transports=("native", "python"))
def odd_outputs(scratch: Scratch) -> Result:
    """64 callers at once of each: every one is answered with its own rows, or with an error."""
    kinds = ("rows", "one row", "scalar", "dtype", "NaN")
    models = scratch.folder / "models"
    publish_affine(models / "m", slope=2.0, intercept=1.0)
    for kind in kinds:
        _odd(kind, models / kind.replace(" ", "-"))
    flags = [f"--transport={scratch.transport}", f"--model_repository={models}", "--enable_batching"]
    with serve(None, model="m", log_dir=scratch.folder, flags=flags) as server:
        for kind in kinds:
            name = kind.replace(" ", "-")
            served(server, name, 1, kind)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                rows = [-float(number + 1) for number in range(64)]
                answers = list(pool.map(partial(_ask, server, name), rows))
            for x, answer in zip(rows, answers, strict=True):
                right = {"dtype": x, "one row": x}.get(kind)
                if isinstance(answer, tuple):
                    expect(kind != "NaN" and answer[0] in (400, 500), f"{kind}: {answer}")
                else:
                    expect(
                        answer == right or (kind == "NaN" and answer != answer), f"{kind}: {x} is answered by {answer}"
                    )
            expect(ask(server, "m") == 3.0, f"the model beside {kind}")
    return Result(inputs=64 * len(kinds), text="each caller is answered with its own row, or refused")


def _ask(server: RunningServer, name: str, x: float) -> object:
    return ask(server, name, x=x)


EXPORT = """
import sys, keras, numpy as np
from modelyard.export import ExportOptions, export
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3, name="y")])
options = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.1, runtimes=(), formats=("onnx",))
data = {"x": np.random.default_rng(0).random((16, 4), np.float32)}
print("ready", flush=True)
export(model, sys.argv[1], data=data, options=options)
"""


@case("processes", "exporters killed at random moments, two at a time", own=True, short=False)
def killed_exporters(scratch: Scratch) -> Result:
    """SIGKILL at random; what is published is whole, and a last one that is let be publishes."""
    model, rng = scratch.folder / "m", random.Random(SEED)
    command = [sys.executable, "-c", EXPORT, str(model)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    for _ in range(10):
        pair = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
            for _ in range(2)
        ]
        for process in pair:
            if process.stdout is not None:
                process.stdout.readline()
        for process in pair:
            time.sleep(rng.uniform(0.0, 5.0))
            process.kill()
            process.communicate()
    whole = [verify_version(version).version for version in list_versions(model)] if model.exists() else []
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=300)
    last = list_versions(model)[-1]
    expect(verify_version(last).version == max(whole, default=0) + 1, f"{last} follows {whole}")
    return Result(inputs=20, text=f"seed {SEED}; {len(whole)} had published before, all whole")


@case("processes", "one of three servers dead, and retries", own=True, short=False)
def dead_server(scratch: Scratch) -> Result:
    """A client of three servers, one of which is killed: it asks the others, and no server is asked twice as much."""
    model = scratch.folder / "m"
    publish_affine(model, slope=2.0, intercept=1.0)
    count = scratch.count(2000, 200)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(serve(model, model="m", log_dir=scratch.folder)) for _ in range(3)]
        urls = [f"grpc://{server.grpc_address}" for server in servers]
        client = stack.enter_context(connect(urls, options=ClientOptions(retry=RetryOptions(attempts=3))))
        failed = 0
        for number in range(count):
            if number == count // 3:
                servers[0].process.kill()
            started = time.monotonic()
            try:
                answer = client.predict("m", {"x": [float(number)]}, timeout_s=2.0)["y"].tolist()
                expect(answer == [2.0 * number + 1], f"{number} was answered by {answer}")
            except ModelyardError:
                failed += 1
            expect(time.monotonic() - started < 2.0 + LATE_S, f"a call took {time.monotonic() - started:.1f} s")
        expect(failed == 0, f"{failed} of {count} failed")
        expect(all(available(each, "m") for each in servers[1:]), "the others serve")
    return Result(inputs=count, text="none failed")
