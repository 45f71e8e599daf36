"""Readers under libFuzzer: inputs that reach new code are kept, and the next ones made of them.

They need ``pip install atheris``, ``cargo install cargo-fuzz`` and a nightly toolchain of Rust.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.torture.cases import Result, Scratch, case, expect
from benchmarks.torture.readers import READERS
from modelyard.wire import OIP_DATATYPES, array_to_tensor, dtype_by_numpy, inference_pb2, serving_pb2

ROOT = Path(__file__).parents[2]
CORE = ROOT / "serving" / "core"
SECONDS = 120
#: What cargo may take before that.
BUILD_S = 600
#: An input that takes more than a second of time, or 2 GB, is a fault.
FLAGS = (f"-max_total_time={SECONDS}", "-timeout=1", "-rss_limit_mb=2048", "-print_final_stats=1", "-max_len=65536")


def _fuzzed(command: list[str], scratch: Scratch, cwd: Path) -> Result:
    done = subprocess.run(
        [*command, *FLAGS, f"-artifact_prefix={scratch.folder}/"],
        cwd=cwd, capture_output=True, text=True, errors="replace", timeout=SECONDS + BUILD_S, check=False,
    )  # fmt: skip
    expect(done.returncode == 0, f"{done.returncode}: {done.stdout[-300:]}{done.stderr[-1500:]}")
    last = re.findall(r"#(\d+)\s+DONE\s+cov: (\d+) ft: \d+ corp: (\d+)", done.stderr)
    expect(last, done.stderr[-500:])
    count, places, kept = map(int, last[-1])
    expect(places, "no code was reached that is followed")
    return Result(inputs=count, text=f"{places:,} places reached, {kept:,} inputs kept")


def _bodies() -> Mapping[str, Sequence[bytes]]:
    """Good requests, by the fuzz target that reads them: of the signatures there."""
    arrays: dict[str, list[npt.NDArray[Any]]] = {
        "x": [np.array([[1.5, -2.0]], np.float32), np.array([0.1, 1e300]), np.array([7], np.uint8), np.array([True])],
        "y": [np.array([[1, -2]], np.int64), np.array([-5], np.int16)],
        "z": [np.array([0.5], np.float16)],
    }
    bodies: dict[str, list[bytes]] = {"json": [], "predict_grpc": [], "v2_grpc": [], "v2_rest": []}
    for names in (["x"], ["x", "y"], ["x", "y", "z"]):
        for picked in itertools.product(*(arrays[name] for name in names)):
            inputs = dict(zip(names, picked, strict=True))
            lists = {name: array.tolist() for name, array in inputs.items()}
            bodies["json"].append(json.dumps({"inputs": lists}).encode())
            predict = serving_pb2.PredictRequest()
            infer, tensors = inference_pb2.ModelInferRequest(model_name="m"), []
            for name, array in inputs.items():
                predict.inputs[name].CopyFrom(array_to_tensor(array))
                datatype = OIP_DATATYPES[dtype_by_numpy(array.dtype).name]
                infer.inputs.add(name=name, datatype=datatype, shape=array.shape)
                infer.raw_input_contents.append(array.tobytes())
                tensors.append({"name": name, "datatype": datatype, "shape": array.shape, "data": lists[name]})
            bodies["predict_grpc"].append(predict.SerializeToString())
            bodies["v2_grpc"].append(infer.SerializeToString())
            bodies["v2_rest"].append(json.dumps({"inputs": tensors}).encode())
    return bodies


def _rust(name: str, scratch: Scratch) -> Result:
    corpus = scratch.folder / "corpus"
    corpus.mkdir()
    for number, body in enumerate(_bodies()[name]):
        (corpus / str(number)).write_bytes(body)
    return _fuzzed(["cargo", "+nightly", "fuzz", "run", name, str(corpus), "--"], scratch, CORE)


def _python(name: str, scratch: Scratch) -> Result:
    module = [sys.executable, "-m", "benchmarks.torture.guided_reader"]
    return _fuzzed([*module, name, str(scratch.folder)], scratch, ROOT)


for _target in sorted(path.stem for path in (CORE / "fuzz" / "fuzz_targets").glob("*.rs")):
    case("guided", f"the core's {_target}", own=True, short=False)(functools.partial(_rust, _target))
for _name in READERS:
    case("guided", _name, own=True, short=False, transports=("python",))(functools.partial(_python, _name))
