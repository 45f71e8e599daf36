"""Signatures over tf.Example in every format."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import CLASSIFY_METHOD, REGRESS_METHOD, ExampleDecode, ExampleFunction, Signature, TensorSpec
from modelyard.errors import ConversionError, VerificationError
from modelyard.export import ExportReport, trace
from modelyard.export.runtimes import call_signature, load_runtime
from tests.support.example_models import BIAS, FEATURES, LABELS, X, make_examples, publish_examples

STRING = TensorSpec(name="inputs", dtype="string", shape=(-1,))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    result: ExportReport = publish_examples(tmp_path_factory.mktemp("repository") / "examples")
    return result


def test_all_formats_are_verified(report: ExportReport) -> None:
    manifest = report.manifest
    assert set(manifest.formats) == {"saved_model", "onnx", "tflite"}
    assert all(entry.verify.max_abs_error <= 1e-5 for entry in manifest.formats.values())
    for entry in manifest.formats.values():
        assert set(entry.verify.by_signature) == {"serving_default", "classify", "regress"}
    assert manifest.signatures["classify"] == Signature(
        inputs=(STRING,),
        outputs=(
            TensorSpec(name="classes", dtype="string", shape=(-1, 3)),
            TensorSpec(name="scores", dtype="float32", shape=(-1, 3)),
        ),
        compute="classify",
        method=CLASSIFY_METHOD,
        decode=ExampleDecode(input="inputs", features=FEATURES),
    )
    page = report.report_html.read_text("utf-8")
    assert "<p>bias: " in page and "<p>kind: " in page


def test_the_saved_model_knows_its_methods(report: ExportReport) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    directory = report.version.path
    saved = saved_model_pb2.SavedModel.FromString((directory / "saved_model.pb").read_bytes())
    methods = {name: each.method_name.rpartition("/")[2] for name, each in saved.meta_graphs[0].signature_def.items()}
    assert methods.items() >= {("serving_default", "predict"), ("classify", "classify"), ("regress", "regress")}
    assert (directory / "fingerprint.pb").stat().st_size > 0
    assert tf.saved_model.experimental.read_fingerprint(str(directory)).saved_model_checksum > 0


@pytest.mark.parametrize("format", ["onnx", "tflite"])
@pytest.mark.parametrize("count", [1, 5])
def test_the_same_answers_as_tensorflow(report: ExportReport, format: str, count: int) -> None:
    messages = make_examples(200)[-count:]
    loaded = tf.saved_model.load(str(report.version.path))
    runtime = load_runtime(format, report.version.path)
    for name, signature in report.manifest.signatures.items():
        key = signature.inputs[0].name
        expected = loaded.signatures[name](**{key: tf.constant(messages.tolist())})
        received = call_signature(runtime, name, signature, {key: messages})
        assert received.keys() == expected.keys()
        for output, values in received.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(values, expected[output].numpy(), atol=1e-5)
            else:
                np.testing.assert_array_equal(values, expected[output].numpy())
                assert {value.decode() for value in values.ravel()} <= set(LABELS)


def test_an_example_that_does_not_fit(report: ExportReport) -> None:
    runtime, signature = load_runtime("onnx", report.version.path), report.manifest.signatures["classify"]
    messages = make_examples(2)
    messages[1] = tf.train.Example().SerializeToString()
    with pytest.raises(VerificationError, match="'classify' was given an example.*element 1: Feature: x .*required"):
        call_signature(runtime, "classify", signature, {"inputs": messages})


DECLARED = ExampleFunction(features=(X, BIAS), function=lambda x, bias: {"outputs": x[:, 0]}, method=REGRESS_METHOD)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (replace(DECLARED, input="examples"), r"has the method .*regress and the inputs \[\('examples', 'string'\)\]"),
        (replace(DECLARED, function=lambda x, bias: {"y": x[:, 0]}), r"outputs 'y' .*expected 'outputs' \(float32"),
        (replace(DECLARED, function=lambda x, bias: {"outputs": x}), r"outputs 'outputs' \(float32 \(-1, 4\)\)"),
        (replace(DECLARED, method=CLASSIFY_METHOD), r"'outputs' .*expected 'classes' \(string \[N, K\]\), 'scores'"),
        (
            replace(DECLARED, method=CLASSIFY_METHOD, function=lambda x, bias: {"scores": x[:, 0]}),
            r"'scores' \(float32 \(-1,\)\)",
        ),
    ],
)
def test_what_a_method_demands(declared: ExampleFunction, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        trace(tf.Module(), {"f": declared})


@pytest.mark.parametrize("size", [None, 1])
def test_regressions_have_two_shapes(size: int | None) -> None:
    function = (lambda x, bias: {"outputs": x[:, 0]}) if size is None else (lambda x, bias: {"outputs": x[:, :1]})
    traced = trace(tf.Module(), {"f": replace(DECLARED, function=function)})
    assert traced.signatures["f"].method == REGRESS_METHOD
    assert traced.signatures["f"].outputs[0].shape == ((-1,) if size is None else (-1, 1))
