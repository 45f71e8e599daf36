"""Measures the server on one core, beside Triton's where that is installed, and writes docs/performance.md's table.

Both serve the same ONNX model with onnxruntime and one thread, pinned to one
core; the load generator (h2load, of Debian's nghttp2-client) has another one.
Rounds alternate, the ratio is taken round by round, and its median is shown.

    MODELYARD_TRITON_PYTHON=/venv/bin/python python docs/bench_serving.py [--write] [--rounds N] [--seconds S]

MODELYARD_TRITON_PYTHON names the Python of an environment with nvidia-pytriton,
whose wheel carries Triton's server; without it there are no ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

# Beside this script, which is where Python looks first.
from pages import write_section  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
START, END = "<!-- serving:begin -->", "<!-- serving:end -->"
IN_FLIGHT = (1, 8, 64)
MODEL, INPUT = "fashion", "image"
SHAPE = (1, 28, 28, 1)
#: The overload run: what a request may have to wait, and how long the load lasts.
LIMIT_MS = 200
OFFER_S = 6

TRITON_MODEL = """
import sys
sys.path.insert(0, {site!r})
import numpy as np, onnxruntime, triton_python_backend_utils as pb
class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession({onnx!r}, options, providers=["CPUExecutionProvider"])
        self.names = [o.name for o in self.session.get_outputs() if o.type != "tensor(string)"]
    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, {name!r}).as_numpy() for request in requests]
        merged = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        outputs = self.session.run(self.names, {{{name!r}: merged}})
        answers, start = [], 0
        for array in inputs:
            end = start + len(array)
            tensors = [pb.Tensor(n, y[start:end].reshape(end - start, -1)) for n, y in zip(self.names, outputs)]
            answers.append(pb.InferenceResponse(tensors))
            start = end
        return answers
"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is sent to one server."""

    url: str
    body: Path
    headers: Mapping[str, str] = field(default_factory=dict)
    http1: bool = True


def main() -> int:
    """Measures, prints the section, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the section into docs/performance.md")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each server (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a round (default %(default)s)")
    parser.add_argument("--repository", type=Path, help="a model repository that holds fashion; else one is trained")
    parser.add_argument("--rows", default="grpc,rest,v2json,v2binary", help="what to measure (default %(default)s)")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))
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

    model_dir = (args.repository / MODEL) if args.repository else publish_fashion(work)
    version = max(path for path in model_dir.iterdir() if path.name.isdigit())
    onnx = version / "onnx" / "serving_default.onnx"
    python = os.environ.get("MODELYARD_TRITON_PYTHON", "")
    flags = ["--runtime=onnxruntime", f"--model_name={MODEL}", f"--model_base_path={model_dir}"]
    cold, memory = cold_start(flags, free_port(), free_port())
    ports = [free_port() for _ in range(4)]
    command = [sys.executable, "-m", "modelyard.serving", f"--port={ports[0]}", f"--rest_api_port={ports[1]}", *flags]
    lines = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(pinned(command, work / "server.log"))
        wait_for(f"http://127.0.0.1:{ports[1]}/v2/health/ready")
        if python:
            stack.enter_context(triton(work, onnx, python, grpc_port=ports[2], rest_port=ports[3]))
            wait_for(f"http://127.0.0.1:{ports[3]}/v2/health/ready")
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
    return "\n".join(
        [
            f"{platform.machine()}, {os.cpu_count()} cores, of which the server has one; Fashion-MNIST CNN, one image "
            f"a request, onnxruntime; median of {args.rounds} rounds of {args.seconds:g} s.",
            "",
            "| protocol | in flight | requests/s | Triton, requests/s | ratio |",
            "|---|---|---|---|---|",
            *lines,
            "",
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


def write(path: Path, data: bytes) -> Path:
    """Writes a body for h2load."""
    path.write_bytes(data)
    return path


def load(request: Request, count: int, seconds: float) -> float:
    """Requests a second; any that fails is an error."""
    connections, streams = (count, 1) if request.http1 or count <= 8 else (8, count // 8)
    command = [
        "taskset", "-c", "1", "h2load", "-t", "1", "-c", str(connections), "-m", str(streams), "-d", str(request.body),
        "--warm-up-time=300ms", "-D", f"{round(1e3 * seconds)}ms", *(["--h1"] if request.http1 else []),
    ]  # fmt: skip
    for name, value in request.headers.items():
        command += ["-H", f"{name}: {value}"]
    text = subprocess.run([*command, request.url], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", text)
    if found is None or int(found[3]) or int(found[4]) or not int(found[2]):
        raise RuntimeError(f"load on {request.url} failed:\n{text[-800:]}")
    return int(found[2]) / seconds


@contextlib.contextmanager
def pinned(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[None]:
    """A server on core 0."""
    with log.open("wb") as output:
        process = subprocess.Popen(["taskset", "-c", "0", *command], stdout=output, stderr=output, env=env)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def triton(work: Path, onnx: Path, python: str, *, grpc_port: int, rest_port: int) -> Iterator[None]:
    """Triton's own server with its Python backend, one instance, dynamic batching."""
    ask = "import sys, sysconfig as s; print(s.get_path('purelib'), s.get_config_var('LIBDIR'), *sys.version_info[:2])"
    site, libraries, major, minor = subprocess.check_output([python, "-c", ask], text=True).split()
    root = Path(site) / "pytriton" / "tritonserver"
    stub = root / f"python_backend_stubs/{major}.{minor}/triton_python_backend_stub"
    target = root / "backends/python/triton_python_backend_stub"
    if not target.exists():
        target.write_bytes(stub.read_bytes())
        target.chmod(0o755)
    folder = work / "triton" / MODEL / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(TRITON_MODEL.format(site=site, onnx=str(onnx.resolve()), name=INPUT))
    dims = ",".join(map(str, SHAPE[1:]))
    (folder.parent / "config.pbtxt").write_text(
        f'name: "{MODEL}"\nbackend: "python"\nmax_batch_size: 64\n'
        f'input [{{name: "{INPUT}" data_type: TYPE_FP32 dims: [{dims}]}}]\n'
        'output [{name: "class_id" data_type: TYPE_INT64 dims: [1]}, '
        '{name: "probabilities" data_type: TYPE_FP32 dims: [10]}]\n'
        "instance_group [{kind: KIND_CPU count: 1}]\ndynamic_batching { max_queue_delay_microseconds: 500 }\n"
    )
    env = {**os.environ, "LD_LIBRARY_PATH": f"{site}/nvidia_pytriton.libs:{libraries}", "PYTHONPATH": site}
    command = [
        str(root / "bin/tritonserver"), f"--model-repository={work / 'triton'}", f"--http-port={rest_port}",
        f"--grpc-port={grpc_port}", f"--backend-directory={root / 'backends'}", "--allow-metrics=false",
    ]  # fmt: skip
    with pinned(command, work / "triton.log", env):
        yield


