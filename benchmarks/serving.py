"""Measures the server on one core, beside others where they are installed, and writes docs/performance.md's table.

Both serve the same ONNX model with onnxruntime and one thread, pinned to one
core; the load generator (h2load, of Debian's nghttp2-client) has another one.
Rounds alternate, the ratio is taken round by round, and its median is shown.

    MODELYARD_TRITON_PYTHON=/venv/bin/python python -m benchmarks.serving [--write] [--rounds N] [--seconds S]

MODELYARD_TRITON_PYTHON names the Python of an environment with nvidia-pytriton,
whose wheel carries Triton's server; without it there are no ratios. benchmarks/peers.py
says how MLServer and BentoML come in.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.load import Request, compiled, load, machine, pinned, wait_for, write
from benchmarks.pages import write_section
from benchmarks.peers import (
    INPUT,
    MODEL,
    OUTPUTS,
    SHAPE,
    bentoml,
    mlserver,
    triton,
)

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
START, END = "<!-- serving:begin -->", "<!-- serving:end -->"
IN_FLIGHT = (1, 8, 64)
#: The overload run: what a request may have to wait, and how long the load lasts.
LIMIT_MS = 200
OFFER_S = 6


def main() -> int:
    """Measures, prints the section, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the section into docs/performance.md")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each server (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a round (default %(default)s)")
    parser.add_argument("--repository", type=Path, help="a model repository that holds fashion; else one is trained")
    parser.add_argument("--rows", default="grpc,rest,v2json,v2binary", help="what to measure (default %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        section = measure(Path(folder), args)
    print(section)
    if args.write:
        write_section(PAGE, START, END, section)
    return 0


def measure(work: Path, args: argparse.Namespace) -> str:
    """Runs everything and returns the section."""
    from tests.support.fashion import publish_fashion
    from tests.support.server import free_port

    model_dir = (args.repository.resolve() / MODEL) if args.repository else publish_fashion(work)
    version = max(path for path in model_dir.iterdir() if path.name.isdigit())
    onnx = version / "onnx" / "serving_default.onnx"
    python = os.environ.get("MODELYARD_TRITON_PYTHON", "")
    flags = ["--runtime=onnxruntime", f"--model_name={MODEL}", f"--model_base_path={model_dir}"]
    cold, memory = cold_start(flags, free_port(), free_port(), compiled(work / "bytecode"))
    ports = [free_port() for _ in range(4)]
    command = [sys.executable, "-m", "modelyard.serving", f"--port={ports[0]}", f"--rest_api_port={ports[1]}", *flags]
    lines = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(pinned(command, work / "server.log"))
        wait_for(f"http://127.0.0.1:{ports[1]}/v2/health/ready")
        if python:
            stack.enter_context(triton(work, onnx, python, grpc_port=ports[2], rest_port=ports[3]))
        for key, title in ROWS.items():
            if key not in args.rows.split(","):
                continue
            ours, theirs = requests(work, key, ports)
            for count in IN_FLIGHT:
                rates: list[tuple[float, float]] = []
                for _ in range(args.rounds):
                    rate = load(ours, count, args.seconds)
                    rates.append((rate, load(theirs, count, args.seconds) if python else float("nan")))
                mine, peer = (statistics.median(column) for column in zip(*rates, strict=True))
                ratio = statistics.median(one / other for one, other in rates)
                cells = [f"{peer:,.0f}", f"{ratio:.2f}"] if python else ["not installed", ""]
                lines.append(f"| {title} | {count} | {mine:,.0f} | {' | '.join(cells)} |")
                print(lines[-1], file=sys.stderr, flush=True)
        others = list(other_servers(work, onnx, ports, args))
    return "\n".join(
        [
            f"{machine()}, of which the server has one; Fashion-MNIST CNN, one image "
            f"a request, onnxruntime; median of {args.rounds} rounds of {args.seconds:g} s.",
            "",
            "| protocol | in flight | requests/s | Triton, requests/s | ratio |",
            "|---|---|---|---|---|",
            *lines,
            "",
            *others,
            f"In this process, with nothing around it, onnxruntime does {in_process(onnx):,.0f} such calls/s, and "
            f"{in_process(onnx, 32):,.0f} images/s in batches of 32.",
            "",
            overload(work),
            "",
            f"From the start of the process to the first answer: {cold:.2f} s; resident memory then: {memory:.0f} MB.",
        ]
    )


ROWS = {
    "grpc": "gRPC, tensors as bytes",
    "rest": "REST v1 (Triton: v2), JSON",
    "v2json": "REST v2, JSON",
    "v2binary": "REST v2, binary",
}


def requests(work: Path, key: str, ports: Sequence[int]) -> tuple[Request, Request]:
    """The same request for both servers."""
    from modelyard.wire import array_to_tensor, inference_pb2, serving_pb2

    grpc_port, rest_port, their_grpc, their_rest = ports
    x = np.random.default_rng(0).random(SHAPE).astype(np.float32)
    texts = np.round(x, 4)
    v2 = f"http://127.0.0.1:%d/v2/models/{MODEL}/infer"
    tensor = {"name": INPUT, "shape": SHAPE, "datatype": "FP32"}
    v2json = write(work / "v2.json", json.dumps({"inputs": [{**tensor, "data": texts.ravel().tolist()}]}).encode())
    if key == "grpc":
        mine = serving_pb2.PredictRequest()
        mine.model_spec.name = MODEL
        mine.inputs[INPUT].CopyFrom(array_to_tensor(x, as_content=True))
        other = inference_pb2.ModelInferRequest(model_name=MODEL, raw_input_contents=[x.tobytes()])
        other.inputs.add(name=INPUT, datatype="FP32", shape=SHAPE)
        pairs = (
            (grpc_port, "tensorflow.serving.PredictionService/Predict", mine.SerializeToString()),
            (their_grpc, "inference.GRPCInferenceService/ModelInfer", other.SerializeToString()),
        )
        headers = {"content-type": "application/grpc", "te": "trailers"}
        one, two = (
            Request(
                url=f"http://127.0.0.1:{port}/{path}",
                body=write(work / f"{port}.bin", b"\0" + struct.pack(">I", len(data)) + data),
                headers=headers,
                http1=False,
            )
            for port, path, data in pairs
        )
        return one, two
    if key == "rest":
        body = write(work / "v1.json", json.dumps({"instances": texts.tolist()}).encode())
        ours = Request(url=f"http://127.0.0.1:{rest_port}/v1/models/{MODEL}:predict", body=body)
        return ours, Request(url=v2 % their_rest, body=v2json)
    if key == "v2json":
        return Request(url=v2 % rest_port, body=v2json), Request(url=v2 % their_rest, body=v2json)
    head = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": x.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    body = write(work / "v2.bin", head + x.tobytes())
    headers = {"inference-header-content-length": str(len(head)), "content-type": "application/octet-stream"}
    return (
        Request(url=v2 % rest_port, body=body, headers=headers),
        Request(url=v2 % their_rest, body=body, headers=headers),
    )


def other_servers(work: Path, onnx: Path, ports: Sequence[int], args: argparse.Namespace) -> Iterator[str]:
    """A table of MLServer and BentoML, of those that are installed, beside the server on these ports."""
    from tests.support.server import free_port

    rows: list[str] = []

    def row(title: str, protocol: str, pair: tuple[Request, Request]) -> None:
        for count in IN_FLIGHT:
            rates = [
                (load(pair[0], count, args.seconds), load(pair[1], count, args.seconds)) for _ in range(args.rounds)
            ]
            mine, other = (statistics.median(column) for column in zip(*rates, strict=True))
            ratio = statistics.median(one / two for one, two in rates)
            rows.append(f"| {title} | {protocol} | {count} | {mine:,.0f} | {other:,.0f} | {ratio:.1f} |")
            print(rows[-1], file=sys.stderr, flush=True)

    python = os.environ.get("MODELYARD_MLSERVER_PYTHON", "")
    if python:
        grpc_port, rest_port = free_port(), free_port()
        theirs = [*ports[:2], grpc_port, rest_port]
        with mlserver(work, onnx, python, grpc_port=grpc_port, rest_port=rest_port, metrics_port=free_port()):
            check_v2(f"grpc+v2://127.0.0.1:{grpc_port}", onnx)
            check_v2(f"http+v2://127.0.0.1:{rest_port}", onnx)
            row("MLServer", "gRPC", requests(work, "grpc", theirs))
            row("MLServer", "REST, JSON", requests(work, "rest", theirs))
    python = os.environ.get("MODELYARD_BENTOML_PYTHON", "")
    if python:
        rest_port = free_port()
        with bentoml(work, onnx, python, rest_port=rest_port):
            ours, _ = requests(work, "rest", [*ports[:2], 0, 0])
            body = json.dumps({INPUT: json.loads(ours.body.read_bytes())["instances"]}).encode()
            url = f"http://127.0.0.1:{rest_port}/predict"
            post = urllib.request.Request(url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(post, timeout=30) as response:
                check(np.array(json.load(response)), np.array(json.loads(body)[INPUT]), onnx)
            row("BentoML", "REST, JSON", (ours, Request(url=url, body=write(work / "bentoml.json", body))))
    if rows:
        yield from (
            "Others on the same core, with the same model and their adaptive batching, as their documentation says:",
            "",
            "| server | protocol | in flight | requests/s here | requests/s there | ratio |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        )


def check_v2(url: str, onnx: Path) -> None:
    """Has a server of the Open Inference Protocol answer one request: h2load does not see the status of a gRPC call."""
    from modelyard.clients import connect

    x = np.random.default_rng(1).random(SHAPE).astype(np.float32)
    with connect(url) as client:
        answer = client.predict(MODEL, {INPUT: x})
    check(answer["probabilities"], x, onnx)


def check(answer: npt.NDArray[Any], x: npt.NDArray[Any], onnx: Path) -> None:
    """Compares an answer with onnxruntime's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(onnx), providers=["CPUExecutionProvider"])
    (expected,) = session.run([OUTPUTS[1]], {INPUT: x.astype(np.float32)})
    if not np.allclose(np.reshape(answer, expected.shape), expected, atol=1e-4):
        raise RuntimeError(f"a server answers {answer}; expected {expected}")


def cold_start(flags: Sequence[str], grpc_port: int, rest_port: int, env: Mapping[str, str]) -> tuple[float, float]:
    """Seconds from the process's start to its first answer, and its resident memory in MB; median of 5 starts."""
    body = json.dumps({"instances": np.zeros(SHAPE).tolist()}).encode()
    url = f"http://127.0.0.1:{rest_port}/v1/models/{MODEL}:predict"
    results = []
    # The first one leaves the bytecode for those that count.
    for _ in range(6):
        started = time.monotonic()
        command = [sys.executable, "-m", "modelyard.serving", f"--port={grpc_port}", f"--rest_api_port={rest_port}"]
        process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL, env=env)
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(url, body, timeout=5):
                break
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with {process.returncode}: {' '.join([*command, *flags])}")
            time.sleep(0.005)
        results.append((time.monotonic() - started, psutil.Process(process.pid).memory_info().rss / 1e6))
        process.terminate()
        process.wait(30)
    seconds, memory = (statistics.median(column) for column in zip(*results[1:], strict=True))
    return seconds, memory


def overload(work: Path) -> str:
    """Offers three times the capacity, whether or not answers come back."""
    from tests.support.models import publish_slow

    publish_slow(work / "slow", loops=200, tried=True)
    alone = _overload(work, "--greedy_batching=false")
    together = _overload(work, "--greedy_batching=true")
    seconds, capacity = 1 / alone.capacity, alone.capacity
    return (
        f"Overload: a model that takes {1e3 * seconds:.1f} ms, each request computed alone, is offered three times its "
        f"capacity of {capacity:.0f} requests/s for {OFFER_S} s (gRPC, open loop, --max_queue_delay_ms={LIMIT_MS}): "
        f"{alone.goodput:.0f} requests/s are answered ({alone.goodput / capacity:.0%} of capacity), p99 "
        f"{alone.p99 * 1e3:.0f} ms, {alone.refused} are refused on arrival, {alone.failed} fail otherwise, and memory "
        f"grows by {alone.growth:.1f} MB.\n\n"
        f"This model takes as long for 64 rows as for one. Where requests share batches, which is the default, 8 "
        f"callers, each with one request at a time, have {together.capacity:.0f} answers/s; of three times as many "
        f"requests/s {together.goodput:.0f} are answered, p99 {together.p99 * 1e3:.0f} ms, and "
        f"{together.refused} are refused on arrival."
    )


@dataclass(frozen=True, kw_only=True)
class _Overload:
    capacity: float
    goodput: float
    p99: float
    refused: int
    failed: int
    growth: float


def _overload(work: Path, flag: str) -> _Overload:
    from tests.support.server import free_port

    grpc_port, rest_port = free_port(), free_port()
    command = [
        sys.executable, "-m", "modelyard.serving", f"--port={grpc_port}", f"--rest_api_port={rest_port}",
        "--model_name=slow", f"--model_base_path={work / 'slow'}", f"--max_queue_delay_ms={LIMIT_MS}", flag,
    ]  # fmt: skip
    with pinned(command, work / "slow.log"):
        wait_for(f"http://127.0.0.1:{rest_port}/v2/health/ready")
        os.sched_setaffinity(0, {1})
        try:
            capacity, _, _, _ = asyncio.run(offer(grpc_port, None))
            before = memory_of(rest_port)
            goodput, p99, refused, failed = asyncio.run(offer(grpc_port, 3 * capacity))
            growth = memory_of(rest_port) - before
        finally:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return _Overload(capacity=capacity, goodput=goodput, p99=p99, refused=refused, failed=failed, growth=growth)


async def offer(port: int, rate: float | None) -> tuple[float, float, int, int]:
    """Answers a second, their p99 in seconds, refusals, other failures; without a rate, 8 callers in a closed loop."""
    import grpc

    from modelyard.wire import PREDICTION_SERVICE, array_to_tensor, serving_pb2

    message = serving_pb2.PredictRequest()
    message.model_spec.name = "slow"
    message.inputs["x"].CopyFrom(array_to_tensor(np.zeros(1, np.float32), as_content=True))
    data = message.SerializeToString()
    times: list[float] = []
    refused = failed = 0
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        predict = channel.unary_unary(PREDICTION_SERVICE["Predict"].path, bytes, bytes)

        async def one() -> None:
            nonlocal refused, failed
            started = time.perf_counter()
            try:
                await predict(data, timeout=20)
                times.append(time.perf_counter() - started)
            except grpc.aio.AioRpcError as exc:
                if exc.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    refused += 1
                else:
                    failed += 1

        async def closed(end: float) -> None:
            while time.perf_counter() < end:
                await one()

        for _ in range(20):
            await one()
        times.clear()
        started = time.perf_counter()
        if rate is None:
            await asyncio.gather(*(closed(started + 3) for _ in range(8)))
        else:
            tasks: list[asyncio.Task[None]] = []
            while (now := time.perf_counter() - started) < OFFER_S:
                tasks += [asyncio.ensure_future(one()) for _ in range(int(now * rate) - len(tasks))]
                await asyncio.sleep(0.002)
            await asyncio.gather(*tasks)
        seconds = time.perf_counter() - started
    return len(times) / seconds, float(np.quantile(times, 0.99)), refused, failed


def memory_of(port: int) -> float:
    """Resident memory of the process that listens on a port, in MB."""
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        if listens and connection.pid:
            return float(psutil.Process(connection.pid).memory_info().rss) / 1e6
    raise RuntimeError(f"nobody listens on port {port}")


def in_process(onnx: Path, rows: int = 1) -> float:
    """Images a second of onnxruntime alone, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    x = np.zeros((rows, *SHAPE[1:]), np.float32)
    names = [output.name for output in session.get_outputs()]
    calls, end = 0, time.perf_counter() + 1
    while time.perf_counter() < end:
        session.run(names, {INPUT: x})
        calls += 1
    return calls * rows


if __name__ == "__main__":
    raise SystemExit(main())
