"""Encoded images whose preprocess step takes one size only."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from modelyard.artifact import PREPROCESS_SUFFIX, ImageDecode, Signature, Source, TensorSpec
from modelyard.errors import PredictionError
from modelyard.serving import LoadOptions, load_servable
from tests.support.models import publish_graphs


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(width * height, dtype=np.uint8).reshape(height, width)).save(buffer, "PNG")
    return buffer.getvalue()


def images(*encoded: bytes) -> dict[str, np.ndarray]:
    return {"bytes": np.array(encoded, dtype=object)}


def test_an_image_of_another_size_is_named(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    preprocess = helper.make_graph(
        [
            helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("Reshape", ["floats", "sizes"], ["image"]),
        ],
        "preprocess",
        [info("pixels", TensorProto.UINT8, ["height", "width", 1])],
        [info("image", TensorProto.FLOAT, [2, 2, 1])],
        [numpy_helper.from_array(np.array([2, 2, 1], dtype=np.int64), "sizes")],
    )
    compute = helper.make_graph(
        [helper.make_node("Neg", ["image"], ["y"])],
        "compute",
        [info("image", TensorProto.FLOAT, ["batch", 2, 2, 1])],
        [info("y", TensorProto.FLOAT, ["batch", 2, 2, 1])],
    )
    signature = Signature(
        inputs=(TensorSpec(name="bytes", dtype="string", shape=(-1,)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1, 2, 2, 1)),),
        compute="compute",
        decode=ImageDecode(input="bytes", channels=1),
        preprocess=f"bytes{PREPROCESS_SUFFIX}",
    )
    plain = Signature(
        inputs=(TensorSpec(name="image", dtype="float32", shape=(-1, 2, 2, 1)),),
        outputs=signature.outputs,
        compute="compute",
    )
    graphs = {"compute": compute, f"bytes{PREPROCESS_SUFFIX}": preprocess}
    publish_graphs(tmp_path / "pixels", graphs, {"compute": plain, "bytes": signature}, Source())
    servable = load_servable("pixels", 1, tmp_path / "pixels" / "1", LoadOptions())

    answer = servable.run(signature, images(png(2, 2), png(2, 2)), ["y"])["y"]
    assert answer.tolist() == [[[[0.0], [-1.0]], [[-2.0], [-3.0]]]] * 2
    said = r"^Input 'bytes', element 1: the model cannot preprocess this image of 3 x 2 pixels; .* one size only\. onnx"
    with pytest.raises(PredictionError, match=said):
        servable.run(signature, images(png(2, 2), png(3, 2)), ["y"])
