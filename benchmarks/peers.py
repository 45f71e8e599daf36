"""The servers that `make bench NAME=serving` measures beside ours, each started as its own documentation says.

Each needs an environment of its own, named by a variable: what they depend on
does not go together with what we depend on.

- ``MODELYARD_TRITON_PYTHON``: a Python with ``nvidia-pytriton``, whose wheel holds Triton's own server.
- ``MODELYARD_MLSERVER_PYTHON``: one with ``mlserver`` and ``onnxruntime``.
- ``MODELYARD_BENTOML_PYTHON``: one with ``bentoml`` and ``onnxruntime``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load import pinned, wait_for

#: The model of all of them: its name, its input, and the outputs that are asked for.
MODEL, INPUT, SHAPE = "fashion", "image", (1, 28, 28, 1)
OUTPUTS = ("class_id", "probabilities")

TRITON_MODEL = """
import sys
sys.path.insert(0, {site!r})
import numpy as np, onnxruntime, triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        onnxruntime.preload_dlls()
        make = lambda: onnxruntime.InferenceSession({onnx!r}, options, providers={providers!r})
        self.names = {outputs!r}
        self.by_size = {{}}
        if {most!r}:
            self.by_size = {{1 << power: make() for power in range(({most!r}).bit_length())}}
            for size, session in self.by_size.items():
                session.run(self.names, {{{name!r}: np.zeros((size, *{dims!r}), pb.triton_string_to_numpy({dtype!r}))}})
        else:
            self.session = make()

    def run(self, batch):
        if not self.by_size:
            return self.session.run(self.names, {{{name!r}: batch}})
        rows = len(batch)
        size = 1 << (rows - 1).bit_length()
        if size > rows:
            batch = np.concatenate([batch, np.repeat(batch[:1], size - rows, axis=0)])
        return [output[:rows] for output in self.by_size[size].run(self.names, {{{name!r}: batch}})]

    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, {name!r}).as_numpy() for request in requests]
        merged = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
        outputs = self.run(merged)
        answers, start = [], 0
        for array in inputs:
            end = start + len(array)
            tensors = [pb.Tensor(n, y[start:end].reshape(end - start, -1)) for n, y in zip(self.names, outputs)]
            answers.append(pb.InferenceResponse(tensors))
            start = end
        return answers
"""

MLSERVER_MODEL = """
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

