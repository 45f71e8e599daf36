"""Verification must accept what is right and name what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorflow as tf

from modelyard.artifact import Signature, SignatureFunction, TensorSpec, VerificationData
from modelyard.errors import ExportError, VerificationError
from modelyard.export import (
    ExportEvent,
    ExportOptions,
    Format,
    Reference,
    TracedModel,
    check_examples,
    compute_reference,
    trace,
    verify,
)
from modelyard.export.formats import export_saved_model
from modelyard.export.runtimes import call_signature, load_runtime
from modelyard.export.verification._compare import Comparison
from tests.export.conftest import COUNT, OPTIONS, Classifier


@pytest.mark.parametrize("format", ["saved_model", "onnx", "tflite"])
def test_what_is_right_is_verified(reference: Reference, converted: Path, format: Format) -> None:
    events: list[ExportEvent] = []
    check = verify(reference, converted, format=format, options=OPTIONS, progress=events.append)
    assert check.report.examples == 3 * COUNT
    assert check.report.batch_sizes == (1, 7, 32)
    assert 0 <= check.report.max_abs_error <= 1e-5
    assert set(check.report.by_signature) == {"serving_default", "image_bytes", "embed"}
    assert check.report.max_abs_error == max(check.report.by_signature.values())
    assert check.report.top1_agreement == 1.0
    assert {name: each.verdict for name, each in check.report.rows.items()} == dict.fromkeys(
        ("serving_default", "image_bytes", "embed"), "independent"
    )
    assert check.report.metric_before == check.report.metric_after == pytest.approx(2 / 3, abs=0.01)
    # Every float of every output, at each batch size: 3 probabilities twice, 4 values of the embedding.
    assert sum(check.histogram) == COUNT * 3 * (3 + 3 + 4)
    assert len(check.worst) == 16
    assert check.worst[0].error == check.report.max_abs_error
    np.testing.assert_array_equal(check.classes_before, check.classes_after)
    assert events[-1].done == events[-1].total == 3 * COUNT


def test_the_weightless_tflite_file_is_caught(
    reference: Reference, converted: Path, traced: TracedModel, tmp_path: Path
) -> None:
    """The route that design.md warns of: it converts without an error, and the weights are gone."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(converted), signature_keys=["serving_default", "embed"])
    content = converter.convert()
    (tmp_path / "model.tflite").write_bytes(content)
    # Without the encoded signature, whose decode no TFLite file can hold: only weights are missing.
    plain = without(reference, "image_bytes")
    with pytest.raises(VerificationError) as caught:
        verify(plain, tmp_path, format="tflite", options=OPTIONS)
    message = caught.value.message
    assert "Format tflite, signature 'serving_default'" in message
    assert "output 'probabilities'" in message
    assert "NaN or infinite" in message or "absolute error of" in message


def without(reference: Reference, *names: str) -> Reference:
    source = reference.source
    return replace(
        reference,
        source=replace(
            source,
            signatures={name: value for name, value in source.signatures.items() if name not in names},
            graphs={name: value for name, value in source.graphs.items() if name.split(".")[0] not in names},
        ),
    )


def edit_onnx(converted: Path, folder: Path, edit: Callable[[Any], None]) -> Path:
    shutil.copytree(converted / "onnx", folder / "onnx")
    path = folder / "onnx" / "serving_default.onnx"
    model = onnx.load(path)
    edit(model.graph)
    onnx.save(model, path)
    return folder


def weights(graph: Any) -> Any:
    return max(graph.initializer, key=lambda tensor: len(tensor.raw_data))


def set_weights(change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def edit(graph: Any) -> None:
        tensor = weights(graph)
        tensor.CopyFrom(onnx.numpy_helper.from_array(change(onnx.numpy_helper.to_array(tensor)), tensor.name))

    return edit


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda values: values * 1.001,
            r"'probabilities' has an absolute error of .*, allowed is 1e-05.* --tolerance 0\.00\d+ \(",
        ),
        (lambda values: values * np.nan, rf"output 'probabilities' is NaN or infinite in {COUNT} of {COUNT} examples"),
        (lambda values: values * 0, r"the same for every example: the converter has lost the weights"),
        (lambda values: -values, rf"output 'class_id' differs in \d+ of {COUNT} examples"),
    ],
)
def test_wrong_weights(
    reference: Reference, converted: Path, tmp_path: Path, change: Callable[[Any], Any], expected: str
) -> None:
    edit_onnx(converted, tmp_path, set_weights(change))
    with pytest.raises(VerificationError, match=expected) as caught:
        verify(reference, tmp_path, format="onnx", options=OPTIONS)
    assert "Format onnx, signature '" in caught.value.message
    assert "batch size 1" in caught.value.message


