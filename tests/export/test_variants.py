"""Variants of lower precision: made, verified, held to a budget, measured, and served as the manifest says."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter

from modelyard.artifact import (
    MANIFEST_NAME,
    RuntimeChoice,
    SignatureFunction,
    Source,
    TensorSpec,
    VerificationData,
    json_schema,
    read_manifest,
    verify_files,
)
from modelyard.errors import ConversionError, LoadError, PublishError, VerificationError
from modelyard.export import Budget, ExportReport, Precision, export
from modelyard.export.formats import LARGE, newest_opset
from modelyard.export.runtimes import load_runtime, runtimes_of
from modelyard.export.variants import OnnxVariant, make_calibration
from modelyard.serving import LoadOptions, load_servable
from tests.export.conftest import COUNT, OPTIONS, Classifier, Signatures

ALL: tuple[Precision, ...] = ("float32", "float16", "bfloat16", "int8_dynamic", "int8")
WIDE = Budget(max_accuracy_drop=0.05, max_abs_error=0.5)
HAS_BFLOAT16 = bool(runtimes_of("onnx", "bfloat16"))


@pytest.fixture(scope="module")
def report(
    classifier: Classifier, signatures: Signatures, data: VerificationData, tmp_path_factory: pytest.TempPathFactory
) -> ExportReport:
    options = replace(OPTIONS, precision=ALL, budget=WIDE, runtimes=None)
    model_dir = tmp_path_factory.mktemp("repository") / "toy"
    return export(classifier, model_dir, data=data, signatures=signatures, source=Source(), options=options)


def test_every_variant_is_a_file_of_its_own_beside_the_float32_files(report: ExportReport) -> None:
    root = report.version.path
    graphs = ("embed", "image_bytes.preprocess", "serving_default")
    expected = {
        f"onnx/{folder}{graph}.onnx" for folder in ("", "float16/", "int8_dynamic/", "int8/") for graph in graphs
    }
    expected |= {"model.tflite"} | {f"model.{precision}.tflite" for precision in ("float16", "int8_dynamic", "int8")}
    files = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.suffix in (".onnx", ".tflite")}
    assert files == expected
    manifest = read_manifest(root)
    verify_files(root, manifest)
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(manifest.to_json()))
    keys = {"saved_model", "onnx", "tflite"} | {f"{f}.{p}" for f in ("onnx", "tflite") for p in ALL[1:]}
    assert set(manifest.formats) == keys - {"tflite.bfloat16"} - (set() if HAS_BFLOAT16 else {"onnx.bfloat16"})
    for key, entry in manifest.formats.items():
        assert entry.precision == (key.partition(".")[2] or "float32")
        assert (entry.verify.accuracy_drop is None) == (entry.precision == "float32")
        assert set(entry.other_runtimes) == (
            {"openvino"} if key.startswith("onnx") and entry.precision != "bfloat16" else set()
        )
    # Each is less exact than float32, and none is far off.
    errors = {key: entry.verify.max_abs_error for key, entry in manifest.formats.items()}
    assert 1e-5 < errors["onnx.float16"] < errors["onnx.int8"] < 0.5
    assert 1e-5 < errors["tflite.float16"] < errors["tflite.int8"] < 0.5


def test_what_no_runtime_computes_is_refused(report: ExportReport) -> None:
    found = {(each.format, each.precision): each for each in report.manifest.refused}
    assert "no runtime installed here computes bfloat16" in found["tflite", "bfloat16"].reason
    assert found["tflite", "bfloat16"].measure == "failure"


def test_full_integer_is_quantized_per_channel_with_qdq(report: ExportReport) -> None:
    graph = onnx.load(report.version.path / "onnx" / "int8" / "serving_default.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert "QuantizeLinear" in kinds and "DequantizeLinear" in kinds
    initializers = {each.name: each for each in graph.initializer}
    conv = next(node for node in graph.node if node.op_type == "Conv")
    weights = next(node for node in graph.node if conv.input[1] in node.output)
    # One scale for each of the four filters.
    assert list(initializers[weights.input[1]].dims) == [4]
    assert initializers[weights.input[0]].data_type == onnx.TensorProto.INT8
    details = Interpreter(str(report.version.path / "model.int8.tflite")).get_tensor_details()
    assert any(len(each["quantization_parameters"]["scales"]) == 4 for each in details)
    # Resizing and scaling is no matter of calibration: it stays exact.
    plain, int8 = (
        (report.version.path / "onnx" / folder / "image_bytes.preprocess.onnx").read_bytes() for folder in ("", "int8")
    )
    assert plain == int8


def test_rows_of_a_dynamic_range_are_dependent(report: ExportReport) -> None:
    """In ONNX the range is that of the batch, so that an outlier moves its neighbours; in TFLite a row has its own."""
    formats = report.manifest.formats
    for name, verdict in (("onnx", "independent"), ("onnx.int8", "independent"), ("onnx.int8_dynamic", "dependent")):
        assert formats[name].verify.rows["serving_default"].verdict == verdict, name
    assert "beside a row" in formats["onnx.int8_dynamic"].verify.rows["serving_default"].reason
    assert formats["tflite.int8_dynamic"].verify.rows["serving_default"].verdict == "independent"


def test_inputs_and_outputs_keep_their_dtypes(report: ExportReport, data: VerificationData) -> None:
    images = data.inputs["serving_default"]["image"][:3]
    for format in ("onnx", "tflite"):
        for precision in ("float16", "int8_dynamic", "int8"):
            answer = load_runtime(format, report.version.path, precision=precision).run(
                "serving_default", {"image": images}
            )
            assert {key: value.dtype.kind for key, value in answer.items()} == {
                "probabilities": "f", "class_id": "i", "label": "O",
            }  # fmt: skip
            assert answer["probabilities"].dtype == np.float32


def test_everything_that_may_serve_is_measured(report: ExportReport) -> None:
    manifest = report.manifest
    measured = {(each.format, each.precision, each.runtime) for each in manifest.latency}
    verified = set()
    for entry in manifest.formats.values():
        format = "saved_model" if entry.path == "." else "onnx" if entry.path.startswith("onnx") else "tflite"
        own = {"tensorflow": "tensorflow", "ai-edge-litert": "litert"}
        verified |= {(format, entry.precision, own.get(each, each)) for each in (*entry.runtime, *entry.other_runtimes)}
    assert measured == verified
    assert {each.runtime for each in manifest.choices} == {"onnxruntime", "openvino", "litert", "tensorflow"}
    page = report.report_html.read_text("utf-8")
    for text in ("onnx.int8", "tflite.int8_dynamic", "times as fast as TensorFlow", "tflite.bfloat16 was refused"):
        assert text in page


def chosen(report: ExportReport, folder: Path, choice: RuntimeChoice) -> Path:
    """A version whose manifest says something else: measuring decides, and nobody knows what."""
    copy = folder / "toy" / "1"
    shutil.copytree(report.version.path, copy)
    manifest = replace(report.manifest, runtime=choice.runtime, choices=(choice, *report.manifest.choices))
    (copy / MANIFEST_NAME).write_text(manifest.to_json())
    return copy


@pytest.mark.parametrize(
    ("runtime", "precision"),
    [("onnxruntime", "int8"), ("litert", "int8"), ("openvino", "float16"), ("openvino", "bfloat16")],
)
def test_the_server_loads_what_the_manifest_chose(
    report: ExportReport,
    data: VerificationData,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    runtime: str,
    precision: str,
) -> None:
    if precision == "bfloat16" and not HAS_BFLOAT16:
        pytest.skip("This processor has no bfloat16.")
    format = "tflite" if runtime == "litert" else "onnx"
    choice = RuntimeChoice(runtime=runtime, format=format, precision=precision, threads=2, p50_us=1.0)
    path = chosen(report, tmp_path, choice)
    images = {"image": data.inputs["serving_default"]["image"][:32]}
    with caplog.at_level(logging.INFO, logger="modelyard.serving"):
        servable = load_servable("toy", 1, path, LoadOptions())
    assert servable.backend.name == runtime
    assert f"{format}.{precision} with {runtime}" in caplog.text
    answer = servable.run(servable.signature("serving_default"), images, ["probabilities"])["probabilities"]
    servable.close()
    same = load_runtime(format, report.version.path, precision=precision, runtime=runtime)
    exact = load_runtime(format, report.version.path, runtime=runtime)
    np.testing.assert_allclose(answer, same.run("serving_default", images)["probabilities"], atol=1e-6)
    assert np.abs(answer - exact.run("serving_default", images)["probabilities"]).max() > 1e-5


def test_flags_override_the_manifest(report: ExportReport, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    choice = RuntimeChoice(runtime="litert", format="tflite", precision="int8", threads=2, p50_us=1.0)
    path = chosen(report, tmp_path, choice)
    for options, expected in (
        (LoadOptions(precision="float32", threads=1), "tflite with litert, 1 thread(s)"),
        (LoadOptions(prefer_tflite=True), "tflite with litert"),
        (LoadOptions(runtime="onnxruntime", precision="float16"), "onnx.float16 with onnxruntime"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="modelyard.serving"):
            load_servable("toy", 1, path, options).close()
        assert expected in caplog.text
    with pytest.raises(
        LoadError, match="nothing of precision bfloat16 that was verified in onnxruntime; there is float"
    ):
        load_servable("toy", 1, path, LoadOptions(runtime="onnxruntime", precision="bfloat16"))


X = TensorSpec(name="x", dtype="float32", shape=(-1, 4))
FLOATS = VerificationData(inputs={"f": {"x": np.random.default_rng(0).normal(size=(COUNT, 4)).astype(np.float32)}})


@pytest.fixture(scope="module")
def dense() -> Any:
    import tensorflow as tf

    root = tf.Module()
    root.w = tf.Variable(np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32))
    root.signatures = {"f": SignatureFunction(inputs=(X,), function=lambda x: {"y": x @ root.w})}
    return root


def export_dense(dense: Any, folder: Path, **changes: Any) -> ExportReport:
    options = replace(OPTIONS, **({"formats": ("onnx",)} | changes))
    return export(dense, folder / "m", data=FLOATS, signatures=dense.signatures, source=Source(), options=options)


def test_outside_the_budget_it_is_refused_by_name_and_figure(dense: Any, tmp_path: Path) -> None:
    report = export_dense(dense, tmp_path, precision=("float32", "int8"), budget=Budget(max_abs_error=1e-6))
    (refusal,) = report.manifest.refused
    assert (refusal.format, refusal.precision, refusal.runtime, refusal.measure) == (
        "onnx", "int8", "onnxruntime", "abs_error",
    )  # fmt: skip
    assert refusal.value is not None and refusal.value > 1e-6 and refusal.allowed == 1e-6
    assert f"Variant onnx.int8 in onnxruntime: the largest absolute error is {refusal.value:.3g}" in refusal.reason
    assert not (report.version.path / "onnx" / "int8").exists()
    assert set(report.manifest.formats) == {"onnx"} and {each.precision for each in report.manifest.latency} == {
        "float32"
    }
    assert "onnx.int8 in onnxruntime was refused" in report.report_html.read_text("utf-8")


def test_floats_alone_are_held_to_a_share_of_their_spread(dense: Any, tmp_path: Path) -> None:
    budget = Budget(max_spread_error=1e-4)
    report = export_dense(dense, tmp_path, precision=("float32", "int8"), budget=budget)
    (refusal,) = report.manifest.refused
    assert refusal.measure == "spread_error" and "no class of signature 'f' shows its accuracy" in refusal.reason


def test_an_integer_output_without_a_row_in_any_example_is_equal(dense: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    def function(x: Any) -> dict[str, Any]:
        return {"y": x @ dense.w, "rows": tf.where(x[:, 0] > 100.0)}

    report = export(
        dense,
        tmp_path / "m",
        data=FLOATS,
        signatures={"f": SignatureFunction(inputs=(X,), function=function)},
        source=Source(),
        options=replace(OPTIONS, formats=("onnx",)),
    )
    assert report.checks["onnx"].report.max_abs_error < 1e-5


def test_what_says_nothing_of_accuracy_lifts_no_limit(dense: Any, tmp_path: Path) -> None:
    """An integer that is handed through, and one that is the same for all."""
    identity = TensorSpec(name="id", dtype="int64", shape=(-1,))

    def function(x: Any, id: Any) -> dict[str, Any]:
        return {"y": x @ dense.w, "id": id + 0, "version": 0 * id + 7}

    report = export(
        dense,
        tmp_path / "m",
        data=VerificationData(inputs={"f": {**FLOATS.inputs["f"], "id": np.arange(COUNT)}}),
        signatures={"f": SignatureFunction(inputs=(X, identity), function=function)},
        source=Source(),
        options=replace(
            OPTIONS, formats=("onnx",), precision=("float32", "int8"), budget=Budget(max_spread_error=1e-4)
        ),
    )
    # Its only layer that was quantized is computed in float32 again.
    assert report.checks["onnx.int8"].spread_error["f"] <= 1e-4


def test_asked_for_alone_it_is_an_error_that_names_it(dense: Any, tmp_path: Path) -> None:
    with pytest.raises(
        VerificationError, match=r"Format onnx was asked for in int8 only.*absolute error is .* allows 1e-06"
    ):
        export_dense(dense, tmp_path, precision=("int8",), budget=Budget(max_abs_error=1e-6))
    assert list((tmp_path / "m").iterdir()) == []


def test_asked_for_alone_it_is_published_alone(dense: Any, tmp_path: Path) -> None:
    report = export_dense(
        dense, tmp_path, formats=("onnx", "tflite"), precision=("int8",), budget=Budget(max_abs_error=2.0)
    )
    names = {path.relative_to(report.version.path).as_posix() for path in report.version.path.rglob("*.*")}
    assert {"onnx/int8/f.onnx", "model.int8.tflite"} < names and not {"onnx/f.onnx", "model.tflite"} & names
    servable = load_servable("m", 1, report.version.path, LoadOptions())
    answer = servable.run(servable.signature("f"), {"x": FLOATS.inputs["f"]["x"][:5]}, ["y"])["y"]
    np.testing.assert_allclose(answer, FLOATS.inputs["f"]["x"][:5] @ dense.w.numpy(), atol=2.0)
    servable.close()


def test_accuracy_decides_where_there_are_labels(dense: Any, tmp_path: Path) -> None:
    """One layer, so there is none that could stay in float32."""
    x = FLOATS.inputs["f"]["x"]
    labels = np.argmax(x @ dense.w.numpy(), -1).astype(np.int64)
    options = replace(OPTIONS, formats=("onnx",), precision=("float32", "int8"), budget=Budget(max_accuracy_drop=0.0))
    report = export(
        dense,
        tmp_path / "m",
        data=replace(FLOATS, labels=labels, class_output="y"),
        signatures=dense.signatures,
        source=Source(),
        options=options,
        calibration=VerificationData(inputs={"f": {"x": x * 50}}),
    )
    (refusal,) = report.manifest.refused
    assert refusal.measure == "accuracy_drop" and refusal.value is not None and 0 < refusal.value <= 1
    assert f"the accuracy drops by {refusal.value:.2%} (the metric was 100.00% and is" in refusal.reason


def test_calibration_needs_examples_of_every_graph(reference: Any, data: VerificationData) -> None:
    half = VerificationData(inputs={"embed": data.inputs["embed"]})
    with pytest.raises(VerificationError, match="no examples of signature 'serving_default' to calibrate int8 on"):
        make_calibration(reference.source.signatures, half, limit=8)
    whole = make_calibration(reference.source.signatures, data, limit=8)
    assert {graph: len(inputs["image"]) for graph, inputs in whole.inputs.items()} == {"serving_default": 8, "embed": 8}
    assert [len(batch["image"]) for batch in whole.examples("embed", 3)] == [3, 3, 2]
    assert list(whole.examples("image_bytes.preprocess")) == []


def test_an_onnx_file_has_variants(report: ExportReport, data: VerificationData, tmp_path: Path) -> None:
    arrays = {"image": data.inputs["serving_default"]["image"]}
    options = replace(OPTIONS, precision=("float32", "int8"), budget=WIDE)
    source = report.version.path / "onnx" / "serving_default.onnx"
    found = export(source, tmp_path / "a", data=arrays, options=options)
    assert set(found.manifest.formats) == {"onnx", "onnx.int8"}
    assert found.manifest.formats["onnx"].converter == {}
    assert set(found.manifest.formats["onnx.int8"].converter) == {"onnxruntime"}


def test_what_cannot_be_converted_is_named(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "f.onnx").write_bytes(b"no graph")
    for precision in ("float16", "int8_dynamic"):
        place = f"Format onnx, precision {precision}, graph 'f': the conversion failed"
        with pytest.raises(ConversionError, match=place):
            OnnxVariant(tmp_path, precision=precision, calibration=None, work=tmp_path).write(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(PublishError):
        OnnxVariant(tmp_path, precision="float16", calibration=None, work=tmp_path).write(tmp_path / "file")


def test_nothing_to_quantize_is_said(tmp_path: Path) -> None:
    import tensorflow as tf

    signatures = {"f": SignatureFunction(inputs=(X,), function=lambda x: {"y": tf.sin(x)})}
    options = replace(OPTIONS, formats=("onnx",), precision=("float32", "int8_dynamic"))
    report = export(tf.Module(), tmp_path / "m", data=FLOATS, signatures=signatures, source=Source(), options=options)
    (refusal,) = report.manifest.refused
    assert (refusal.measure, refusal.value) == ("failure", None)
    assert "no graph has an operation that can be quantized" in refusal.reason
    assert "serve it in float32" in refusal.reason


def test_the_opset_is_the_newest_that_both_know(report: ExportReport, monkeypatch: pytest.MonkeyPatch) -> None:
    from tf2onnx import constants

    graph = onnx.load(report.version.path / "onnx" / "serving_default.onnx")
    assert newest_opset() == max(constants.OPSET_TO_IR_VERSION) == graph.opset_import[0].version
    onnxruntime.InferenceSession(graph.SerializeToString())
    monkeypatch.setattr(constants, "OPSET_TO_IR_VERSION", {17: 8, 99: 9})
    assert newest_opset() == 17
    monkeypatch.setattr(constants, "OPSET_TO_IR_VERSION", {99: 9})
    with pytest.raises(ConversionError, match="writes no operator set"):
        newest_opset()


def test_simplified_or_not_it_computes_the_same(dense: Any, tmp_path: Path) -> None:
    for simplify in (True, False):
        report = export_dense(dense, tmp_path, simplify=simplify, opset=15)
        graph = onnx.load(report.version.path / "onnx" / "f.onnx")
        assert graph.opset_import[0].version == 15
        assert report.manifest.formats["onnx"].verify.max_abs_error <= 1e-5


def test_variants_of_large_weights(tmp_path: Path) -> None:
    """They stay beside the graph that is converted, and are quantized all the same."""
    import tensorflow as tf

    rng = np.random.default_rng(2)
    root = tf.Module()
    root.w = tf.Variable(rng.normal(0.0, 0.04, size=(600, 600)).astype(np.float32))
    assert 4 * root.w.shape.num_elements() > LARGE
    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 600))
    signatures = {"f": SignatureFunction(inputs=(spec,), function=lambda x: {"y": tf.nn.relu(x @ root.w)})}
    data = VerificationData(inputs={"f": {"x": rng.normal(size=(COUNT, 600)).astype(np.float32)}})
    options = replace(
        OPTIONS,
        formats=("onnx", "tflite"),
        precision=("float32", "float16", "int8_dynamic", "int8"),
        budget=Budget(max_abs_error=0.2),
    )
    report = export(root, tmp_path / "m", data=data, signatures=signatures, source=Source(), options=options)
    folder = report.version.path
    for name, share in (("float16", 0.55), ("int8_dynamic", 0.3), ("int8", 0.3)):
        for whole, part in (("onnx/f.onnx", f"onnx/{name}/f.onnx"), ("model.tflite", f"model.{name}.tflite")):
            assert (folder / part).stat().st_size < share * (folder / whole).stat().st_size, part