def wait_for(url: str) -> None:
    """Waits until a server says 200."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as response:
            if response.status == 200:
                return
        time.sleep(0.1)
    raise TimeoutError(f"no 200 from {url}")


def cold_start(flags: Sequence[str], grpc_port: int, rest_port: int) -> tuple[float, float]:
    """Seconds from the process's start to its first answer, and its resident memory in MB; median of 3 starts."""
    body = json.dumps({"instances": np.zeros(SHAPE).tolist()}).encode()
    url = f"http://127.0.0.1:{rest_port}/v1/models/{MODEL}:predict"
    results = []
    for _ in range(3):
        started = time.monotonic()
        command = [sys.executable, "-m", "modelyard.serving", f"--port={grpc_port}", f"--rest_api_port={rest_port}"]
        process = subprocess.Popen([*command, *flags], stderr=subprocess.DEVNULL)
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(url, body, timeout=5):
                break
            time.sleep(0.005)
        results.append((time.monotonic() - started, psutil.Process(process.pid).memory_info().rss / 1e6))
        process.terminate()
        process.wait(30)
    seconds, memory = (statistics.median(column) for column in zip(*results, strict=True))
    return seconds, memory


def overload(work: Path) -> str:
    """Offers three times the capacity, whether or not answers come back."""
    from tests.support.models import publish_slow
    from tests.support.server import free_port

    publish_slow(work / "slow", loops=200)
    grpc_port, rest_port = free_port(), free_port()
    command = [
        sys.executable, "-m", "modelyard.serving", f"--port={grpc_port}", f"--rest_api_port={rest_port}",
        "--model_name=slow", f"--model_base_path={work / 'slow'}", f"--max_queue_delay_ms={LIMIT_MS}",
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
    return (
        f"Overload: a model that takes {1e3 / capacity:.1f} ms is offered three times its capacity of "
        f"{capacity:.0f} requests/s for {OFFER_S} s (gRPC, open loop, --max_queue_delay_ms={LIMIT_MS}): "
        f"{goodput:.0f} requests/s are answered ({goodput / capacity:.0%} of capacity), p99 {p99 * 1e3:.0f} ms, "
        f"{refused} are refused at the door, {failed} fail otherwise, and memory grows by {growth:.1f} MB."
    )


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
