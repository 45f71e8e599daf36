"""What an export says of a format that fails, where it says all of it, and what it takes along beside a model."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec, read_manifest
from modelyard.errors import ConversionError, PublishError
from modelyard.export import ExportEvent, ExportOptions, export
from modelyard.export.cli import export_here as main
from modelyard.export.formats import gist, keep_log
from modelyard.export.sources import load_file, weight_files
from modelyard.serving import LoadOptions, load_servable

OPTIONS = ExportOptions(min_examples=16, latency_calls=10, runtimes=())


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An LSTM over words, and sums of products: TFLite has no operator for these, onnxruntime none of no rows."""
    keras.utils.set_random_seed(0)
    words = keras.Input((12,), dtype="int32", name="ids")
    vectors = keras.layers.Embedding(50, 8)(words)
    products = keras.ops.einsum("bij,bkj->bk", vectors, vectors)
    state = keras.layers.Concatenate()([keras.layers.LSTM(6)(vectors), products])
    path = tmp_path_factory.mktemp("lstm") / "words.keras"
    with warnings.catch_warnings():
        # What Keras itself does while it saves.
        warnings.filterwarnings("ignore", message="__array__ implementation", category=DeprecationWarning)
        keras.Model(words, keras.layers.Dense(3, name="scores")(state)).save(path)
    return path


def test_one_sentence_names_the_way_on_and_the_log(
    recurrent: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(recurrent), "--data", "random", "--repository", str(tmp_path), "--measure-seconds", "0.5"]
    arguments += ["--format", "saved_model", "--format", "tflite"]
    assert main(arguments) == 1
    said = capfd.readouterr().err
    (line,) = [line for line in said.splitlines() if line.startswith("modelyard export:")]
    assert "Format tflite, graphs serving_default: the converter failed: the operator Einsum (" in line
    assert ") has no counterpart in TFLite." in line
    assert "To publish without it: --optional tflite (in Python ExportOptions.optional)." in line
    assert "callsite" not in said and len(line) < 600
    (log,) = re.findall(r"What the libraries said: (\S+)$", line)
    text = Path(log).read_text("utf-8")
    assert "callsite" in text and "Traceback" in text
    Path(log).unlink()
    assert list((tmp_path / "words").iterdir()) == []


def test_without_it_the_rest_is_published(recurrent: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ExportOptions(min_examples=16, latency_calls=10, runtimes=(), optional=("tflite",))
    report = export(recurrent, tmp_path / "words", data="random", options=options, examples=16)
    assert set(report.manifest.formats) == {"saved_model", "onnx"}
    assert "Einsum" in report.manifest.absent["tflite"]
    assert "modelyard-export" not in report.manifest.absent["tflite"]
    (log,) = re.findall(r"Format tflite is left out. What the libraries said: (\S+)", caplog.text)
    Path(log).unlink()
    servable = load_servable("words", 1, report.version.path, LoadOptions(runtime="onnxruntime"))
    signature = servable.signatures["serving_default"]
    answer = servable.run(signature, {"ids": np.zeros((0, 12), np.int32)}, ["scores"])
    assert answer["scores"].shape == (0, 3)


def test_the_only_format_has_no_way_on(recurrent: Path, tmp_path: Path) -> None:
    with pytest.raises(ConversionError) as caught:
        export(recurrent, tmp_path / "m", data="random", formats=("tflite",), options=OPTIONS, examples=16)
    assert "--optional" not in caught.value.message


def test_the_gist_is_what_a_compiler_says_first() -> None:
    text = (
        '\n<unknown>:0: error: loc(callsite(fused["A:", "b"] at "c")): \'tf.A\' op is not supported.\n<unknown>:0: note'
    )
    assert gist(ValueError(text)) == "'tf.A' op is not supported"
    text = "Graph execution error:\n\nDetected at node A defined at (most recent):\n<stack traces unavailable>\nno"
    assert gist(ValueError(text)) == "no"
    assert gist(ValueError("")) == "ValueError"
    assert len(gist(ValueError("x" * 1000))) < 400


def test_an_error_that_no_converter_caused_has_no_log() -> None:
    assert keep_log(ConversionError("ours"), "m") is None


def sentence_model(*, hashed: bool = False) -> keras.Model:
    vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=4)
    vectorize.adapt(["good film", "bad film"])
    text = keras.Input((1,), dtype="string", name="text")
    # A hash of earlier TensorFlow, which no format has.
    hash_bucket = keras.layers.Lambda(lambda x: tf.strings.to_hash_bucket(x, 20), output_shape=(1,))
    numbers = hash_bucket(text) if hashed else vectorize(text)
    words = keras.layers.Embedding(20, 4)(numbers)
    return keras.Model(text, keras.layers.Dense(2, name="scores")(keras.layers.GlobalAveragePooling1D()(words)))


