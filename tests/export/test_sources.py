"""export(): models of every kind, that somebody else made."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from modelyard.artifact import ExampleDecode, SignatureFunction, TensorSpec, VerificationData, read_manifest
from modelyard.batch import BatchModel
from modelyard.errors import ConfigurationError, ConversionError, PublishError, VerificationError
from modelyard.export import ExportOptions, compute_reference, export, trace, verify
from modelyard.export.cli import export_here as main
from modelyard.export.sources import load_file
from modelyard.export.sources._unsafe_ops import read_saved_model, unsafe_ops
from modelyard.serving import LoadOptions, load_servable
from modelyard.wire import tensorflow_pb2
from tests.support.saved_models import save_tf1_half_plus_two
from tests.support.tflite import with_signatures

OPTIONS = ExportOptions(min_examples=16, latency_calls=10, runtimes=())
X = TensorSpec(name="x", dtype="float32", shape=(-1, 4))


def write_records(path: Path, count: int = 20) -> Path:
    rng = np.random.default_rng(0)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for index in range(count):
            message = tf.train.Example()
            message.features.feature["x"].float_list.value.append(float(rng.normal()))
            if index % 2:
                message.features.feature["x2"].float_list.value.append(float(rng.normal()))
            writer.write(message.SerializeToString())
    return path


@pytest.fixture(scope="module")
def keras_model() -> Any:
    keras.utils.set_random_seed(1)
    a, b = keras.Input((4,), name="a"), keras.Input((2,), name="b")
    together = keras.layers.Concatenate()([a, b])
    return keras.Model({"a": a, "b": b}, {"sum": keras.layers.Dense(3)(together), "other": keras.layers.Dense(1)(a)})


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version in every format, whose files are then sources of their own."""
    module = tf.Module()
    module.weights = tf.Variable(np.random.default_rng(2).normal(size=(4, 3)).astype(np.float32))
    signatures = {"serving_default": SignatureFunction(inputs=(X,), function=lambda x: {"y": x @ module.weights})}
    destination = tmp_path_factory.mktemp("repository") / "affine"
    return export(module, destination, signatures=signatures, data="random", options=OPTIONS).version.path


def test_a_keras_model(keras_model: Any, tmp_path: Path) -> None:
    report = export(keras_model, tmp_path / "two", data="random", options=OPTIONS, examples=16)
    signature = report.manifest.signatures["serving_default"]
    assert [(spec.name, spec.shape) for spec in signature.inputs] == [("a", (-1, 4)), ("b", (-1, 2))]
    assert [(spec.name, spec.shape) for spec in signature.outputs] == [("other", (-1, 1)), ("sum", (-1, 3))]
    assert set(report.manifest.formats) == {"saved_model", "onnx", "tflite"}
    assert report.manifest.absent == {}
    values = {"a": np.ones((2, 4), np.float32), "b": np.ones((2, 2), np.float32)}
    loaded = tf.saved_model.load(str(report.version.path)).signatures["serving_default"]
    answer = loaded(**{name: tf.constant(value) for name, value in values.items()})
    np.testing.assert_allclose(answer["sum"].numpy(), keras_model(values)["sum"].numpy(), atol=1e-6)


def test_one_array_is_for_a_model_with_one_input(affine: Path, keras_model: Any, tmp_path: Path) -> None:
    array = np.random.default_rng(0).random((16, 4), np.float32)
    report = export(affine, tmp_path / "m", data=array, formats=("saved_model",), options=OPTIONS)
    assert report.checks["saved_model"].report.examples == 16
    with pytest.raises(ConfigurationError, match=r"one array, but there are the inputs 'a' \(float32 .*'b' \("):
        export(keras_model, tmp_path / "two", data=array, options=OPTIONS)