def test_the_tolerance_is_an_option(reference: Reference, converted: Path, tmp_path: Path) -> None:
    edit_onnx(converted, tmp_path, set_weights(lambda values: values * np.float32(1 + 1e-4)))
    for graph in ("embed", "image_bytes.preprocess"):
        (tmp_path / "onnx" / f"{graph}.onnx").unlink()
    plain = without(reference, "image_bytes", "embed")
    with pytest.raises(VerificationError, match="absolute error"):
        verify(plain, tmp_path, format="onnx", options=OPTIONS)
    check = verify(plain, tmp_path, format="onnx", options=replace(OPTIONS, max_abs_error=0.01))
    assert 1e-5 < check.report.max_abs_error < 0.01


def test_a_tolerance_that_follows_the_spread() -> None:
    spec = TensorSpec(name="y", dtype="float32", shape=(-1,))
    signature = Signature(inputs=(spec,), outputs=(spec,), compute="f")
    values = np.linspace(0, 1, 50, dtype=np.float32)

    def compare(scale: float, error: float, shift: float = 0.0) -> None:
        comparison = Comparison(format="onnx", max_abs_error=1e-5, max_spread_error=0.01)
        expected = (values * scale + shift).astype(np.float32)
        comparison.add("f", signature, 1, {"y": expected}, {"y": (expected + error).astype(np.float32)}, count=50)

    # Large figures may differ by more, in proportion.
    compare(1000, 0.009)
    with pytest.raises(VerificationError, match=r"allowed is 0.01 where the source spreads over 1e\+03"):
        compare(1000, 0.02)
    # Small ones by less: an error of a tenth of what they tell is none that is below 1e-5.
    compare(1e-5, 0.9e-7)
    with pytest.raises(VerificationError, match="allowed is 1e-07 where the source spreads over 1e-05"):
        compare(1e-5, 1e-6)
    # Beside a large constant nothing finer than its roundings can be asked.
    compare(1e-5, 1e-6, shift=1.0)


def fix_batch(graph: Any) -> None:
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def test_an_output_by_another_name(reference: Reference, converted: Path, tmp_path: Path) -> None:
    def edit(graph: Any) -> None:
        old = graph.output[0].name
        graph.output[0].name = "Identity:0"
        graph.node.append(onnx.helper.make_node("Identity", [old], ["Identity:0"], name="renamed"))

    edit_onnx(converted, tmp_path, edit)
    with pytest.raises(VerificationError, match=r"graph 'serving_default': outputs are \['Identity:0'.*expected \['cl"):
        verify(reference, tmp_path, format="onnx", options=OPTIONS)


def test_a_batch_size_that_was_fixed(reference: Reference, converted: Path, tmp_path: Path) -> None:
    edit_onnx(converted, tmp_path, fix_batch)
    with pytest.raises(VerificationError, match=r"input 'image' is float32 \[1, 8, 8, 1\]; expected float32 \[-1, 8"):
        verify(reference, tmp_path, format="onnx", options=OPTIONS)


def test_a_graph_that_is_missing(reference: Reference, converted: Path, tmp_path: Path) -> None:
    shutil.copytree(converted / "onnx", tmp_path / "onnx")
    (tmp_path / "onnx" / "image_bytes.preprocess.onnx").unlink()
    with pytest.raises(VerificationError, match=r"holds the graphs \['embed', 'serving_default'\]; expected"):
        verify(reference, tmp_path, format="onnx", options=OPTIONS)


@pytest.mark.parametrize("format", ["saved_model", "tflite"])
def test_a_file_that_cannot_be_loaded(reference: Reference, tmp_path: Path, format: Format) -> None:
    (tmp_path / "model.tflite").write_bytes(b"not a model")
    (tmp_path / "saved_model.pb").write_bytes(b"not a model")
    with pytest.raises(VerificationError, match=f"Format {format}: (tensorflow|litert) cannot load it"):
        verify(reference, tmp_path, format=format, options=OPTIONS)


def test_an_unknown_format(reference: Reference, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="'coreml' is unknown; expected one of saved_model, onnx, tflite"):
        verify(reference, tmp_path, format="coreml", options=OPTIONS)


