"""Measures a larger model, and writes its section of docs/performance.md.

MobileNetV2 (224x224, untrained, with random batch statistics) is exported with
the package's own verification and served on one core, while the load has
another one; then on two, which the load shares. The load is this package's
asynchronous client (not h2load, which sends a request of 600 kB in 37 frames;
clients of gRPC send as large ones as a server takes). Rounds alternate between
the server, the same runtime in a process with nothing around it, and the server
with TensorFlow, twice: as it is, and computing each request whole, as
TensorFlow Serving does.

    python -m benchmarks.models [--write] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.load import Request, machine, pinned, wait_for, write
from benchmarks.pages import write_section
from benchmarks.serving import PAGE

ROOT = Path(__file__).resolve().parents[1]
LARGER = "larger"
MODEL, SIZE = "mobilenet", 224
TENSORFLOW = "--runtime=tensorflow"
#: Images in a request, and requests in flight.
FORMS = ((1, 1), (1, 8), (8, 4))
#: The server's cores and the load's, as taskset takes them.
CORES = (("0", "1"), ("0,1", "0,1"))

EXPORT = """
import sys
sys.path.insert(0, {root!r})
from benchmarks.applications import make_model
from modelyard.export import export
model, images = make_model("MobileNetV2", size={size}, examples=256)
export(model, sys.argv[1], data=images)
"""

ALONE = """
import sys, time
from pathlib import Path
import numpy as np
from modelyard.serving import LoadOptions, load_servable
servable = load_servable("m", 1, Path(sys.argv[1]), LoadOptions(threads=int(sys.argv[2])))
signature = servable.signature("serving_default")
name = signature.inputs[0].name
outputs = [spec.name for spec in signature.outputs]
shape = signature.inputs[0].shape[1:]
x = {rows: np.random.default_rng(0).random((rows, *shape)).astype(np.float32) for rows in (1, 8)}
matrix = np.random.default_rng(0).random((1536, 1536)).astype(np.float32)
print(servable.backend.name, flush=True)
for line in sys.stdin:
    rows, seconds = line.split()
    inputs = {name: x.get(int(rows))}
    # No rows: how fast the core multiplies matrices, in operations a second.
    each = int(rows) or 2 * 1536**3
    call = (lambda: servable.run(signature, inputs, outputs)) if int(rows) else (lambda: matrix @ matrix)
    call()
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < float(seconds):
        call()
        calls += 1
    print(calls * each / (time.perf_counter() - started), flush=True)
"""

LOAD = """
import asyncio, sys, time
import numpy as np
from modelyard.clients import connect_async

async def main():
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    while line := await reader.readline():
        url, rows, flight, seconds = line.decode().split()
        print(await measure(url, int(rows), int(flight), float(seconds)), flush=True)

async def measure(url, rows, flight, seconds):
    x = np.random.default_rng(0).random((rows, {size}, {size}, 3)).astype(np.float32)
    async with connect_async(url) as client:
        model = await client.metadata({model!r})
        (name,) = model.signatures["serving_default"].inputs
        done = 0
        async def work():
            nonlocal done
            while time.perf_counter() < end:
                answers = await client.predict({model!r}, {{name: x}})
                if any(len(array) != rows for array in answers.values()):
                    raise RuntimeError(f"{{rows}} images were answered by {{[a.shape for a in answers.values()]}}")
                if started < time.perf_counter() < end:
                    done += 1
        # The first calls find out what the form of the answers is.
        started = time.perf_counter() + 0.3
        end = started + seconds
        await asyncio.gather(*(work() for _ in range(flight)))
    return done * rows / seconds