# What Keras itself does while it saves.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("kind", ["sequential", "list", "dict"])
def test_keras_files(keras_model: Any, tmp_path: Path, kind: str) -> None:
    if kind == "sequential":
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    elif kind == "list":
        inputs = [keras.Input((4,), name="a"), keras.Input((4,), name="b")]
        model = keras.Model(inputs, [keras.layers.Add()(inputs), keras.layers.Dense(2)(inputs[1])])
    else:
        model = keras_model
    model.save(tmp_path / "m.keras")
    report = export(tmp_path / "m.keras", tmp_path / "m", data="random", formats=("onnx",), options=OPTIONS)
    assert report.manifest.formats["onnx"].verify.max_abs_error <= 1e-5
    assert report.manifest.source.config == {"source": "m.keras"}
    assert len(report.manifest.signatures["serving_default"].outputs) == {"sequential": 1, "list": 2, "dict": 2}[kind]


def test_a_tf1_model_with_examples_in_every_format(tmp_path: Path) -> None:
    save_tf1_half_plus_two(tmp_path / "tf1")
    names = ["regress_x_to_y", "regress_x2_to_y3", "classify_x_to_y", "serving_default"]
    data = write_records(tmp_path / "examples.tfrecord")
    report = export(tmp_path / "tf1", tmp_path / "half", data=data, signatures=names, options=OPTIONS)
    signatures = report.manifest.signatures
    assert set(signatures) == set(names) and set(report.manifest.formats) == {"saved_model", "onnx", "tflite"}
    decode = signatures["regress_x2_to_y3"].decode
    assert isinstance(decode, ExampleDecode)
    assert [(each.name, each.shape, each.default) for each in decode.features] == [
        ("x", (1,), None),
        ("x2", (1,), (0.0,)),
    ]
    assert signatures["classify_x_to_y"].method == "tensorflow/serving/classify"
    # Taken over, not saved anew: what TensorFlow Serving knew stays as it was.
    original, published = (tmp_path / "tf1" / "saved_model.pb", report.version.path / "saved_model.pb")
    assert original.read_bytes() == published.read_bytes()
    assert report.manifest.formats["saved_model"].converter == {}


def test_a_tf2_model_that_parses_in_its_own_function(tmp_path: Path) -> None:
    features = {
        "image/size": tf.io.FixedLenFeature([2], tf.int64, [3, 4]),
        "w": tf.io.FixedLenFeature([], tf.float32),
        "word": tf.io.FixedLenFeature([], tf.string, "a"),
    }
    module = tf.Module()
    module.factor = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def serve(inputs: Any) -> dict[str, Any]:
        parsed = tf.io.parse_example(inputs, features)
        return {"outputs": tf.cast(parsed["image/size"][:, 0], tf.float32) * parsed["w"] * module.factor}

    module.serve = serve
    tf.saved_model.save(module, str(tmp_path / "m"), signatures={"serving_default": serve})
    messages = []
    for index in range(16):
        message = tf.train.Example()
        message.features.feature["w"].float_list.value.append(index / 8)
        if index % 3:
            message.features.feature["image/size"].int64_list.value.extend([index, 1])
        messages.append(message.SerializeToString())
    data = {"inputs": np.array(messages, object)}
    report = export(tmp_path / "m", tmp_path / "r", data=data, formats=("saved_model", "onnx"), options=OPTIONS)
    decode = report.manifest.signatures["serving_default"].decode
    assert isinstance(decode, ExampleDecode)
    assert {each.name: each.default for each in decode.features} == {"image/size": (3, 4), "w": None, "word": ("a",)}


@pytest.mark.parametrize("case", ["variable length", "the message itself"])
def test_a_parse_that_cannot_be_cut_stays(case: str) -> None:
    def serve(inputs: Any) -> dict[str, Any]:
        if case == "variable length":
            return {"y": tf.sparse.to_dense(tf.io.parse_example(inputs, {"x": tf.io.VarLenFeature(tf.float32)})["x"])}
        parsed = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([1], tf.float32)})
        return {"y": parsed["x"], "size": tf.strings.length(inputs)}

    spec = TensorSpec(name="inputs", dtype="string", shape=(-1,))
    traced = trace(tf.Module(), {"f": SignatureFunction(inputs=(spec,), function=serve)})
    assert traced.signatures["f"].decode is None
    assert traced.graphs["f"] is traced.serving["f"]


