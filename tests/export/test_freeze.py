"""Both converters start from the frozen graph: it must be the same function without variables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec, VerificationData
from modelyard.export import ExportOptions, TracedModel, compute_reference, trace, verify
from modelyard.export.formats import _freeze, export_onnx, export_tflite, freeze

OPTIONS = ExportOptions(min_examples=8)


@pytest.fixture(params=[_freeze.LARGE, 64], ids=["weights inside", "weights beside"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes from which a weight is beside the graph; 64 is larger than any shape, and smaller than any kernel here."""
    monkeypatch.setattr(_freeze, "LARGE", request.param)
    return int(request.param)


def check(
    model: Any, function: SignatureFunction, examples: np.ndarray[Any, Any], folder: Path, *formats: str, most: float
) -> None:
    traced = trace(model, {"f": function})
    (spec,) = function.inputs
    reference = compute_reference(traced, VerificationData(inputs={"f": {spec.name: examples}}), options=OPTIONS)
    for format in formats:
        if format == "onnx":
            export_onnx(traced, folder, opset=18)
        else:
            export_tflite(traced, folder)
        assert verify(reference, folder, format=format, options=OPTIONS).report.max_abs_error <= most


def test_no_variables_and_the_same_answers(traced: TracedModel) -> None:
    function = traced.graphs["serving_default"]
    frozen = freeze(function)
    assert not frozen.weights
    assert function.get_concrete_function().variables
    assert not frozen.function.get_concrete_function().variables
    image = tf.random.stateless_uniform([7, 8, 8, 1], [1, 2])
    expected, answer = function(image), frozen.function(image)
    assert list(answer) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(answer[name].numpy(), value.numpy())


def test_large_weights_are_beside_the_graph(traced: TracedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_freeze, "LARGE", 64)
    function = traced.graphs["serving_default"]
    concrete = function.get_concrete_function()
    frozen = freeze(function)
    sizes = sorted(4 * variable.shape.num_elements() for variable in concrete.variables)
    assert sorted(value.nbytes for value in frozen.weights) == [size for size in sizes if size >= 64]
    bound, variables = frozen.bound()
    assert [variable.shape for variable in variables] == [value.shape for value in frozen.weights]
    graph = bound.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for body in graph.library.function for node in body.node_def)]
    contents = [len(node.attr["value"].tensor.tensor_content) for node in nodes if node.op == "Const"]
    # Small weights and shapes; that the kernel of 1,296 bytes is not among them is the point.
    assert 0 < max(contents) < 64 < max(sizes)
    image = tf.random.stateless_uniform([7, 8, 8, 1], [1, 2])
    for answer in (frozen.function(image, *frozen.weights), bound(image)):
        assert list(answer) == sorted(concrete.structured_outputs)
        for name, value in function(image).items():
            np.testing.assert_array_equal(answer[name].numpy(), value.numpy())


def in_a_loop(x: Any) -> Any:
    return tf.while_loop(
        lambda step, _: step < 2,
        lambda step, image: (step + 1, tf.image.resize(tf.cast(image, tf.uint8), [6, 6])),
        [0, tf.cast(x, tf.float32)],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, None, None, 3])],
    )[1]


RESIZES: dict[str, Callable[[Any], Any]] = {
    "bilinear": lambda x: tf.image.resize(x, [6, 6]),
    "nearest": lambda x: tf.image.resize(x, [6, 6], method="nearest"),
    "loop": in_a_loop,
}


@pytest.mark.parametrize("name", RESIZES)
def test_integer_images_are_resized_as_tensorflow_does(name: str) -> None:
    """Neither converter casts by itself: one makes an invalid graph, the other stops."""
    spec = tf.TensorSpec([None, 4, 5, 3], tf.uint8, name="x")
    function = tf.function(lambda x: {"y": RESIZES[name](x)}, input_signature=[spec])
    x = tf.constant(np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), np.uint8))
    np.testing.assert_array_equal(freeze(function).function(x)["y"].numpy(), function(x)["y"].numpy())


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_a_resize_of_integers_in_both_formats(tmp_path: Path, dtype: str) -> None:
    spec = TensorSpec(name="x", dtype=dtype, shape=(-1, 4, 5, 3))
    function = SignatureFunction(inputs=(spec,), function=lambda x: {"y": tf.image.resize(x, [6, 6]) / 255.0})
    examples = np.random.default_rng(0).integers(0, 256, (9, 4, 5, 3)).astype(dtype)
    check(tf.Module(), function, examples, tmp_path, "onnx", "tflite", most=1e-5)


