"""A real Fashion-MNIST classifier that needs no training run: a Gaussian model with one mean per class.

With a shared isotropic covariance, class probabilities are a softmax of a linear
function of the pixels (Bishop, Pattern Recognition and Machine Learning, 4.2.1).
It is right on about two of three test images, which is enough to tell a server
that answers from one that guesses.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    PREPROCESS_SUFFIX,
    ImageDecode,
    ModelVersion,
    Signature,
    Source,
    TensorSpec,
)
from modelyard.training.data import FashionMnist
from tests.support.models import publish_graphs

IMAGE_BYTES = "image_bytes"
_OUTPUTS = (
    TensorSpec(name="class_id", dtype="int64", shape=(-1,)),
    TensorSpec(name="label", dtype="string", shape=(-1,)),
    TensorSpec(name="probabilities", dtype="float32", shape=(-1, 10)),
)


def publish_classifier(model_dir: Path, data: FashionMnist) -> ModelVersion:
    """Fits the means on 10,000 training images and publishes both signatures of the task ``fashion``."""
    images = data.train_images[:10_000].reshape(-1, 784).astype(np.float64) / 255
    labels = data.train_labels[:10_000]
    means = np.stack([images[labels == label].mean(axis=0) for label in range(10)])
    variance = float(np.mean((images - means[labels]) ** 2)) * 20
    compute = _compute(means / variance, -(means**2).sum(axis=1) / (2 * variance), data.class_names)
    preprocess = IMAGE_BYTES + PREPROCESS_SUFFIX
    signatures = {
        DEFAULT_SIGNATURE: Signature(
            inputs=(TensorSpec(name="image", dtype="float32", shape=(-1, 28, 28, 1)),),
            outputs=_OUTPUTS,
            compute=DEFAULT_SIGNATURE,
        ),
        IMAGE_BYTES: Signature(
            inputs=(TensorSpec(name=IMAGE_BYTES, dtype="string", shape=(-1,)),),
            outputs=_OUTPUTS,
            compute=DEFAULT_SIGNATURE,
            decode=ImageDecode(input=IMAGE_BYTES, channels=1),
            preprocess=preprocess,
        ),
    }
    graphs = {DEFAULT_SIGNATURE: compute, preprocess: _preprocess()}
    version = publish_graphs(model_dir, graphs, signatures, Source(task="fashion"))
    assert isinstance(version, ModelVersion)
    return version


def _compute(weights: np.ndarray, biases: np.ndarray, labels: tuple[str, ...]) -> onnx.GraphProto:
    constants = [
        numpy_helper.from_array(np.array([-1, 784], dtype=np.int64), "flat_shape"),
        numpy_helper.from_array(weights.T.astype(np.float32), "weights"),
        numpy_helper.from_array(biases.astype(np.float32), "biases"),
        numpy_helper.from_array(np.array(labels, dtype=object), "labels"),
    ]
    nodes = [
        helper.make_node("Reshape", ["image", "flat_shape"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "biases"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
        helper.make_node("ArgMax", ["logits"], ["class_id"], axis=1, keepdims=0),
        helper.make_node("Gather", ["labels", "class_id"], ["label"]),
    ]
    return helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 28, 28, 1])],
        [
            helper.make_tensor_value_info("class_id", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("label", TensorProto.STRING, ["batch"]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10]),
        ],
        constants,
    )


def _preprocess() -> onnx.GraphProto:
    constants = [
        numpy_helper.from_array(np.array([28, 28, 1], dtype=np.int64), "sizes"),
        numpy_helper.from_array(np.array(255, dtype=np.float32), "top"),
    ]
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["floats", "top"], ["scaled"]),
        helper.make_node("Resize", ["scaled", "", "", "sizes"], ["image"], mode="linear"),
    ]
    return helper.make_graph(
        nodes,
        "preprocess",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["height", "width", 1])],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [28, 28, 1])],
        constants,
    )