@pytest.mark.parametrize(("name", "absent"), [("onnx", "tflite"), ("tflite", "onnx")])
def test_files_are_served_as_they_are(affine: Path, tmp_path: Path, name: str, absent: str) -> None:
    path = {"onnx": affine / "onnx" / "serving_default.onnx", "tflite": affine / "model.tflite"}[name]
    report = export(path, tmp_path / "m", data="random", options=OPTIONS)
    manifest = read_manifest(report.version.path)
    assert set(manifest.formats) == {name}
    assert set(manifest.absent) == {"saved_model", absent}
    assert "no TensorFlow model stands behind it" in manifest.absent["saved_model"]
    assert "saved_model was left out." in report.report_html.read_text("utf-8")
    assert manifest.formats[name].verify.batch_sizes == OPTIONS.batch_sizes
    assert {path.name for path in report.version.path.iterdir()} <= {
        "onnx", "model.tflite", "manifest.json", "report.html", "assets.extra",
    }  # fmt: skip


def onnx_file(path: Path, shape: list[Any], op: str = "Relu") -> Path:
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node(op, ["x"], ["y"])], "g", value[:1], value[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


def test_a_tflite_file_with_signatures_for_tensorflow_serving(affine: Path, tmp_path: Path) -> None:
    interpreter = Interpreter(str(affine / "model.tflite"))
    definition = tensorflow_pb2.SignatureDef(method_name="tensorflow/serving/regress")
    definition.inputs["inputs"].name = interpreter.get_input_details()[0]["name"]
    definition.outputs["outputs"].name = interpreter.get_output_details()[0]["name"]
    shutil.copy(affine / "model.tflite", tmp_path)
    path = with_signatures(tmp_path / "model.tflite", {"mine": definition})
    report = export(path, tmp_path / "m", data="random")
    servable = load_servable("m", 1, report.version.path, LoadOptions())
    mine = servable.signature("mine")
    assert ([spec.name for spec in mine.inputs], mine.method) == (["inputs"], "tensorflow/serving/regress")
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    reference = load_servable("affine", 1, affine, LoadOptions())
    expected = reference.run(reference.signature("serving_default"), {"x": x}, ["y"])["y"]
    np.testing.assert_allclose(servable.run(mine, {"inputs": x}, ["outputs"])["outputs"], expected, rtol=1e-5)
    for each in (servable, reference):
        each.close()


def test_a_batch_size_fixed_to_one(tmp_path: Path) -> None:
    report = export(onnx_file(tmp_path / "m.onnx", [1, 3]), tmp_path / "m", data="random", options=OPTIONS)
    assert report.manifest.formats["onnx"].verify.batch_sizes == (1,)
    assert report.manifest.signatures["serving_default"].inputs[0].shape == (1, 3)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "model.tflite").mkdir()
    with pytest.raises(PublishError, match=r"Cannot copy .*model\.tflite: .*[Dd]irectory"):
        load_file(tmp_path / "model.tflite")


def test_what_changes_in_a_batch_is_refused(tmp_path: Path) -> None:
    # Softmax over the batch itself: one example alone gets 1, whatever it is.
    path = onnx_file(tmp_path / "m.onnx", ["batch", 3], "Relu")
    model = onnx.load(path)
    model.graph.node[0].op_type = "Softmax"
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("axis", 0))
    model.graph.node.append(onnx.helper.make_node("Mul", ["y", "x"], ["z"]))
    model.graph.output[0].name = "z"
    onnx.save(model, path)
    with pytest.raises(VerificationError, match="Format onnx, signature 'serving_default', batch size 7"):
        export(path, tmp_path / "m", data="random", options=OPTIONS)
    assert list((tmp_path / "m").iterdir()) == []