TEXT = {"text": np.array([[b"good film"], [b"bad"], [b"film good bad"], [b"what"]] * 4, object)}


def test_a_text_model_is_told_before_the_work(tmp_path: Path) -> None:
    stages: list[str] = []

    def note(event: ExportEvent) -> None:
        stages.append(event.stage)

    with pytest.raises(
        ConversionError, match=r"strings by StaticRegexReplace, .*StringSplitV2, for which TFL"
    ) as caught:
        export(sentence_model(), tmp_path / "m", data=TEXT, options=OPTIONS, progress=note)
    assert "(--format saved_model --format onnx, or --optional tflite; in Python" in caught.value.message
    with pytest.raises(ConversionError, match=r"^Format onnx, .*StringToHashBucket, for which ONNX") as caught:
        export(sentence_model(hashed=True), tmp_path / "m", data=TEXT, options=OPTIONS, progress=note)
    assert "(--format saved_model, or --optional onnx --optional tflite; in Python" in caught.value.message
    assert set(stages) == {"trace"}
    assert not (tmp_path / "m").exists()


def test_hashed_text_is_published_as_saved_model(tmp_path: Path) -> None:
    options = ExportOptions(min_examples=16, latency_calls=10, runtimes=(), optional=("onnx", "tflite"))
    report = export(sentence_model(hashed=True), tmp_path / "m", data=TEXT, options=options)
    assert set(report.manifest.formats) == {"saved_model"}
    assert set(report.manifest.absent) == {"onnx", "tflite"}
    assert "for which ONNX has no operators." in report.manifest.absent["onnx"]


def test_words_are_published_from_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        # What Keras itself does while it saves.
        warnings.filterwarnings("ignore", message="__array__ implementation", category=DeprecationWarning)
        sentence_model().save(tmp_path / "words.keras")
    np.savez(tmp_path / "rows.npz", text=TEXT["text"].astype("S"))
    arguments = [
        str(tmp_path / "words.keras"),
        "--data",
        str(tmp_path / "rows.npz"),
        "--repository",
        str(tmp_path / "models"),
    ]
    arguments += ["--optional", "tflite", "--min-examples", "16", "--measure-seconds", "0.5"]
    assert main(arguments) == 0, capfd.readouterr().err
    manifest = read_manifest(tmp_path / "models" / "words" / "1")
    assert set(manifest.formats) == {"saved_model", "onnx"}
    assert manifest.formats["onnx"].verify.max_abs_error < 1e-6
    assert "TFLite has no operators" in manifest.absent["tflite"]
    assert "Traceback" not in capfd.readouterr().err


def test_labels_in_text_are_no_text_model(tmp_path: Path) -> None:
    module = tf.Module()
    module.names = tf.constant(["a", "b", "c"])

    def label(x: tf.Tensor) -> dict[str, tf.Tensor]:
        # Never asked for, so never a reason.
        tf.strings.length(module.names)
        return {"label": tf.gather(module.names, tf.argmax(x, -1))}

    spec = TensorSpec(name="x", dtype="float32", shape=(-1, 3))
    signatures = {"serving_default": SignatureFunction(inputs=(spec,), function=label)}
    report = export(module, tmp_path / "m", signatures=signatures, data="random", options=OPTIONS, examples=16)
    assert set(report.manifest.formats) == {"saved_model", "onnx", "tflite"}


