"""Measures image models on an accelerator beside the bare runtime and Triton, for the table in docs/deployment.md.

MobileNetV2 and ResNet50 (224x224 images of uint8, untrained, with the statistics of batch norms that their images have)
are exported where TensorFlow is, and measured where the card is; what was measured becomes the section.

    python -m benchmarks.accelerator export FOLDER
    python -m benchmarks.accelerator measure FOLDER [--device cuda] [--rounds N] [--seconds S]
    python -m benchmarks.accelerator write FOLDER

The server has one half of the processors, the load (h2load) the other. Every server answers before it is measured, with
what the CPU answered at export. Triton's is measured where ``MODELYARD_TRITON_PYTHON`` names a Python with
``nvidia-pytriton``: its Python backend with onnxruntime on the same device, with the same options, batches as large,
and what our server does by itself: a session for each of a few batch sizes, and two batches at the same time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load import Request, load, pinned, wait_for, write
from benchmarks.pages import processor, write_section
from benchmarks.peers import TritonModel, triton

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "deployment.md"
MARK = "accelerator-table"
MODELS = ("MobileNetV2", "ResNet50")
SIZE, CLASSES = 224, 1000
BATCHES = (1, 8, 64)
IN_FLIGHT = (1, 8, 64, 128)
#: Of the spread of a model's logits: float32 on another device adds up in another order.
TOLERANCE = 1e-3
#: As our server has them.
CUDA = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
ANSWERS, MEASURED = "answers.npz", "measured.json"

Array = npt.NDArray[Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Exports, measures, or writes the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("export", "measure", "write"), help="what is to be done")
    parser.add_argument("folder", type=Path, help="where models and measurements are kept")
    parser.add_argument("--device", default="cuda", help="as of modelyard serve (default %(default)s)")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each server (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round (default %(default)s)")
    parser.add_argument("--flags", default="", help="more flags for our server, in one text")
    args = parser.parse_args(argv)
    if args.command == "export":
        for name in args.models:
            export_model(args.folder / name, name)
    elif args.command == "measure":
        found = {name: measure(args.folder / name, name, args) for name in args.models}
        facts = {"card": card(args.device), "processor": f"{os.cpu_count()} cores of {processor()}"}
        (args.folder / MEASURED).write_text(json.dumps({**facts, **vars(args), "folder": "", "found": found}, indent=1))
    else:
        section = table(json.loads((args.folder / MEASURED).read_text()))
        print(section)
        write_section(PAGE, f"<!-- {MARK}:begin -->", f"<!-- {MARK}:end -->", section)
    return 0


def export_model(folder: Path, name: str) -> None:
    """Exports a model that takes images as they are read, with what the CPU answers to some of them."""
    import keras
    import onnxruntime

    from benchmarks.applications import make_model
    from modelyard.export import ExportOptions, export

    model, images = make_model(name, size=SIZE, examples=256)
    pixels = np.clip(np.round((images - images.min()) * (255 / np.ptp(images))), 0, 255).astype(np.uint8)
    image = keras.Input((SIZE, SIZE, 3), dtype="uint8", name="image")
    whole = keras.Model(image, {"logits": model(keras.layers.Rescaling(1 / 127.5, -1.0)(image))})
    export(whole, folder, data=pixels, options=ExportOptions(formats=("onnx",)))
    session = onnxruntime.InferenceSession(graph(folder), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": pixels[:64]})
    np.savez(folder / ANSWERS, image=pixels[:64], logits=logits)


def graph(folder: Path) -> Path:
    """The ONNX file of the newest version."""
    return max(folder.glob("[0-9]*")) / "onnx" / "serving_default.onnx"


def card(device: str) -> str:
    """The card's name and driver, as NVIDIA's tool says it."""
    if not device.startswith("cuda"):
        return device
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    name, driver = subprocess.check_output(command, text=True).splitlines()[0].split(", ")
    return f"{name}, driver {driver}"


def measure(folder: Path, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Images a second: of the runtime by batch, and of each server by requests in flight."""
    answers = np.load(folder / ANSWERS)
    cpus = sorted(os.sched_getaffinity(0))
    half = max(1, len(cpus) // 2)
    cores, others = (",".join(map(str, part)) for part in (cpus[:half], cpus[half:] or cpus))
    found: dict[str, Any] = {"seconds": args.seconds, "runtime": alone(folder, answers["image"], args)}
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        work = Path(place)
        flags = [f"--device={args.device}", *shlex.split(args.flags)]
        servers = {"ours": stack.enter_context(ours(work, folder, name, flags, cores, answers))}
        if python := os.environ.get("MODELYARD_TRITON_PYTHON"):
            servers["triton"] = stack.enter_context(theirs(work, folder, python, args.device, cores, answers))
        for count in IN_FLIGHT:
            rates: dict[str, list[float]] = {server: [] for server in servers}
            for _ in range(args.rounds):
                for server, (request, _) in servers.items():
                    rates[server].append(load(request, count, args.seconds, cores=others, threads=half))
            for server, rounds in rates.items():
                found.setdefault(server, {})[str(count)] = rounds
            print(name, count, rates, file=sys.stderr, flush=True)
        for server, (_, statistics_url) in servers.items():
            check_failures(server, statistics_url)
    return found


def check_failures(server: str, url: str) -> None:
    """Refuses what was measured where calls failed: h2load does not see the status of a gRPC call.

    The last ones of a round are cancelled, which Triton counts as failures.
    """
    with urllib.request.urlopen(url, timeout=10) as response:
        (model,) = json.load(response)["model_stats"]
    failed, succeeded = (int(model["inference_stats"][key]["count"]) for key in ("fail", "success"))
    if failed > succeeded / 1000:
        raise RuntimeError(f"{server}: {failed:,} calls failed, and {succeeded:,} did not")


def alone(folder: Path, images: Array, args: argparse.Namespace) -> dict[str, float]:
    """The runtime's images a second in this process, with arrays of numpy in and out."""
    from modelyard.serving.backends import OnnxRuntimeBackend

    backend = OnnxRuntimeBackend({"graph": graph(folder)}, threads=1, device=args.device)
    found = {}
    for rows in BATCHES:
        inputs = {"image": images[:rows]}
        backend.run("graph", inputs, ["logits"])
        count, started = 0, time.perf_counter()
        while (seconds := time.perf_counter() - started) < args.seconds:
            backend.run("graph", inputs, ["logits"])
            count += rows
        found[str(rows)] = count / seconds
    backend.close()
    return found


@contextlib.contextmanager
def ours(
    work: Path, folder: Path, name: str, flags: Sequence[str], cores: str, answers: dict[str, Array]
) -> Iterator[tuple[Request, str]]:
    """Our server, once it has answered rightly: a request of one image, and where its statistics are."""
    from modelyard.clients import connect
    from modelyard.wire import array_to_tensor, serving_pb2
    from tests.support.server import free_port

    grpc_port, rest_port = free_port(), free_port()
    command = [
        sys.executable, "-m", "modelyard.serving", f"--port={grpc_port}", f"--rest_api_port={rest_port}",
        f"--model_name={name}", f"--model_base_path={folder}", *flags,
    ]  # fmt: skip
    with pinned(command, work / "server.log", cores=cores):
        wait_for(f"http://127.0.0.1:{rest_port}/v2/health/ready")
        with connect(f"grpc://127.0.0.1:{grpc_port}") as client:
            check(client.predict(name, {"image": answers["image"]})["logits"], answers["logits"])
        message = serving_pb2.PredictRequest()
        message.model_spec.name = name
        message.inputs["image"].CopyFrom(array_to_tensor(answers["image"][:1], as_content=True))
        method = "tensorflow.serving.PredictionService/Predict"
        request = _request(work / "ours.bin", f"http://127.0.0.1:{grpc_port}/{method}", message.SerializeToString())
        yield request, f"http://127.0.0.1:{rest_port}/v2/models/{name}/stats"


@contextlib.contextmanager
def theirs(
    work: Path, folder: Path, python: str, device: str, cores: str, answers: dict[str, Array]
) -> Iterator[tuple[Request, str]]:
    """Triton, once it has answered rightly: a request of one image, and where its statistics are."""
    import grpc

    from modelyard.wire import inference_pb2
    from tests.support.server import free_port

    grpc_port, rest_port = free_port(), free_port()
    model = TritonModel(
        name="m",
        input=("image", "UINT8", (SIZE, SIZE, 3)),
        outputs={"logits": ("FP32", CLASSES)},
        providers=["CPUExecutionProvider"] if device == "cpu" else [("CUDAExecutionProvider", CUDA)],
        most=64,
        instances=2,
    )
    ports = {"grpc_port": grpc_port, "rest_port": rest_port}
    with triton(work, graph(folder), python, **ports, served=model, cores=cores):
        message = inference_pb2.ModelInferRequest(model_name="m")
        message.inputs.add(name="image", datatype="UINT8", shape=(1, SIZE, SIZE, 3))
        message.raw_input_contents.append(answers["image"][:1].tobytes())
        method, data = "inference.GRPCInferenceService/ModelInfer", message.SerializeToString()
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            call = channel.unary_unary(
                f"/{method}",
                request_serializer=inference_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=inference_pb2.ModelInferResponse.FromString,
            )
            answer = call(message, timeout=60)
        check(np.frombuffer(answer.raw_output_contents[0], np.float32)[None], answers["logits"])
        request = _request(work / "theirs.bin", f"http://127.0.0.1:{grpc_port}/{method}", data)
        yield request, f"http://127.0.0.1:{rest_port}/v2/models/m/stats"


def check(found: Array, expected: Array) -> None:
    """Compares answers with the CPU's."""
    expected = expected[: len(found)]
    error = float(np.abs(found - expected).max() / np.std(expected))
    if found.shape != expected.shape or not error < TOLERANCE:
        raise RuntimeError(f"answers differ from the CPU's by {error:.2g} of their spread: {found} {expected}")
    print(f"answers differ from the CPU's by {error:.2g} of their spread", file=sys.stderr)


def _request(body: Path, url: str, data: bytes) -> Request:
    headers = {"content-type": "application/grpc", "te": "trailers"}
    return Request(url=url, body=write(body, b"\0" + struct.pack(">I", len(data)) + data), headers=headers, http1=False)


def table(measured: dict[str, Any]) -> str:
    """The section, of what was measured."""
    lines = []
    for name, found in measured["found"].items():
        best = max(found["runtime"].values())
        for count, rounds in found["ours"].items():
            rate = statistics.median(rounds)
            cells = [f"{rate:,.0f}", f"{rate / best:.0%}"]
            if "triton" in found:
                pairs = zip(rounds, found["triton"][count], strict=True)
                cells += [f"{statistics.median(found['triton'][count]):,.0f}"]
                cells += [f"{statistics.median(one / other for one, other in pairs):.2f}"]
            else:
                cells += ["not installed", ""]
            lines.append(f"| {name} | {count} | {' | '.join(cells)} |")
    seconds = " or ".join(f"{each:g}" for each in sorted({found["seconds"] for found in measured["found"].values()}))
    bare = "; ".join(
        f"{name} {', '.join(f'{rate:,.0f} by {rows}' for rows, rate in found['runtime'].items())}"
        for name, found in measured["found"].items()
    )
    return "\n".join(
        [
            f"{measured['card']}; {measured['processor']}: one half for the server, one for the load. 224x224 images "
            f"of uint8, one a request, over gRPC; float32; median of {measured['rounds']} rounds of {seconds} s. "
            "Triton computes by its Python backend, with the same onnxruntime and a session for each batch size.",
            "",
            "| model | in flight | images/s | of the runtime's best | Triton, images/s | ratio |",
            "|---|---|---|---|---|---|",
            *lines,
            "",
            f"With nothing around it, onnxruntime does so many images/s by rows of a batch: {bare}.",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
