"""Unloading a model gives its memory back: one process per runtime loads and unloads 64 MB, 5 times."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelyard.serving.backends._tensorflow import collect_cycles
from modelyard.serving.servables import settle_memory
from tests.support.server import free_port

_SIZE = 4000
_MODEL_BYTES = _SIZE * _SIZE * 4
_ROUNDS = 5

_CHILD = f"""
import gc, json, sys
from pathlib import Path
import numpy as np
import psutil
from modelyard.serving import LoadOptions, ModelConfig, ModelManager, ModelSpec, WatchOptions, load_servable

# Reference counting frees a model, or its backend does.
gc.disable()
options = LoadOptions(runtime=sys.argv[1], interpreters=2)
manager = ModelManager(
    [ModelConfig(name="big", base_path=Path(sys.argv[2]))],
    lambda config, version, path: load_servable(config.name, version, path, options),
    WatchOptions(explicit=True),
)
manager.start()
process = psutil.Process()
figures = []
for _ in range({_ROUNDS}):
    manager.load_model("big")
    with manager.acquire(ModelSpec(name="big")) as servable:
        signature = servable.signature("serving_default")
        values = servable.run(signature, {{"x": np.ones((1, {_SIZE}), np.float32)}}, ["y"])["y"]
        loaded = process.memory_info().rss
    del servable
    manager.unload_model("big")
    figures.append({{"loaded": loaded, "unloaded": process.memory_info().rss, "sum": float(values.sum())}})
manager.stop()
print(json.dumps(figures))
"""


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(5).random((_SIZE, _SIZE), dtype=np.float32)


@pytest.fixture(scope="module")
def onnx_base_path(session_dir: Path, weights: np.ndarray) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        "big",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", _SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", _SIZE])],
        [numpy_helper.from_array(weights, "weights")],
    )
    path = session_dir / "big-onnx" / "1" / "onnx" / "serving_default.onnx"
    path.parent.mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return session_dir / "big-onnx"


@pytest.fixture(scope="module")
def tensorflow_base_path(session_dir: Path, weights: np.ndarray) -> Path:
    """The same model as a SavedModel and as TFLite."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(weights)

        @tf.function(input_signature=[tf.TensorSpec([None, _SIZE], tf.float32, name="x")])
        def predict(self, x):
            return {"y": x @ self.weights}

    folder = session_dir / "big-tensorflow" / "1"
    model = Model()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.predict})
    loaded = tf.saved_model.load(str(folder))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([loaded.signatures["serving_default"]], loaded)
    (folder / "model.tflite").write_bytes(converter.convert())
    return folder.parent


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is asked to trim its heap")
@pytest.mark.parametrize(
    ("runtime", "model"),
    [
        ("onnxruntime", "onnx_base_path"),
        ("openvino", "onnx_base_path"),
        ("openvino", "tensorflow_base_path"),
        ("litert", "tensorflow_base_path"),
        ("tensorflow", "tensorflow_base_path"),
    ],
)
def test_unloading_returns_memory(runtime: str, model: str, weights: np.ndarray, request) -> None:
    base_path = request.getfixturevalue(model)
    result = subprocess.run(
        [sys.executable, "-c", _CHILD, runtime, str(base_path)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    expected = float(weights.sum(dtype=np.float64))
    assert [round(each["sum"] / expected, 4) for each in figures] == [1.0] * _ROUNDS
    first, last = figures[0]["unloaded"], figures[-1]["unloaded"]
    assert last < 1.2 * first, figures
    # Not only does it not grow: at every round the model's own memory is gone.
    for each in figures:
        assert each["loaded"] - each["unloaded"] > 0.8 * _MODEL_BYTES, figures


@pytest.mark.parametrize("settled", [False, True])
def test_what_tensorflow_leaves_is_collected_among_settled_objects(settled: bool) -> None:
    class Model:
        def __init__(self) -> None:
            self.itself = self

    gc.disable()
    gc.unfreeze()
    try:
        model = Model()
        reference = weakref.ref(model)
        if settled:
            settle_memory(0)
        del model
        if settled:
            gc.collect()
        assert reference() is not None
        collect_cycles()
        assert reference() is None
        # What lives on stays settled.
        assert (gc.get_freeze_count() > 0) == settled
    finally:
        # As tests/conftest.py left it.
        gc.freeze()
        gc.enable()


def test_what_is_garbage_after_a_load_that_imported_nothing_is_collected() -> None:
    gc.collect()
    gc.freeze()

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    reference = weakref.ref(Cycle())
    before, modules = gc.get_freeze_count(), len(sys.modules)
    assert settle_memory(modules) == modules
    # What was excluded before may end meanwhile.
    assert gc.get_freeze_count() <= before
    gc.collect()
    assert reference() is None


_SERVER = """
import gc, signal, sys, threading, time
from modelyard.clients import connect
from modelyard.serving import parse_flags, run

def look():
    with connect(f"grpc://127.0.0.1:{sys.argv[2]}") as client:
        client.wait_ready("big", timeout_s=60)
    print(gc.get_freeze_count(), len(gc.get_objects()), flush=True)
    signal.raise_signal(signal.SIGTERM)

threading.Thread(target=look).start()
run(parse_flags([f"--port={sys.argv[2]}", "--model_name=big", f"--model_base_path={sys.argv[1]}"]))
"""


def test_a_server_with_its_models_has_little_left_to_look_at(onnx_base_path: Path) -> None:
    command = [sys.executable, "-c", _SERVER, str(onnx_base_path), str(free_port())]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    frozen, seen = map(int, result.stdout.split())
    assert seen < 0.2 * frozen


_BURST = """
import asyncio
import numpy as np
from modelyard.serving.machine import resident_bytes
from modelyard.serving.servables import _memory

_memory._LOOK_S = 0.2

async def main():
    returning = asyncio.create_task(_memory.return_memory(resident_bytes))
    await asyncio.sleep(0)
    before = resident_bytes()
    # Below what glibc maps by itself; the last one keeps the heap from shrinking.
    burst = [np.ones(100_000, np.uint8) for _ in range(2000)]
    last = np.ones(100_000, np.uint8)
    grown = resident_bytes() - before
    # Looks that come while it is at work must not take it for what the process needs.
    await asyncio.sleep(0.5)
    burst.clear()
    kept = resident_bytes() - before
    await asyncio.sleep(1)
    print(grown, kept, resident_bytes() - before)
    returning.cancel()

asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heaps")
def test_what_a_burst_has_freed_is_returned() -> None:
    result = subprocess.run([sys.executable, "-c", _BURST], capture_output=True, text=True, timeout=60, check=True)
    grown, kept, left = (int(word) for word in result.stdout.split())
    assert (grown > 190e6, kept > 150e6, left < 40e6) == (True, True, True), result.stdout