class Model(MLModel):
    async def load(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession({onnx!r}, options, providers=["CPUExecutionProvider"])
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = self.session.run({outputs!r}, {{{name!r}: NumpyCodec.decode_input(payload.inputs[0])}})
        encoded = [NumpyCodec.encode_output(name, array) for name, array in zip({outputs!r}, outputs)]
        return InferenceResponse(model_name=self.name, outputs=encoded)
"""

BENTOML_SERVICE = """
import bentoml, numpy as np, onnxruntime

@bentoml.service(workers=1, traffic={{"timeout": 60}})
class Service:
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession({onnx!r}, options, providers=["CPUExecutionProvider"])

    @bentoml.api(batchable=True, max_batch_size=64)
    def predict(self, {name}: np.ndarray) -> np.ndarray:
        return self.session.run(["probabilities"], {{{name!r}: {name}.astype(np.float32)}})[0]
"""


@dataclass(frozen=True, kw_only=True)
class TritonModel:
    """What Triton's configuration says of a model, and what computes it.

    Attributes:
        name: Its name.
        input: Its input, by name, type and dimensions without the batch.
        outputs: Type and size of each output, by name.
        providers: onnxruntime's, with their options.
        most: Rows of a batch at most, where each power of two up to it has a session of its own; 0 for one session.
        instances: Of the model.
    """

    name: str = MODEL
    input: tuple[str, str, tuple[int, ...]] = (INPUT, "FP32", SHAPE[1:])
    outputs: Mapping[str, tuple[str, int]] = field(
        default_factory=lambda: dict(zip(OUTPUTS, (("INT64", 1), ("FP32", 10)), strict=True))
    )
    providers: Sequence[str | tuple[str, Mapping[str, str]]] = ("CPUExecutionProvider",)
    most: int = 0
    instances: int = 1


@contextlib.contextmanager
def triton(
    work: Path,
    onnx: Path,
    python: str,
    *,
    grpc_port: int,
    rest_port: int,
    served: TritonModel | None = None,
    cores: str = "0",
) -> Iterator[None]:
    """Triton's own server with its Python backend, one instance, dynamic batching."""
    served = served or TritonModel()
    ask = "import sys, sysconfig as s; print(s.get_path('purelib'), s.get_config_var('LIBDIR'), *sys.version_info[:2])"
    site, libraries, major, minor = subprocess.check_output([python, "-c", ask], text=True).split()
    root = Path(site) / "pytriton" / "tritonserver"
    stub = root / f"python_backend_stubs/{major}.{minor}/triton_python_backend_stub"
    target = root / "backends/python/triton_python_backend_stub"
    if not target.exists():
        target.write_bytes(stub.read_bytes())
        target.chmod(0o755)
    folder = work / "triton" / served.name / "1"
    folder.mkdir(parents=True)
    name, dtype, dims = served.input
    (folder / "model.py").write_text(
        TRITON_MODEL.format(
            site=site, onnx=str(onnx.resolve()), name=name, outputs=list(served.outputs),
            providers=list(served.providers), most=served.most, dims=dims, dtype=f"TYPE_{dtype}",
        )
    )  # fmt: skip
    outputs = [f'{{name: "{key}" data_type: TYPE_{type} dims: [{n}]}}' for key, (type, n) in served.outputs.items()]
    (folder.parent / "config.pbtxt").write_text(
        f'name: "{served.name}"\nbackend: "python"\nmax_batch_size: 64\n'
        f'input [{{name: "{name}" data_type: TYPE_{dtype} dims: [{",".join(map(str, dims))}]}}]\n'
        f"output [{', '.join(outputs)}]\n"
        f"instance_group [{{kind: KIND_CPU count: {served.instances}}}]\n"
        "dynamic_batching { max_queue_delay_microseconds: 500 }\n"
    )
    paths = [f"{site}/nvidia_pytriton.libs", libraries, os.environ.get("LD_LIBRARY_PATH", "")]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths)), "PYTHONPATH": site}
    command = [
        str(root / "bin/tritonserver"), f"--model-repository={work / 'triton'}", f"--http-port={rest_port}",
        f"--grpc-port={grpc_port}", f"--backend-directory={root / 'backends'}", "--allow-metrics=false",
    ]  # fmt: skip
    with pinned(command, work / "triton.log", env, cores=cores):
        wait_for(f"http://127.0.0.1:{rest_port}/v2/health/ready")
        yield


@contextlib.contextmanager
def mlserver(
    work: Path, onnx: Path, python: str, *, grpc_port: int, rest_port: int, metrics_port: int
) -> Iterator[None]:
    """MLServer with a runtime of a few lines, in one process, with its adaptive batching."""
    folder = work / "mlserver"
    folder.mkdir()
    model = MLSERVER_MODEL.format(onnx=str(onnx.resolve()), name=INPUT, outputs=list(OUTPUTS))
    (folder / "runtime.py").write_text(model)
    ports = {"http_port": rest_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
    (folder / "settings.json").write_text(json.dumps({"host": "127.0.0.1", "parallel_workers": 0, **ports}))
    (folder / "model-settings.json").write_text(
        json.dumps({"name": MODEL, "implementation": "runtime.Model", "max_batch_size": 64, "max_batch_time": 0.0005})
    )
    command = [python, "-c", "from mlserver.cli import main; main()", "start", str(folder)]
    with pinned(command, work / "mlserver.log", {**os.environ, "PYTHONPATH": str(folder)}):
        wait_for(f"http://127.0.0.1:{rest_port}/v2/health/ready")
        yield


@contextlib.contextmanager
def bentoml(work: Path, onnx: Path, python: str, *, rest_port: int) -> Iterator[None]:
    """BentoML with a service of a few lines, one worker, with its adaptive batching."""
    folder = work / "bentoml"
    folder.mkdir()
    (folder / "service.py").write_text(BENTOML_SERVICE.format(onnx=str(onnx.resolve()), name=INPUT))
    command = [
        python, "-m", "bentoml", "serve", "service:Service", "--working-dir", str(folder), "--port", str(rest_port),
    ]  # fmt: skip
    env = {**os.environ, "BENTOML_DO_NOT_TRACK": "true", "BENTOML_HOME": str(folder / "home")}
    with pinned(command, work / "bentoml.log", env):
        wait_for(f"http://127.0.0.1:{rest_port}/readyz")
        yield
