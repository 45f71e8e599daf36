from __future__ import annotations

import queue
import threading
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from modelyard.errors import InvalidInputError, LoadError, PredictionError, RequestTooLargeError
from modelyard.serving.backends import OnnxRuntimeBackend
from tests.support.models import publish_rounds
from tests.support.waiting import until


def _load(path: Path) -> OnnxRuntimeBackend:
    return OnnxRuntimeBackend({"graph": path}, threads=1)


def test_a_call_without_an_end_is_interrupted_and_later_calls_are_answered(tmp_path: Path) -> None:
    """Those of the same thread, too, which is the server's own and computes for others next."""
    version = publish_rounds(tmp_path / "m")
    backend = _load(Path(str(version.path)) / "onnx" / "serving_default.onnx")
    answers: queue.SimpleQueue[list[float] | PredictionError] = queue.SimpleQueue()

    def call() -> None:
        # As many rounds as there are numbers in 62 bits, and three.
        for rounds in (2.0**62, 3.0):
            try:
                answers.put(backend.run("graph", {"x": np.array([rounds], np.float32)}, ["y"])["y"].tolist())
            except PredictionError as exc:
                answers.put(exc)

    # One that is not interrupted must not keep the tests from ending.
    threading.Thread(target=call, daemon=True).start()
    until(lambda: backend._calls)
    with pytest.raises(queue.Empty):
        answers.get(timeout=0.2)
    assert backend.interrupt()
    error = answers.get(timeout=30)
    assert isinstance(error, PredictionError) and "terminate" in error.message
    assert answers.get(timeout=30) == [3.0]
    assert backend.run("graph", {"x": np.array([4.0], np.float32)}, ["y"])["y"].tolist() == [4.0]


def test_a_dtype_that_numpy_is_not_given_is_refused_when_it_is_loaded(write_onnx) -> None:
    kinds = ("bfloat16", ["n"])
    path = write_onnx("brain", [helper.make_node("Identity", ["x"], ["y"])], {"x": kinds}, {"y": kinds})
    with pytest.raises(LoadError, match=r"'x' has type tensor\(bfloat16\); expected a tensor of bool, float16"):
        _load(path)


@pytest.fixture
def echo(write_onnx) -> OnnxRuntimeBackend:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return _load(write_onnx("echo", nodes, {"x": ("string", ["n"])}, {"y": ("string", ["n"])}))


def test_strings_come_back_as_they_went(echo: OnnxRuntimeBackend) -> None:
    data = [b"", b"plain", b"in\0side", b"\xf0\x9f\x98\x80"]
    assert echo.run("graph", {"x": np.array(data, dtype=object)}, ["y"])["y"].tolist() == data


def test_bytes_that_are_no_text_are_refused(echo: OnnxRuntimeBackend) -> None:
    with pytest.raises(InvalidInputError, match="'x' holds a string that is not UTF-8"):
        echo.run("graph", {"x": np.array([b"plain", b"\xff\xfe"], dtype=object)}, ["y"])


def test_a_failure_of_the_graph_is_not_the_callers(sum_onnx: Path) -> None:
    inputs = {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}
    with pytest.raises(PredictionError, match="graph 'graph'"):
        _load(sum_onnx).run("graph", inputs, ["y"])


def test_a_request_that_needs_more_memory_than_there_is_is_too_large(fill_onnx: Path) -> None:
    inputs = {"one": np.ones(1, np.float32), "shape": np.array([1 << 15, 1 << 15, 1 << 15])}
    with pytest.raises(RequestTooLargeError, match="does not fit into memory: send fewer rows"):
        _load(fill_onnx).run("graph", inputs, ["y"])


def test_close_frees_the_sessions(scores_onnx: Path) -> None:
    backend = _load(scores_onnx)
    backend.close()
    assert not backend._sessions


def test_maps_of_scikit_learn_are_told_with_the_option_that_avoids_them(tmp_path: Path) -> None:
    maps = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    output = helper.make_value_info("z", helper.make_sequence_type_proto(maps))
    node = helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph([node], "g", [value], [output]), opset_imports=opsets, ir_version=10)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(LoadError, match=r"'z' has type seq\(map.*options=\{id\(model\): \{\"zipmap\": False\}\}"):
        OnnxRuntimeBackend({"graph": tmp_path / "m.onnx"}, threads=1)


def test_zeros_that_are_padded_before_a_pooling_stay_zeros(tmp_path: Path) -> None:
    """Graphs that others have made, too: onnxruntime's optimizer forgets the zeros, and all others are below them."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[n, 1, 4, 5] x) => (float[n, 1, h, w] y)
        <int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, float zero = {0.0}> {
            padded = Pad (x, pads, zero)
            y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (padded)
        }
    """)
    onnx.save(model, tmp_path / "m.onnx")
    x = -1 - np.random.default_rng(0).random((2, 1, 4, 5), np.float32)
    assert _load(tmp_path / "m.onnx").run("graph", {"x": x}, ["y"])["y"].max() == 0.0


def test_a_value_without_a_shape_is_of_any_rank_and_no_scalar(tmp_path: Path) -> None:
    """onnxruntime says the same of both, and lets both have any shape."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18]>
        g (float[n] x, float scalar, float any) => (float y, float z, float[n] sum) {
            y = Neg (scalar)
            z = Neg (any)
            sum = Add (x, scalar)
        }
    """)
    for value in (model.graph.input[2], model.graph.output[1]):
        value.type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    signature = _load(tmp_path / "m.onnx").signatures["graph"]
    assert [spec.shape for spec in signature.inputs] == [(-1,), (), None]
    assert [spec.shape for spec in signature.outputs] == [(), None, (-1,)]