@pytest.mark.usefixtures("large")
def test_a_recurrent_model_keeps_its_loop(tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6, 3)), keras.layers.GRU(4), keras.layers.Dense(2)])
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 6, 3))
    function = SignatureFunction(inputs=(spec,), function=lambda x: {"y": model(x, training=False)})
    examples = np.random.default_rng(0).random((9, 6, 3), np.float32)
    check(model, function, examples, tmp_path, "onnx", "tflite", most=1e-5)


def test_an_embedding_looked_up_in_a_loop() -> None:
    """A decoder that feeds itself: TensorFlow leaves such a lookup without its variable."""
    rng = np.random.default_rng(0)
    model = tf.Module()
    model.table = tf.Variable(rng.normal(size=(9, 9)).astype(np.float32))
    model.places = tf.Variable(rng.normal(size=(3, 9)).astype(np.float32))

    @tf.function
    def decode(token: Any) -> dict[str, Any]:
        score = tf.zeros([tf.shape(token)[0]])
        for step in tf.range(3):
            logits = tf.gather(model.table, token) + tf.gather_nd(model.places, [step])
            token = tf.argmax(logits, 1, output_type=tf.int32)
            score += tf.reduce_max(logits, 1)
        return {"score": score}

    spec = TensorSpec(name="token", dtype="int32", shape=(-1,))
    function = trace(model, {"f": SignatureFunction(inputs=(spec,), function=decode)}).graphs["f"]
    tokens = tf.range(9)
    answer = freeze(function).function(tokens)["score"]
    np.testing.assert_allclose(answer.numpy(), decode(tokens)["score"].numpy(), rtol=1e-6)


def test_convolutions_with_groups(tmp_path: Path, large: int) -> None:
    """Keras compiles them by XLA, and tf2onnx knows no such call."""
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Conv2D(6, 3, groups=6, padding="same"),
        keras.layers.Conv2D(4, 3, groups=2, strides=2, activation="swish"),
    ]
    model = keras.Sequential([keras.Input((8, 8, 6)), *layers])
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 8, 8, 6))
    function = SignatureFunction(inputs=(spec,), function=lambda x: {"y": model(x, training=False)})
    examples = np.random.default_rng(0).random((9, 8, 8, 6), np.float32)
    check(model, function, examples, tmp_path, "onnx", "tflite", most=1e-5)
    assert bool(freeze(trace(model, {"f": function}).graphs["f"]).weights) == (large == 64)


@pytest.mark.usefixtures("large")
def test_a_text_classifier(tmp_path: Path) -> None:
    """A table that is looked up, a kernel of one dimension, a layer that is used twice, and one in a branch."""
    keras.utils.set_random_seed(1)
    table, dense = keras.layers.Embedding(50, 8), keras.layers.Dense(8)
    layers = [keras.layers.Conv1D(8, 3, padding="same"), keras.layers.BatchNormalization(), dense]
    tail = [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((12,), dtype="int32"), table, *layers, dense, *tail])
    other = keras.layers.Dense(3)
    other.build((None, 3))
    module = tf.Module()
    module.layers = [model, other]

    def classify(x: Any) -> dict[str, Any]:
        logits = model(x, training=False)
        return {"y": tf.cond(tf.shape(logits)[0] > 1, lambda: other(logits), lambda: other(logits) * 1.0)}

    spec = TensorSpec(name="x", dtype="int32", shape=(-1, 12))
    examples = np.random.default_rng(0).integers(0, 50, (9, 12), np.int32)
    check(module, SignatureFunction(inputs=(spec,), function=classify), examples, tmp_path, "onnx", "tflite", most=1e-5)


def test_gelu_as_keras_writes_it(tmp_path: Path) -> None:
    """By the complement of the error function, which ONNX does not have; far from zero it must not lose itself."""
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 4))
    function = SignatureFunction(
        inputs=(spec,), function=lambda x: {"y": keras.activations.gelu(x, approximate=False), "z": tf.math.erfc(x)}
    )
    examples = np.linspace(-9, 9, 36, dtype=np.float32).reshape(9, 4)
    check(tf.Module(), function, examples, tmp_path, "onnx", most=1e-6)


@pytest.mark.usefixtures("large")
def test_a_scalar_added_to_a_convolution(tmp_path: Path) -> None:
    """As MobileNetV3's activation does; tf2onnx takes it for the convolution's bias, and stops."""
    layer = keras.layers.Conv2D(4, 3, use_bias=False)
    layer.build((None, 8, 8, 3))
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 8, 8, 3))
    function = SignatureFunction(inputs=(spec,), function=lambda x: {"y": tf.nn.relu6(layer(x) + 3.0) / 6.0})
    examples = np.random.default_rng(0).random((9, 8, 8, 3), np.float32)
    check(layer, function, examples, tmp_path, "onnx", most=1e-6)