def test_a_saved_model_of_other_weights(
    reference: Reference, data: VerificationData, traced: TracedModel, tmp_path: Path
) -> None:
    """The truth is the live model, not the file: a stale SavedModel does not pass."""
    bias = traced.root.model.layers[-1].bias
    before = bias.numpy()
    try:
        bias.assign(before + np.array([0.01, 0, 0], np.float32))
        export_saved_model(traced, tmp_path)
    finally:
        bias.assign(before)
    with pytest.raises(
        VerificationError, match="Format saved_model, signature 'serving_default'.*output 'probabilities'"
    ):
        verify(reference, tmp_path, format="saved_model", options=OPTIONS)


class TestReference:
    def change(self, data: VerificationData, name: str, **inputs: Any) -> VerificationData:
        return replace(data, inputs={**data.inputs, name: {**data.inputs[name], **inputs}})

    def test_missing_signature(self, traced: TracedModel, data: VerificationData) -> None:
        few = replace(data, inputs={"serving_default": data.inputs["serving_default"]})
        with pytest.raises(VerificationError, match="'embed' has no verification examples|'image_bytes' has no verif"):
            compute_reference(traced, few, options=OPTIONS)

    def test_missing_input(self, traced: TracedModel, data: VerificationData) -> None:
        bad = replace(data, inputs={**data.inputs, "embed": {"image": data.inputs["embed"]["image"]}})
        with pytest.raises(VerificationError, match=r"'embed' have inputs \['image'\]; expected \['image', 'scale'\]"):
            compute_reference(traced, bad, options=OPTIONS)

    def test_too_few(self, traced: TracedModel, data: VerificationData) -> None:
        said = rf"are {COUNT} examples .*at least {COUNT + 1}.*--min-examples {COUNT}"
        with pytest.raises(VerificationError, match=said):
            compute_reference(traced, data, options=ExportOptions(min_examples=COUNT + 1))

    def test_different_numbers(self, traced: TracedModel, data: VerificationData) -> None:
        bad = self.change(data, "embed", scale=np.ones(COUNT - 1, np.float32))
        with pytest.raises(VerificationError, match=rf"\[{COUNT - 1}, {COUNT}\] examples"):
            compute_reference(traced, bad, options=OPTIONS)

    def test_wrong_dtype(self, traced: TracedModel, data: VerificationData) -> None:
        bad = self.change(data, "embed", scale=np.ones(COUNT, np.bool_))
        with pytest.raises(VerificationError, match="'scale' of signature 'embed' are bool; expected float32"):
            compute_reference(traced, bad, options=OPTIONS)

    def test_wrong_shape(self, traced: TracedModel, data: VerificationData) -> None:
        bad = self.change(data, "embed", scale=np.ones((COUNT, 1), np.float32))
        said = rf"'scale' of signature 'embed' have shape \[{COUNT}, 1\]; expected \['N'\], where -1 is any size\."
        with pytest.raises(VerificationError, match=said):
            compute_reference(traced, bad, options=OPTIONS)

    def test_bytes_that_are_no_image(self, traced: TracedModel, data: VerificationData) -> None:
        encoded = data.inputs["image_bytes"]["image_bytes"].copy()
        encoded[60] = encoded[60][:-10]
        with pytest.raises(VerificationError, match="'image_bytes' of the source fails on its own examples"):
            compute_reference(traced, self.change(data, "image_bytes", image_bytes=encoded), options=OPTIONS)

    def test_nan_in_the_source(self, traced: TracedModel, data: VerificationData) -> None:
        scale = np.full(COUNT, np.nan, np.float32)
        with pytest.raises(VerificationError, match="'embedding' of signature 'embed' of the source itself is NaN"):
            compute_reference(traced, self.change(data, "embed", scale=scale), options=OPTIONS)

    def test_a_source_without_weights(
        self, classifier: Classifier, traced: TracedModel, data: VerificationData
    ) -> None:
        kernel = classifier.model.layers[0].kernel
        before = kernel.numpy()
        try:
            kernel.assign(before * 0)
            with pytest.raises(VerificationError, match="is the same for all examples. A model whose weights"):
                compute_reference(traced, data, options=OPTIONS)
        finally:
            kernel.assign(before)

    def test_labels_that_fit_nothing(self, traced: TracedModel, data: VerificationData) -> None:
        with pytest.raises(VerificationError, match="There are 5 labels, but no signature"):
            compute_reference(traced, replace(data, labels=np.zeros(5, np.int64)), options=OPTIONS)

    def test_labels_without_a_class_are_those_of_the_largest_value(
        self, traced: TracedModel, data: VerificationData, converted: Path
    ) -> None:
        ours = compute_reference(traced, data, options=OPTIONS)
        found = compute_reference(traced, replace(data, class_output="absent"), options=OPTIONS)
        assert (found.measured, found.data.class_output) == ("serving_default", "probabilities")
        reports = [verify(each, converted, format="onnx", options=OPTIONS).report for each in (ours, found)]
        assert reports[0].metric_before == reports[1].metric_before == pytest.approx(2 / 3, abs=0.01)
        assert reports[1].metric_after == reports[1].metric_before and reports[1].top1_agreement == 1

    def test_labels_that_fit_no_output_are_left_out_before_the_work(
        self, traced: TracedModel, data: VerificationData, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert data.labels is not None
        for labels, names, message in (
            (data.labels.astype(np.float32), (), f"are float32 [{COUNT}]; expected class ids, integers [N]."),
            (data.labels - 1, (), "begin at -1; expected class ids from 0."),
            (data.labels, ("a", "b", "c", "d"), "fit no output of signature 'serving_default'; expected an output"),
        ):
            caplog.clear()
            given: Any = labels
            odd = replace(data, labels=given, class_names=names, class_output="absent")
            fitted = check_examples(traced, odd, options=OPTIONS)
            assert fitted.labels is None
            assert message in caplog.text and "Going on without the accuracy." in caplog.text

    @pytest.mark.parametrize(
        ("outputs", "measured"),
        [
            ({"class_id": "column"}, "class_id"),
            ({"class_id": "names"}, None),
            ({"class_id": "names", "scores": "scores"}, "scores"),
            ({"class_id": "one_hot"}, None),
            ({"score": "sigmoid"}, None),
            ({"class_id": "sigmoid"}, None),
        ],
    )
    def test_only_integers_and_floats_of_several_classes_are_compared_with_labels(
        self, outputs: dict[str, str], measured: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def classify(x: Any) -> dict[str, Any]:
            ids = tf.argmax(x, -1, output_type=tf.int64)
            forms = {
                "column": ids[:, tf.newaxis],
                "names": tf.strings.as_string(ids),
                "one_hot": tf.one_hot(ids, 2, dtype=tf.int64),
                "scores": x * 2.0,
                "sigmoid": tf.sigmoid(x[:, :1]),
            }
            return {name: forms[form] for name, form in outputs.items()}

        x = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32)
        signature = SignatureFunction(inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, 2)),), function=classify)
        model = trace(tf.Module(), {"serving_default": signature})
        given = VerificationData(inputs={"serving_default": {"x": x}}, labels=x.argmax(-1).astype(np.int64))
        options = replace(OPTIONS, min_examples=40)
        found = compute_reference(model, given, options=options)
        export_saved_model(model, tmp_path)
        report = verify(found, tmp_path, format="saved_model", options=options).report
        if measured is None:
            assert found.measured is None and report.metric_before is report.top1_agreement is None
            assert "fit no output of signature 'serving_default'" in caplog.text
        else:
            assert (found.measured, found.data.class_output) == ("serving_default", measured)
            assert report.metric_before == report.metric_after == report.top1_agreement == 1.0

    def test_what_fits_is_cast(self, traced: TracedModel, data: VerificationData) -> None:
        scale = data.inputs["embed"]["scale"]
        for values in (scale.astype(np.float64), scale.tolist()):
            fitted = check_examples(traced, self.change(data, "embed", scale=values), options=OPTIONS)
            assert fitted.inputs["embed"]["scale"].dtype == np.float32
            np.testing.assert_array_equal(fitted.inputs["embed"]["scale"], scale)

    def test_no_labels(self, traced: TracedModel, data: VerificationData) -> None:
        assert compute_reference(traced, replace(data, labels=None), options=OPTIONS).measured is None


def test_an_example_that_is_no_image_stops_the_foreign_path(reference: Reference, converted: Path) -> None:
    runtime = load_runtime("onnx", converted)
    signature = reference.source.signatures["image_bytes"]
    inputs = {"image_bytes": np.array([b"no image"], object)}
    with pytest.raises(VerificationError, match="'image_bytes' was given an example that is no image: 8 bytes"):
        call_signature(runtime, "image_bytes", signature, inputs)


def test_a_runtime_that_fails_is_named(reference: Reference, converted: Path) -> None:
    runtime = load_runtime("onnx", converted)
    signature = reference.source.signatures["serving_default"]
    inputs = {"image": np.zeros((1, 7, 8, 1), np.float32)}
    with pytest.raises(VerificationError, match=r"onnxruntime failed on graph 'serving_default'.*\[1, 7, 8, 1\]"):
        call_signature(runtime, "serving_default", signature, inputs)