asyncio.run(main())
"""


def main() -> int:
    """Measures, prints the section, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the section into docs/performance.md")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round (default %(default)s)")
    parser.add_argument("--repository", type=Path, help="where the model is, or is to be kept (default: nowhere)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model_dir = (args.repository or work / "repository").resolve() / MODEL
        if not model_dir.exists():
            subprocess.run([sys.executable, "-c", EXPORT.format(root=str(ROOT), size=SIZE), str(model_dir)], check=True)
        version = max(path for path in model_dir.iterdir() if path.name.isdigit())
        section = larger(work, version, args.rounds, args.seconds)
    print(section)
    if args.write:
        write_section(PAGE, f"<!-- {LARGER}:begin -->", f"<!-- {LARGER}:end -->", section)
    return 0


def larger(work: Path, version: Path, rounds: int, seconds: float) -> str:
    """Served images a second beside those of the runtime alone, and of TensorFlow served."""
    lines: list[str] = []
    multiplied: list[float] = []
    best = 0.0
    for cores in CORES:
        with contextlib.ExitStack() as stack:
            servers = [
                stack.enter_context(_served(work / f"{index}.log", version, cores[0], flags))
                for index, flags in enumerate(([], [TENSORFLOW]))
            ]
            count = len(cores[0].split(","))
            alone = stack.enter_context(
                _Helper(cores[0], ALONE, str(version), str(count), OPENBLAS_NUM_THREADS=str(count))
            )
            client = stack.enter_context(_Helper(cores[1], LOAD.format(size=SIZE, model=MODEL)))
            runtime, _ = alone.said(), client.said()
            for rows, flight in FORMS:
                found: list[tuple[float, ...]] = []
                for _ in range(rounds):
                    served, *others = (client.ask(f"{url} {rows} {flight} {seconds}") for url in servers)
                    found.append((served, alone.ask(f"{rows} {seconds}"), *others))
                    if count == 1:
                        multiplied.append(alone.ask(f"0 {seconds / 3}"))
                medians = [statistics.median(column) for column in zip(*found, strict=True)]
                if count == 1:
                    best = max(best, medians[1])
                share, *gains = (
                    statistics.median(each[0] / each[i] for each in found) for i in range(1, len(found[0]))
                )
                cells = [f"{medians[0]:,.1f}", f"{medians[1]:,.1f}", f"{share:.0%}"]
                for median, gain in zip(medians[2:], gains, strict=True):
                    cells += [f"{median:,.1f}", f"{gain:.1f}"]
                lines.append(f"| {count} | {rows} | {flight} | {' | '.join(cells)} |")
                print(lines[-1], file=sys.stderr, flush=True)
    operations, peak = float_operations(version), statistics.median(multiplied)
    return "\n".join(
        [
            f"MobileNetV2, {SIZE}x{SIZE}, float32, untrained; {machine()}: one for the server and one for the load, or "
            f"both for both; gRPC; median of {rounds} rounds of {seconds:g} s. The export chose {runtime}.",
            "",
            "| cores | images a request | in flight | images/s | the runtime alone | of the runtime's | TensorFlow, "
            "served | times TensorFlow's |",
            "|---|---|---|---|---|---|---|---|",
            *lines,
            "",
            f"An image takes {operations / 1e9:.2f} billion float operations in convolutions and matrices. The core, "
            f"multiplying matrices of 1,536 x 1,536 by numpy, does {peak / 1e9:,.0f} billion a second, which would "
            f"be {peak / operations:,.0f} images/s; the runtime alone reaches {best * operations / peak:.0%} of that.",
        ]
    )


@contextlib.contextmanager
def _served(log: Path, version: Path, cores: str, flags: Sequence[str]) -> Iterator[str]:
    """A server that is ready, on some cores: its URL."""
    from tests.support.server import free_port

    grpc_port, rest_port = free_port(), free_port()
    command = [
        sys.executable, "-m", "modelyard.serving", f"--port={grpc_port}", f"--rest_api_port={rest_port}",
        f"--model_name={MODEL}", f"--model_base_path={version.parent}", *flags,
    ]  # fmt: skip
    with pinned(command, log, cores=cores):
        wait_for(f"http://127.0.0.1:{rest_port}/v2/health/ready")
        yield f"grpc://127.0.0.1:{grpc_port}"


def float_operations(version: Path) -> float:
    """Multiplications and additions of an image's convolutions and matrix products, counted in the ONNX graph."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(onnx.load(version / "onnx" / "serving_default.onnx")).graph
    weights = {each.name: list(each.dims) for each in graph.initializer}
    values = [*graph.value_info, *graph.output]
    shapes = {each.name: [dim.dim_value for dim in each.type.tensor_type.shape.dim] for each in values}
    total = 0.0
    for node in graph.node:
        if node.op_type in ("Conv", "MatMul"):
            weight = weights[node.input[1]]
            # Each number of the output is the sum of so many products.
            products = np.prod(weight[1:]) if node.op_type == "Conv" else weight[0]
            numbers = np.prod(shapes[node.output[0]][1:])
            if not numbers > 0:
                raise RuntimeError(f"the shape of {node.output[0]} is not known: {shapes[node.output[0]]}")
            total += 2.0 * numbers * products
        elif node.op_type in ("Gemm", "ConvTranspose", "Einsum"):
            raise RuntimeError(f"{node.op_type} is not counted")
    return total


class _Helper:
    """A process on some cores that answers lines with lines.

    Args:
        cores: Their numbers.
        script: What it runs.
        arguments: The script's.
        env: Variables for it.
    """

    def __init__(self, cores: str, script: str, *arguments: str, **env: str) -> None:
        command = ["taskset", "-c", cores, sys.executable, "-c", script, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
        )

    def said(self) -> str:
        """Its next line."""
        line = self._process.stdout.readline().strip() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError(f"a helper process ended with {self._process.wait()}")
        return line

    def ask(self, line: str) -> float:
        """Its answer to a line, a number."""
        if self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        return float(self.said())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:
            pass


def request(work: Path, port: int, rows: int) -> Request:
    """A Predict call with some images, which is answered: h2load does not see the status of a gRPC call."""
    from modelyard.clients import connect
    from modelyard.wire import array_to_tensor, serving_pb2

    x = np.random.default_rng(0).random((rows, SIZE, SIZE, 3)).astype(np.float32)
    with connect(f"grpc://127.0.0.1:{port}") as client:
        (name,) = client.metadata(MODEL).signatures["serving_default"].inputs
        answers = client.predict(MODEL, {name: x})
    if any(len(array) != rows for array in answers.values()):
        raise RuntimeError(f"{rows} images were answered by {[array.shape for array in answers.values()]}")
    message = serving_pb2.PredictRequest()
    message.model_spec.name = MODEL
    message.inputs[name].CopyFrom(array_to_tensor(x, as_content=True))
    data = message.SerializeToString()
    return Request(
        url=f"http://127.0.0.1:{port}/tensorflow.serving.PredictionService/Predict",
        body=write(work / f"{port}-{rows}.bin", b"\0" + struct.pack(">I", len(data)) + data),
        headers={"content-type": "application/grpc", "te": "trailers"},
        http1=False,
    )


if __name__ == "__main__":
    raise SystemExit(main())