def beside(folder: Path, location: str = "weights.bin") -> Path:
    """An ONNX file that keeps its weights in ``location``."""
    folder.mkdir()
    weights = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32), "w")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 3])],
        [weights],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (entry,) = [each for each in model.graph.initializer[0].external_data if each.key == "location"]
    entry.value = location
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_weights_beside_an_onnx_file_are_taken_along(tmp_path: Path, runtime: str) -> None:
    path = beside(tmp_path / "source", "parts/w.bin")
    (path.parent / "parts").mkdir()
    (path.parent / "weights.bin").rename(path.parent / "parts" / "w.bin")
    options = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.5)
    report = export(path, tmp_path / "m", data="random", options=options, precision=("float32", "int8_dynamic"))
    manifest = read_manifest(report.version.path)
    assert "onnx/parts/w.bin" in {entry.path for entry in manifest.files}
    servable = load_servable("m", 1, report.version.path, LoadOptions(runtime=runtime, precision="float32"))  # type: ignore[arg-type]
    x = np.ones((2, 4), np.float32)
    answer = servable.run(servable.signatures["serving_default"], {"x": x}, ["y"])["y"]
    weights = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(answer, x @ weights, rtol=1e-5)


def test_weights_of_a_format_that_is_dropped_are_not_published(tmp_path: Path) -> None:
    report = export(
        beside(tmp_path / "source"), tmp_path / "m", data="random", options=OPTIONS, precision=("int8_dynamic",)
    )
    assert {path.name for path in (report.version.path / "onnx").iterdir()} == {"int8_dynamic"}


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("../weights.bin", "is not in its folder"),
        ("/etc/hostname", "is not in its folder"),
        ("a/../../weights.bin", "is not in its folder"),
        ("..\\weights.bin", "is not in its folder"),
        ("link.bin", "a link out of it"),
        ("absent.bin", "is not beside it"),
        ("weights.onnx", "a name that servers read as a model"),
    ],
)
def test_weights_never_come_from_elsewhere(tmp_path: Path, location: str, message: str) -> None:
    path = beside(tmp_path / "source", location)
    (path.parent / "weights.bin").rename(tmp_path / "weights.bin")
    (path.parent / "link.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ConversionError, match=message):
        export(path, tmp_path / "m", data="random", options=OPTIONS)
    assert not (tmp_path / "m").exists()


def test_weights_that_are_a_link_within_the_folder(tmp_path: Path) -> None:
    path = beside(tmp_path / "source", "link.bin")
    (path.parent / "link.bin").symlink_to("weights.bin")
    report = export(path, tmp_path / "m", data="random", options=OPTIONS)
    copy = report.version.path / "onnx" / "link.bin"
    assert copy.read_bytes() == (path.parent / "weights.bin").read_bytes() and not copy.is_symlink()


def test_a_folder_is_no_onnx_file(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").mkdir()
    with pytest.raises(PublishError, match="Cannot copy"):
        weight_files(tmp_path / "m.onnx")


def test_maps_are_told_with_the_option_that_avoids_them(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info
    maps = onnx.helper.make_map_type_proto(
        onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    output = onnx.helper.make_value_info("z", onnx.helper.make_sequence_type_proto(maps))
    node = onnx.helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])
    graph = onnx.helper.make_graph([node], "g", [value("x", onnx.TensorProto.FLOAT, ["n", 3])], [output])
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    with pytest.raises(ConversionError, match=r"'z' is a sequence.*options=\{id\(model\): \{\"zipmap\": False\}\}"):
        load_file(tmp_path / "m.onnx")


def test_a_graph_that_onnxslim_breaks_is_published_as_it_was_converted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """onnxslim 0.1.98 takes the batch of the lengths of rows for one."""
    specs = (
        TensorSpec(name="x", dtype="float32", shape=(-1, 5)), TensorSpec(name="lengths", dtype="int32", shape=(-1,)),
    )  # fmt: skip

    def sums(x: tf.Tensor, lengths: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": tf.reduce_sum(tf.RaggedTensor.from_tensor(x, lengths=lengths), 1)}

    data = {
        "x": np.random.default_rng(0).normal(size=(32, 5)).astype(np.float32),
        "lengths": np.random.default_rng(0).integers(1, 6, 32).astype(np.int32),
    }
    signatures = {"serving_default": SignatureFunction(inputs=specs, function=sums)}
    report = export(tf.Module(), tmp_path / "m", signatures=signatures, data=data, formats=("onnx",), options=OPTIONS)
    assert set(report.manifest.formats) == {"onnx"}
    assert "Format onnx: not simplified" in caplog.text
