"""What both runtimes make of an ONNX graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from modelyard.artifact import TensorSpec
from modelyard.errors import InvalidInputError, LoadError
from modelyard.serving.backends import OnnxRuntimeBackend, OpenVinoBackend

Load = Callable[[Path], OnnxRuntimeBackend | OpenVinoBackend]
_BACKENDS: dict[str, Callable[..., OnnxRuntimeBackend | OpenVinoBackend]] = {
    "onnxruntime": partial(OnnxRuntimeBackend, threads=1),
    "openvino": partial(OpenVinoBackend, threads=1, requests=1),
}


@pytest.fixture(params=sorted(_BACKENDS))
def load(request: pytest.FixtureRequest) -> Load:
    return lambda path: _BACKENDS[request.param]({"graph": path})


def test_signatures_say_what_the_graph_says(load: Load, scores_onnx: Path) -> None:
    signature = load(scores_onnx).signatures["graph"]
    assert signature.compute == "graph"
    assert signature.inputs == (TensorSpec(name="image", dtype="float32", shape=(-1, 2, 3)),)
    assert signature.outputs == (
        TensorSpec(name="class_id", dtype="int64", shape=(-1,)),
        TensorSpec(name="label", dtype="string", shape=(-1,)),
        TensorSpec(name="scores", dtype="float32", shape=(-1, 4)),
    )


def test_it_computes_the_outputs_that_are_asked_for(load: Load, scores_onnx: Path, images: np.ndarray) -> None:
    backend = load(scores_onnx)
    values = backend.run("graph", {"image": images}, ["scores", "label", "class_id"])
    assert list(values) == ["scores", "label", "class_id"]
    np.testing.assert_array_equal(values["scores"], images.reshape(2, 6)[:, :4])
    assert values["label"].tolist() == [b"bag", "sur\u00eatre".encode()]
    assert values["class_id"].dtype == np.int64
    assert list(backend.run("graph", {"image": images}, ["label"])) == ["label"]


@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 2), (1, 1, 2, 3)])
def test_a_wrong_shape_is_refused(load: Load, scores_onnx: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match="graph 'graph'"):
        load(scores_onnx).run("graph", {"image": np.zeros(shape, np.float32)}, ["scores"])


def test_a_wrong_dtype_is_refused(load: Load, scores_onnx: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"float|precision: i32"):
        load(scores_onnx).run("graph", {"image": np.zeros((1, 2, 3), np.int32)}, ["scores"])


@pytest.mark.parametrize("content", [b"", b"not a graph", b"\x08\x0a"])
def test_a_corrupted_file_is_a_load_error(load: Load, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "graph.onnx"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"graph\.onnx"):
        load(path)


def test_a_truncated_file_is_a_load_error(load: Load, scores_onnx: Path) -> None:
    scores_onnx.write_bytes(scores_onnx.read_bytes()[:-40])
    with pytest.raises(LoadError, match=r"scores\.onnx"):
        load(scores_onnx)
