"""Layers that stay in float32: the right ones, and as few as the budget needs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import keras
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from modelyard.artifact import SignatureFunction, Source, TensorSpec, VerificationData, json_schema, read_manifest
from modelyard.export import Budget, ExportEvent, ExportReport, export
from modelyard.export.runtimes import load_runtime
from modelyard.export.variants import OnnxVariant, fewest, group_layers, most_tries
from modelyard.export.variants._quantize import saturates
from modelyard.export.variants._sensitivity import MOST_LAYERS
from tests.export.conftest import OPTIONS

# Enough for an accuracy of which two percent are some images.
COUNT = 260
SIZE, WIDTH = 6, 8
# Quantized, a filter whose largest weight is so large keeps nothing of the others.
OUTLIER = 3000.0


class Convolutions(keras.Model):
    """Three convolutions; the second one has a weight in each filter that 8 bits cannot hold beside the others.

    The value that it is multiplied with is nearly always 0, so that ranges of
    activations stay as they are and only these weights are to blame.
    """

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(3)
        first, second, third = (
            keras.layers.Conv2D(WIDTH, 3, padding="same", activation="relu", name=name)
            for name in ("first", "second", "third")
        )
        self.parts = [first, second, third, keras.layers.Flatten(), keras.layers.Dense(3, name="last")]
        self(np.zeros((1, SIZE, SIZE, 1), np.float32))
        kernel, bias = first.get_weights()
        kernel[..., 0], bias[0] = 0.0, 0.0
        first.set_weights([kernel, bias])
        kernel, bias = second.get_weights()
        kernel[1, 1, 0, :] = OUTLIER
        second.set_weights([kernel, bias])

    def call(self, image: Any) -> Any:
        for part in self.parts:
            image = part(image)
        return image


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportReport, list[ExportEvent]]:
    model = Convolutions()
    rng = np.random.default_rng(0)
    images = rng.normal(size=(COUNT, SIZE, SIZE, 1)).astype(np.float32)
    labels = np.argmax(model(images).numpy(), -1).astype(np.int64)
    data = VerificationData(
        inputs={"serving_default": {"image": images}}, labels=labels, class_names=("a", "b", "c"), class_output="logits"
    )
    spec = TensorSpec(name="image", dtype="float32", shape=(-1, SIZE, SIZE, 1))
    signatures = {"serving_default": SignatureFunction(inputs=(spec,), function=lambda image: {"logits": model(image)})}
    options = replace(
        OPTIONS,
        formats=("onnx", "tflite"),
        precision=("float32", "int8_dynamic", "int8"),
        budget=Budget(max_accuracy_drop=0.02),
        calibration_examples=32,
    )
    events: list[ExportEvent] = []
    here = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        found = export(
            model,
            tmp_path_factory.mktemp("repository") / "toy",
            data=data,
            signatures=signatures,
            source=Source(),
            options=options,
            progress=events.append,
        )
    # Whoever exports finds nothing in the folder that the command was given in.
    assert list(here.iterdir()) == []
    return found, events


def test_exactly_the_layer_that_loses_stays_in_float32(report: tuple[ExportReport, list[ExportEvent]]) -> None:
    found, _ = report
    manifest = read_manifest(found.version.path)
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(manifest.to_json()))
    assert not manifest.refused
    for key in ("onnx.int8_dynamic", "onnx.int8", "tflite.int8"):
        entry = manifest.formats[key]
        (kept,) = entry.kept_float32
        assert "second" in kept.layer and kept.operator in ("Conv", "CONV_2D") and kept.graph == "serving_default"
        assert kept.error is not None and kept.error > 1
        assert entry.verify.accuracy_drop is not None and entry.verify.accuracy_drop <= 0.02
    assert manifest.formats["onnx"].kept_float32 == ()


def test_weights_are_in_the_precision_that_the_manifest_says(report: tuple[ExportReport, list[ExportEvent]]) -> None:
    found, _ = report
    for precision, kind in (("int8", "DequantizeLinear"), ("int8_dynamic", "Mul")):
        graph = onnx.load(found.version.path / "onnx" / precision / "serving_default.onnx").graph
        makers = {name: node.op_type for node in graph.node for name in node.output}
        weights = {node.name: makers.get(node.input[1]) for node in graph.node if node.op_type == "Conv"}
        # How often a function is called by another one differs from run to run, and with it the rest of the names.
        found_kinds = {
            layer: maker
            for name, maker in weights.items()
            for layer in ("first", "second", "third")
            if f"/{layer}" in name
        }
        assert found_kinds == {"first": kind, "second": None, "third": kind}, weights


def test_the_search_is_bounded_and_shown(report: tuple[ExportReport, list[ExportEvent]]) -> None:
    _, events = report
    for key, layers in (("onnx.int8_dynamic", 4), ("onnx.int8", 5), ("tflite.int8", 4)):
        ranked = [each for each in events if each.stage == f"sensitivity {key}"]
        assert [each.done for each in ranked] == list(range(1, layers + 1)) and {each.total for each in ranked} == {
            layers
        }
        tries = [each for each in events if each.stage == f"budget {key}"]
        assert 1 <= len(tries) <= tries[0].total == most_tries(layers - 1)


def test_accuracy_of_each_class_is_in_the_manifest(report: tuple[ExportReport, list[ExportEvent]]) -> None:
    found, _ = report
    for entry in found.manifest.formats.values():
        verify = entry.verify
        assert [each.name for each in verify.by_class] == ["a", "b", "c"]
        assert sum(each.examples for each in verify.by_class) == COUNT
        for share, attribute in ((verify.metric_before, "before"), (verify.metric_after, "after")):
            right = sum(getattr(each, attribute) * each.examples for each in verify.by_class)
            assert share == pytest.approx(right / COUNT)


def test_the_page_says_which_layers_and_why(report: tuple[ExportReport, list[ExportEvent]]) -> None:
    found, _ = report
    page = found.report_html.read_text("utf-8")
    assert "Layers in float32" in page and "second_1/convolution" in page and "120.2%" in page
    assert "1 layer in float32" in str(found)


def test_the_smallest_number_that_holds_is_found() -> None:
    for most in range(40):
        for wanted in range(1, most + 3):
            tried: list[int] = []

            def holds(count: int, wanted: int = wanted, tried: list[int] = tried) -> bool:
                tried.append(count)
                return count >= wanted

            assert fewest(most, holds) == (wanted if wanted <= most else None)
            assert len(tried) == len(set(tried)) <= most_tries(most)


def test_a_layer_is_weights_and_what_follows_them() -> None:
    nodes = [("cast", "Cast"), ("a", "Conv"), ("relu", "Relu"), ("b", "Conv"), ("add", "Add")]
    assert [each.nodes for each in group_layers("g", nodes, {"Conv"})] == [("cast",), ("a", "relu"), ("b", "add")]
    many = [(f"conv{index}", "Conv") for index in range(3 * MOST_LAYERS - 1)]
    merged = group_layers("g", many, {"Conv"})
    assert len(merged) == MOST_LAYERS and sum((each.nodes for each in merged), ()) == tuple(name for name, _ in many)


def test_sixteen_bits_keep_what_is_too_small_or_too_large_for_them(tmp_path: Path) -> None:
    """Values of 1e-9 in one layer and 1e7 at the input: all the same, or infinite, in 16 bits."""
    import tensorflow as tf

    rng = np.random.default_rng(1)
    root = tf.Module()
    root.weights = [tf.Variable(rng.normal(size=(8, 8)).astype(np.float32) * scale) for scale in (1e-16, 1e9, 1.0, 1.0)]
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 8))

    def compute(x: Any) -> dict[str, Any]:
        for weight in root.weights:
            x = tf.nn.relu(x @ weight + 0.1 * x[:, ::-1] * tf.reduce_max(tf.abs(weight)))
        return {"y": x}

    data = VerificationData(inputs={"f": {"x": (1e7 * rng.normal(size=(COUNT, 8))).astype(np.float32)}})
    options = replace(OPTIONS, formats=("onnx",), precision=("float32", "float16"))
    report = export(
        root,
        tmp_path / "m",
        data=data,
        signatures={"f": SignatureFunction(inputs=(spec,), function=compute)},
        source=Source(),
        options=options,
    )
    assert not report.manifest.refused
    kept = report.manifest.formats["onnx.float16"].kept_float32
    assert 1 <= len(kept) <= 3
    graph = onnx.load(report.version.path / "onnx" / "float16" / "f.onnx").graph
    types = {each.data_type for each in graph.initializer if list(each.dims) == [8, 8]}
    assert types == {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}


def test_weights_of_what_has_no_integer_kernel_are_stored_in_8_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, npt.NDArray[Any]] = {
        "up": rng.normal(size=(6, 4, 3, 3)).astype(np.float32),
        "w": rng.normal(size=(1, 24, 36)).astype(np.float32),
        "r": rng.normal(size=(1, 24, 8)).astype(np.float32),
        "shape": np.array([9, -1, 36], np.int64),
    }
    # One channel and one gate of zeros: there is no scale for them.
    arrays["up"][:, 1] = arrays["w"][0, 3] = 0.0
    nodes = [
        helper.make_node("ConvTranspose", ["x", "up"], ["large"], pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["large", "shape"], ["steps"]),
        helper.make_node("GRU", ["steps", "w", "r"], ["", "y"], hidden_size=8),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [9, 6, 3, 3])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in arrays.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    (tmp_path / "onnx").mkdir()
    onnx.save(model, tmp_path / "onnx" / "f.onnx")
    OnnxVariant(tmp_path, precision="int8_dynamic", calibration=None, work=tmp_path).write(tmp_path)
    stored = onnx.load(tmp_path / "onnx" / "int8_dynamic" / "f.onnx")
    sizes = {each.name: numpy_helper.to_array(each).nbytes for each in stored.graph.initializer}
    assert {"up_int8", "w_int8", "r_int8"} < set(sizes) and not {"up", "w", "r"} & set(sizes)
    x = {"x": rng.normal(size=(9, 6, 3, 3)).astype(np.float32)}
    exact, rounded = (
        load_runtime("onnx", tmp_path, precision=each).run("f", x)["y"] for each in ("float32", "int8_dynamic")
    )
    assert 1e-5 < np.abs(exact - rounded).max() < 0.05


def test_weights_are_narrower_where_products_are_added_in_16_bits(tmp_path: Path) -> None:
    facts = tmp_path / "cpuinfo"
    assert saturates("x86_64", facts)
    facts.write_text("flags : avx2 avx512f avx512_vnni")
    assert not saturates("x86_64", facts) and not saturates("AMD64", facts)
    facts.write_text("flags : avx2 avx512f")
    assert saturates("AMD64", facts) and not saturates("aarch64", facts)