def no_file(folder: Path) -> Any:
    return folder / "absent.keras"


def no_model(folder: Path) -> Any:
    (folder / "model.pt").write_bytes(b"")
    return folder / "model.pt"


def folder_of_versions(folder: Path) -> Any:
    (folder / "3").mkdir()
    (folder / "3" / "saved_model.pb").write_bytes(b"")
    return folder


def lambda_layer(folder: Path) -> Any:
    keras.Sequential([keras.Input((2,)), keras.layers.Lambda(lambda x: x * 2)]).save(folder / "m.keras")
    return folder / "m.keras"


def of_a_class(folder: Path) -> Any:
    @keras.saving.register_keras_serializable("tests")
    class Own(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x

    keras.Sequential([keras.Input((2,)), Own()]).save(folder / "m.keras")
    del keras.saving.get_custom_objects()["tests>Own"]
    return folder / "m.keras"


def bad_h5(folder: Path) -> Any:
    (folder / "bad.h5").write_bytes(b"not a model")
    return folder / "bad.h5"


def weights_alone(folder: Path) -> Any:
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save_weights(folder / "m.weights.h5")
    return folder / "m.weights.h5"


def bad_keras(folder: Path) -> Any:
    (folder / "bad.keras").write_bytes(b"PK")
    return folder / "bad.keras"


def bad_onnx(folder: Path) -> Any:
    (folder / "bad.onnx").write_bytes(b"not a model")
    return folder / "bad.onnx"


def bad_tflite(folder: Path) -> Any:
    (folder / "bad.tflite").write_bytes(b"not a model")
    return folder / "bad.tflite"


def bad_saved_model(folder: Path) -> Any:
    (folder / "saved_model.pb").write_bytes(b"\xff\xff")
    return folder


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (no_file, ConfigurationError, r"absent\.keras does not exist"),
        (no_model, ConfigurationError, "is no model: expected a SavedModel directory"),
        (folder_of_versions, ConfigurationError, r"is no model: .* It holds one: export \S+/3\.$"),
        (lambda_layer, ConversionError, r"holds Python code, which could do anything.*safe_mode=False\), and give"),
        (of_a_class, ConversionError, r"^Keras cannot load \S+: Could not locate class 'Own', which .*--import MODULE"),
        (bad_h5, ConversionError, r"Keras cannot load .*bad\.h5"),
        (weights_alone, ConversionError, "holds weights and no model. Make the model in Python"),
        (bad_keras, ConversionError, "Keras cannot load"),
        (bad_onnx, ConversionError, "is no valid ONNX file"),
        (bad_tflite, ConversionError, "bad.tflite cannot be served"),
        (bad_saved_model, ConversionError, "cannot be read as a SavedModel"),
        (lambda folder: tf.Module(), ConfigurationError, "A Module says nothing about its signatures"),
        (lambda folder: keras.Sequential([keras.layers.Dense(1)]), ConversionError, "has no known inputs"),
    ],
)
def test_sources_that_do_not_work(make: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        export(make(tmp_path), tmp_path / "repository" / "m", data="random", options=OPTIONS)
    assert not (tmp_path / "repository").exists()


def test_signatures_that_do_not_fit_their_source(affine: Path, tmp_path: Path) -> None:
    spec = {"f": SignatureFunction(inputs=(X,), function=lambda x: {"y": x})}
    with pytest.raises(ConversionError, match="has no signature 'nope'; it has serving_default"):
        export(affine, tmp_path / "m", data="random", signatures=["nope"])
    with pytest.raises(ConfigurationError, match="has signatures of its own"):
        export(affine, tmp_path / "m", data="random", signatures=spec)
    with pytest.raises(ConfigurationError, match="has one signature, as it is; expected signatures to be None"):
        export(affine / "model.tflite", tmp_path / "m", data="random", signatures=["f"])
    with pytest.raises(ConfigurationError, match="names alone choose from a SavedModel, or from functions"):
        export(tf.Module(), tmp_path / "m", data="random", signatures=["f"])
    with pytest.raises(ConfigurationError, match=r"has \['q'\]; expected arrays by name, some of 'x' \("):
        export(affine, tmp_path / "m", data={"q": np.zeros((16, 4), np.float32)})


class Unsafe(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="path")])
    def read(self, path: Any) -> dict[str, Any]:
        content = tf.map_fn(tf.io.read_file, path)
        return {"content": content, "size": tf.strings.length(content)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def python(self, x: Any) -> dict[str, Any]:
        return {"y": tf.numpy_function(lambda value: value * 2, [x], tf.float32)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def write(self, x: Any) -> dict[str, Any]:
        tf.print(x, output_stream="file:///dev/null")
        tf.io.write_file("/dev/null", "x")
        return {"y": x}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def safe(self, x: Any) -> dict[str, Any]:
        return {"y": x * 2}


@pytest.mark.parametrize(
    ("name", "ops"),
    [("read", "ReadFile"), ("python", "PyFunc"), ("write", "PrintV2 to a file, WriteFile"), ("safe", "")],
)
def test_unsafe_operations_are_refused_by_name(tmp_path: Path, name: str, ops: str) -> None:
    module = Unsafe()
    tf.saved_model.save(module, str(tmp_path / "m"), signatures={"serving_default": getattr(module, name)})
    assert ", ".join(unsafe_ops(read_saved_model(tmp_path / "m"))) == ops
    if ops:
        with pytest.raises(ConversionError, match=f"touch the file system: {ops}.*--allow-unsafe-ops"):
            export(tmp_path / "m", tmp_path / "r", data="random")


def test_unsafe_operations_that_are_allowed(tmp_path: Path) -> None:
    module = Unsafe()
    tf.saved_model.save(module, str(tmp_path / "m"), signatures={"serving_default": module.read})
    paths = []
    for index in range(16):
        (tmp_path / f"{index}.txt").write_text("x" * index)
        paths.append(str(tmp_path / f"{index}.txt").encode())
    data = {"path": np.array(paths, object)}
    options = ExportOptions(
        min_examples=16, latency_calls=10, runtimes=(), allow_unsafe_ops=True, formats=("saved_model",)
    )
    report = export(tmp_path / "m", tmp_path / "r", data=data, options=options)
    assert report.manifest.runtime == "tensorflow"


def foreign() -> Path:
    folder = os.environ.get("MODELYARD_FOREIGN_MODELS")
    if not folder:
        pytest.skip("MODELYARD_FOREIGN_MODELS names no folder of foreign models")
    return Path(folder)


@pytest.mark.parametrize("name", ["saved_model_half_plus_two_2_versions/00000123", "matrix_half_plus_two/1"])
def test_foreign_saved_models(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(foreign() / name), "--data", "random", "--repository", str(tmp_path), "--signature"]
    assert main([*arguments, "serving_default"]) == 0
    model = name.split("/")[0]
    assert capsys.readouterr().out.startswith(f"{model} version 1: {tmp_path / model / '1'}\n")
    assert set(read_manifest(tmp_path / model / "1").formats) == {"saved_model", "onnx", "tflite"}


def test_a_foreign_tflite_file(tmp_path: Path) -> None:
    path = foreign() / "saved_model_half_plus_two_tflite_with_sigdef" / "00000123" / "model.tflite"
    report = export(path, tmp_path / "m", data="random")
    assert set(report.manifest.formats) == {"tflite"}


def test_verification_data_as_it_is(affine: Path, tmp_path: Path) -> None:
    arrays = {"x": np.random.default_rng(0).random((16, 4), np.float32)}
    for data in (VerificationData(inputs={"serving_default": arrays}), {"serving_default": arrays}, arrays):
        report = export(affine, tmp_path / "m", data=data, formats=("onnx",), options=OPTIONS)
        assert report.manifest.formats["onnx"].verify.examples == 16


def test_a_signature_s_name_is_no_path(tmp_path: Path) -> None:
    """Files are named after signatures, and whoever made the model chose those names."""
    module = tf.Module()
    module.w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    function = tf.function(lambda x: {"y": x @ module.w}, input_signature=[tf.TensorSpec([None, 2], name="x")])
    names = {"../../../../evil", "scoring/v1", "a b%2F"}
    tf.saved_model.save(module, str(tmp_path / "named"), signatures=dict.fromkeys(names, function))
    report = export(tmp_path / "named", tmp_path / "repository" / "named", data="random", options=OPTIONS)
    assert not list(tmp_path.rglob("evil*"))
    assert {path.parent for path in tmp_path.rglob("*.onnx")} == {report.version.path / "onnx"}
    servable = load_servable("named", 1, report.version.path, LoadOptions(runtime="onnxruntime"))
    try:
        assert set(servable.signatures) == names
        for signature in servable.signatures.values():
            answer = servable.run(signature, {"x": np.eye(2, dtype=np.float32)}, ["y"])
            np.testing.assert_array_equal(answer["y"], module.w.numpy())
    finally:
        servable.close()


def test_words_are_looked_up_without_tensorflow(tmp_path: Path) -> None:
    """Strings and numbers of a vocabulary, in onnxruntime; OpenVINO has no operator for it and is left out."""
    keras.utils.set_random_seed(1)
    city, year = keras.Input((1,), dtype="string", name="city"), keras.Input((1,), dtype="int64", name="year")
    places = keras.layers.Embedding(4, 2)(keras.layers.StringLookup(vocabulary=["Bern", "Paris", "Zürich"])(city))
    years = keras.layers.Embedding(3, 2)(keras.layers.IntegerLookup(vocabulary=[2024, 2025])(year))
    model = keras.Model([city, year], keras.layers.Dense(1, name="price")(keras.layers.Concatenate()([places, years])))
    rng = np.random.default_rng(0)
    data = {
        "city": rng.choice(np.array([b"Bern", b"Paris", "Zürich".encode(), b"Oslo"], object), (20, 1)),
        "year": rng.choice([2023, 2024, 2025], (20, 1)),
    }
    report = export(model, tmp_path / "m", data=data, options=replace(OPTIONS, runtimes=("openvino",)))
    assert set(report.manifest.formats) == {"saved_model", "onnx", "tflite"}
    assert report.manifest.formats["onnx"].other_runtimes == {}
    servable = load_servable("m", 1, report.version.path, LoadOptions(runtime="onnxruntime"))
    try:
        answer = servable.run(servable.signature("serving_default"), data, ["price"])
    finally:
        servable.close()
    expected = model([tf.constant(data["city"].tolist()), tf.constant(data["year"])])
    np.testing.assert_allclose(answer["price"], expected, atol=1e-6)


def test_layers_that_draw_random_numbers_in_training_only(tmp_path: Path) -> None:
    """Their functions capture the states of seed generators, which Keras' models do not track."""
    keras.utils.set_random_seed(1)
    image = keras.Input((8, 8, 3), name="image")
    augmented = keras.layers.RandomFlip()(keras.layers.RandomRotation(0.1)(image))
    model = keras.Model(image, {"a/b é": keras.layers.Flatten()(keras.layers.Conv2D(2, 3)(augmented))})
    report = export(model, tmp_path / "m", data="random", options=OPTIONS, examples=16)
    assert set(report.manifest.formats) == {"saved_model", "onnx", "tflite"}
    # The output's name is what the model calls it, though TensorFlow has no such name for a node.
    assert [spec.name for spec in report.manifest.signatures["serving_default"].outputs] == ["a/b é"]


def test_infinity_that_the_model_means(tmp_path: Path) -> None:
    module = tf.Module()
    module.w = tf.Variable(np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32))
    masked = SignatureFunction(inputs=(X,), function=lambda x: {"logits": tf.where(x > 0, x @ module.w, -np.inf)})
    signatures = {"serving_default": masked}
    report = export(
        module, tmp_path / "m", signatures=signatures, data="random", options=OPTIONS, formats=("saved_model", "onnx")
    )
    assert report.checks["onnx"].report.max_abs_error <= 1e-6


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x, w: tf.reduce_mean(x @ w), ()),
        (lambda x, w: tf.matmul(x @ w, x @ w, transpose_b=True), (-1, -1)),
        (lambda x, w: tf.boolean_mask(x @ w, x[:, 0] > 0), (-1, 4)),
    ],
    ids=["one number", "batch by batch", "as many as are found"],
)
def test_outputs_without_a_row_for_each_example(function: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    module = tf.Module()
    module.w = tf.Variable(np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32))
    signatures = {"serving_default": SignatureFunction(inputs=(X,), function=lambda x: {"y": function(x, module.w)})}
    report = export(module, tmp_path / "m", signatures=signatures, data="random", options=OPTIONS, examples=40)
    (output,) = report.manifest.signatures["serving_default"].outputs
    assert output.shape == shape
    for entry in report.manifest.formats.values():
        assert entry.verify.max_abs_error <= 1e-5
        assert entry.verify.batch_sizes == (1, 7, 32)
    values = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    expected = np.asarray(function(tf.constant(values), module.w))
    for runtime in ("onnxruntime", "litert", "openvino", "tensorflow"):
        servable = load_servable("m", 1, report.version.path, LoadOptions(runtime=runtime))
        try:
            answer = servable.run(servable.signature("serving_default"), {"x": values}, ["y"])
        finally:
            servable.close()
        np.testing.assert_allclose(answer["y"], expected, atol=1e-5)
    # Two wrong values among many, in one call of several, are found.
    (file,) = (report.version.path / "onnx").iterdir()
    damaged = onnx.load(file)
    weights = max(damaged.graph.initializer, key=lambda each: len(each.raw_data))
    changed = onnx.numpy_helper.to_array(weights).copy()
    changed.flat[0] += 1
    weights.CopyFrom(onnx.numpy_helper.from_array(changed, weights.name))
    (tmp_path / "damaged" / "onnx").mkdir(parents=True)
    onnx.save(damaged, tmp_path / "damaged" / "onnx" / file.name)
    traced = trace(module, signatures)
    data = VerificationData(inputs={"serving_default": {"x": values.repeat(4, 0)}})
    reference = compute_reference(traced, data, options=OPTIONS)
    with pytest.raises(VerificationError, match="does not compute what its source computes|is float32"):
        verify(reference, tmp_path / "damaged", format="onnx", options=OPTIONS)


# ---- folders of MLflow ------------------------------------------------------------------------------------------


def test_the_onnx_file_in_a_folder_of_mlflow(affine: Path, tmp_path: Path) -> None:
    folder = tmp_path / "taxi"
    folder.mkdir()
    (folder / "MLmodel").write_text("flavors: {onnx: {data: model.onnx}}")
    shutil.copyfile(affine / "onnx" / "serving_default.onnx", folder / "model.onnx")
    data = {"x": np.random.default_rng(3).normal(size=(32, 4)).astype(np.float32)}
    version = export(folder, tmp_path / "repository" / "taxi", data=data, options=OPTIONS).version.path
    assert read_manifest(version).source.config == {"source": "taxi"}
    (ours,) = BatchModel(str(version.parent))(data).values()
    (theirs,) = BatchModel(str(affine.parent))(data).values()
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_folder_of_mlflow_without_a_model_that_can_be_exported(tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text("flavors: {sklearn: {pickled_model: model.pkl}}")
    (tmp_path / "model.pkl").touch()
    with pytest.raises(
        ConfigurationError, match=r"with the files MLmodel, model\.pkl; expected one of model\.onnx, .*--from"
    ):
        export(tmp_path, tmp_path / "out" / "m", data="random", options=OPTIONS)
