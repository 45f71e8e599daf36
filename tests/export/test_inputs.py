"""Signatures that are no plain batch: other shapes, state, odd names, half precision; exported and read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import SignatureFunction, TensorSpec, read_manifest
from modelyard.errors import ConversionError, VerificationError
from modelyard.export import ExportOptions, ExportReport, export
from modelyard.export.cli import export_here as main
from modelyard.serving import LoadOptions, Servable, load_servable
from modelyard.serving.backends import Runtime

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
OPTIONS = ExportOptions(min_examples=16, latency_calls=10, measure_seconds=0.2, batch_sizes=(1, 5), runtimes=())
RUNTIMES: Mapping[str, Runtime] = {"saved_model": "tensorflow", "onnx": "onnxruntime", "tflite": "litert"}
RNG = np.random.default_rng(7)
WEIGHTS = RNG.normal(size=(8, 3)).astype(np.float32)


def numbers(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def spec(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def publish(
    folder: Path, functions: Mapping[str, tuple[tuple[TensorSpec, ...], Any]], root: Any = None, **options: Any
) -> ExportReport:
    signatures = {name: SignatureFunction(inputs=inputs, function=each) for name, (inputs, each) in functions.items()}
    return export(tf.Module(), folder / "m", signatures=signatures, options=OPTIONS, **options)


def serve(report: ExportReport, format: str) -> Servable:
    path = Path(str(report.version.path))
    return load_servable("m", report.version.number, path, LoadOptions(runtime=RUNTIMES[format]))


def call(servable: Servable, name: str, **inputs: Any) -> dict[str, Any]:
    signature = servable.signatures[name]
    return servable.run(signature, inputs, [each.name for each in signature.outputs])


def sums_over_edges(nodes: Any, edges: Any) -> dict[str, Any]:
    sent = tf.gather(nodes @ WEIGHTS, edges[:, 0])
    return {"y": tf.math.unsorted_segment_sum(sent, edges[:, 1], tf.shape(nodes)[0])}


def graphs(*sizes: tuple[int, int]) -> dict[str, Any]:
    return {
        "nodes": [numbers(nodes, 8) for nodes, _ in sizes],
        "edges": [RNG.integers(0, nodes, (edges, 2)).astype(np.int32) for nodes, edges in sizes],
    }


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    """Every shape of input that is no batch, in one version."""
    data = {
        "scalar": {"x": numbers(20)},
        # Rows are cut into calls of four; the two that are left over are not used.
        "fixed": {"x": numbers(82, 8)},
        "mixed": {"x": numbers(20, 6, 8), "temperature": numbers(20)},
        "graph": graphs(*[(5, 7)] * 12, *[(4, 7)] * 4, *[(6, 2)] * 4),
    }
    return publish(
        tmp_path_factory.mktemp("shapes"),
        {
            "scalar": ((spec("x"),), lambda x: {"y": x * 2.5 + 1.0}),
            "fixed": ((spec("x", 4, 8),), lambda x: {"total": tf.reduce_sum(x @ WEIGHTS, 0)}),
            "mixed": (
                (spec("x", -1, 8), spec("temperature")),
                lambda x, temperature: {"p": tf.nn.softmax(x @ WEIGHTS / (1.0 + temperature**2))},
            ),
            "graph": ((spec("nodes", -1, 8), spec("edges", -1, 2, dtype="int32")), sums_over_edges),
        },
        data=data,
    )


@pytest.mark.parametrize("format", RUNTIMES)
def test_inputs_without_a_batch(shapes: ExportReport, format: str) -> None:
    servable = serve(shapes, format)
    scalar = call(servable, "scalar", x=np.array(2.0, np.float32))["y"]
    assert scalar.shape == ()
    assert scalar == 6.0
    x = numbers(4, 8)
    np.testing.assert_allclose(call(servable, "fixed", x=x)["total"], (x @ WEIGHTS).sum(0), atol=1e-5)
    for rows in (1, 9):
        x = numbers(rows, 8)
        answer = call(servable, "mixed", x=x, temperature=np.array(1.0, np.float32))["p"]
        np.testing.assert_allclose(answer, tf.nn.softmax(x @ WEIGHTS / 2.0), atol=1e-6)
    graph = {name: each[0] for name, each in graphs((9, 3)).items()}
    np.testing.assert_allclose(call(servable, "graph", **graph)["y"], sums_over_edges(**graph)["y"], atol=1e-5)
    # Rows of two callers in one batch would be another graph.
    assert not any(each.batched for each in servable.signatures.values())
    servable.close()


def test_what_was_verified_of_calls(shapes: ExportReport) -> None:
    verified = shapes.manifest.formats["onnx"].verify
    assert verified.examples == 80
    # Of the inputs with any number of rows: the others have one size.
    assert verified.batch_sizes == (1, 5)
    assert not any(each.stateful or each.batched for each in shapes.manifest.signatures.values())


def test_examples_that_are_no_calls(tmp_path: Path) -> None:
    inputs = (spec("x", -1, 8), spec("scale"))
    function = {"f": (inputs, lambda x, scale: {"y": x * scale})}
    with pytest.raises(VerificationError, match="'f' have \\[3, 5\\] examples;.*lists of arrays, one for each call"):
        rows = {"f": ((spec("a", -1), spec("b", -1)), lambda a, b: {"y": tf.concat([a, b], 0)})}
        publish(tmp_path, rows, data={"a": numbers(3), "b": numbers(5)})
    with pytest.raises(
        VerificationError, match=r"'x' .* have shape \[20, 8\]; expected \['N', -1, 8\].*call of its own"
    ):
        publish(tmp_path, function, data={"x": numbers(20, 8), "scale": numbers(20)})


def test_random_calls(tmp_path: Path) -> None:
    inputs = (spec("x", -1, 8), spec("row", dtype="int32"))
    function = {"f": (inputs, lambda x, row: {"y": x @ WEIGHTS + WEIGHTS[0, 0] * tf.cast(row, tf.float32)})}
    report = publish(tmp_path, function, data="random", examples=16, formats=("saved_model",))
    assert report.checks["saved_model"].report.max_abs_error == 0.0


class Stateful(tf.Module):
    """A counter, what reads it, and what has nothing to do with it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = tf.Variable(0.0)
        self.weights = tf.Variable(WEIGHTS)

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
    def count(self, x: Any) -> dict[str, Any]:
        return {"y": x @ self.weights + self.calls.assign_add(1.0)}

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
    def read(self, x: Any) -> dict[str, Any]:
        return {"y": x + self.calls}

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, name="x")])
    def apart(self, x: Any) -> dict[str, Any]:
        return {"y": x @ self.weights}


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    model = Stateful()
    # The state that it has is published.
    model.calls.assign(10.0)
    folder = tmp_path_factory.mktemp("counting")
    return export(model, folder / "m", data={"x": numbers(20, 8)}, options=OPTIONS, formats=("saved_model", "tflite"))


@pytest.mark.parametrize("format", ["saved_model", "tflite"])
def test_state_is_marked_and_served_from_the_beginning(counting: ExportReport, format: str) -> None:
    marked = {name: each.stateful for name, each in read_manifest(counting.version.path).signatures.items()}
    assert marked == {"apart": False, "count": True, "read": True}
    servable = serve(counting, format)
    x = np.zeros((1, 8), np.float32)
    assert call(servable, "read", x=x)["y"][0, 0] == 10.0
    assert [call(servable, "count", x=x)["y"][0, 0] for _ in range(3)] == [11.0, 12.0, 13.0]
    assert call(servable, "read", x=x)["y"][0, 0] == 13.0
    # A request without a row changes nothing that TensorFlow would not.
    assert call(servable, "count", x=x[:0])["y"].shape == (0, 3)
    assert call(servable, "count", x=x)["y"][0, 0] == 15.0
    servable.close()


def test_interpreters_share_a_state(counting: ExportReport) -> None:
    options = LoadOptions(runtime="litert", interpreters=4)
    servable = load_servable("m", 1, Path(str(counting.version.path)), options)
    x = np.zeros((1, 8), np.float32)
    assert [call(servable, "count", x=x)["y"][0, 0] for _ in range(3)] == [11.0, 12.0, 13.0]
    servable.close()


def test_state_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="Format onnx: signatures 'count', 'read' keep state.*--format saved_"):
        export(Stateful(), tmp_path / "m", data={"x": numbers(20, 8)}, options=OPTIONS, formats=("onnx",))


def test_a_recurrent_model_with_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = keras.Input(batch_shape=(4, 5, 3), name="x")
    model = keras.Model(inputs, keras.layers.GRU(2, stateful=True, name="y")(inputs))
    model.save(tmp_path / "gru.keras")
    np.savez(tmp_path / "data.npz", x=numbers(64, 5, 3))
    command = [str(tmp_path / "gru.keras"), f"--data={tmp_path / 'data.npz'}", f"--repository={tmp_path / 'models'}"]
    assert main([*command, "--min-examples=16", "--measure-seconds=0.2", "--optional=onnx"]) == 0
    assert "onnx: left out. Format onnx: signature 'serving_default' keeps state" in capsys.readouterr().out
    runtimes: tuple[Runtime, ...] = ("tensorflow", "litert")
    servables = [
        load_servable("gru", 1, tmp_path / "models" / "gru" / "1", LoadOptions(runtime=each)) for each in runtimes
    ]
    for _ in range(3):
        x = numbers(4, 5, 3)
        wanted = model(x)
        for servable in servables:
            np.testing.assert_allclose(call(servable, "serving_default", x=x)["y"], wanted, atol=1e-6)


NAMES = {
    "prédire tout/v1": (
        (spec("âge du client", -1, 8), spec("1st.x/y", -1, 8)),
        lambda **x: {"proba é/1": x["âge du client"] @ WEIGHTS, "2nd": x["1st.x/y"] - 1.0},
    ),
    # Outputs with the names of inputs: one crossed over, one that is passed on, and one that is taken already.
    "crossed": (
        (spec("a", -1, 8), spec("b", -1, 8)),
        lambda a, b: {"a": b + 1.0, "b": b, "a_output": a * 2.0},
    ),
}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    data = {name: numbers(20, 8) for name in ("âge du client", "1st.x/y", "a", "b")}
    return publish(tmp_path_factory.mktemp("names"), NAMES, data=data)


@pytest.mark.parametrize("format", RUNTIMES)
def test_names_that_are_no_identifiers(names: ExportReport, format: str) -> None:
    servable = serve(names, format)
    a, b = numbers(3, 8), numbers(3, 8)
    answer = call(servable, "prédire tout/v1", **{"âge du client": a, "1st.x/y": b})
    np.testing.assert_allclose(answer["proba é/1"], a @ WEIGHTS, atol=1e-5)
    np.testing.assert_allclose(answer["2nd"], b - 1.0, atol=1e-6)
    crossed = call(servable, "crossed", a=a, b=b)
    np.testing.assert_allclose(crossed["a"], b + 1.0, atol=1e-6)
    np.testing.assert_array_equal(crossed["b"], b)
    np.testing.assert_allclose(crossed["a_output"], a * 2.0, atol=1e-6)
    servable.close()


def test_the_manifest_maps_names_inside_of_onnx(names: ExportReport) -> None:
    formats = read_manifest(names.version.path).formats
    assert formats["onnx"].renamed == {"crossed": {"a": "a_output_", "b": "b_output"}}
    assert formats["tflite"].renamed == {}


def test_names_are_imported_again(names: ExportReport, tmp_path: Path) -> None:
    data = {"prédire tout/v1": {name: numbers(20, 8) for name in ("âge du client", "1st.x/y")}}
    report = export(
        str(names.version.path), tmp_path / "m", data=data, signatures=list(data), options=OPTIONS,
        formats=("saved_model",),
    )  # fmt: skip
    assert {each.name for each in report.manifest.signatures["prédire tout/v1"].inputs} == {"âge du client", "1st.x/y"}


def test_inputs_that_are_one_name_to_tensorflow(tmp_path: Path) -> None:
    function = {"f": ((spec("a b", -1, 2), spec("a_b", -1, 2)), lambda **x: {"y": x["a b"] - x["a_b"]})}
    with pytest.raises(ConversionError, match="The inputs 'a b', 'a_b' of signature 'f' are one name to TensorFlow"):
        publish(tmp_path, function, data={"a b": numbers(20, 2), "a_b": numbers(20, 2)})


def make_half(policy: str) -> Any:
    keras.utils.set_random_seed(2)
    inputs = keras.Input((8,), name="x")
    hidden = keras.layers.LayerNormalization(dtype=policy)(
        keras.layers.Dense(6, activation="relu", dtype=policy)(inputs)
    )
    wide = keras.layers.Dense(3, dtype="float32", name="wide")(hidden)
    return keras.Model(inputs, [wide, keras.layers.Dense(2, dtype=policy, name="half")(hidden)])


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(tmp_path: Path, kind: str) -> None:
    model = make_half(f"mixed_{kind}")
    report = export(model, tmp_path / "m", data={"x": numbers(40, 8)}, options=OPTIONS)
    tolerance = 4 * float(tf.experimental.numpy.finfo(kind).eps) if kind == "float16" else 4 * 2.0**-7
    x = numbers(5, 8)
    wide, half = (np.asarray(each).astype(np.float32) for each in model(x))
    for format in ("onnx", "tflite"):
        entry = report.manifest.formats[format]
        assert entry.computed == {kind: "float32"}
        assert entry.verify.tolerance == tolerance
        assert 0 < entry.verify.max_abs_error <= tolerance * np.ptp([wide.min(), wide.max(), 4.0])
        servable = serve(report, format)
        answer = call(servable, "serving_default", x=x)
        assert answer["half"].dtype == tf.as_dtype(kind).as_numpy_dtype
        np.testing.assert_allclose(answer["wide"], wide, atol=10 * tolerance)
        np.testing.assert_allclose(answer["half"].astype(np.float32), half, atol=10 * tolerance)
        servable.close()
    assert report.manifest.formats["saved_model"].verify.tolerance is None
    assert f"as the source rounds to {kind}" in str(report)


def test_inputs_of_float64_and_bfloat16(tmp_path: Path) -> None:
    brain = tf.bfloat16.as_numpy_dtype
    report = publish(
        tmp_path,
        {
            "double": ((spec("x", -1, 8, dtype="float64"),), lambda x: {"y": x @ WEIGHTS.astype(np.float64)}),
            "brain": ((spec("x", -1, 8, dtype="bfloat16"),), lambda x: {"y": x @ tf.cast(WEIGHTS, tf.bfloat16)}),
        },
        data={"double": {"x": numbers(20, 8).astype(np.float64)}, "brain": {"x": numbers(20, 8).astype(brain)}},
    )
    computed = {name: each.computed for name, each in report.manifest.formats.items()}
    assert computed["onnx"] == {"bfloat16": "float32"}
    assert computed["tflite"] == {"bfloat16": "float32", "float64": "float32"}
    x = numbers(3, 8)
    for format in ("onnx", "tflite"):
        servable = serve(report, format)
        double = call(servable, "double", x=x.astype(np.float64))["y"]
        assert double.dtype == np.float64
        np.testing.assert_allclose(double, x @ WEIGHTS, atol=1e-5)
        answer = call(servable, "brain", x=x.astype(brain))["y"]
        assert answer.dtype == brain
        np.testing.assert_allclose(answer.astype(np.float32), x @ WEIGHTS, atol=0.1)
        servable.close()


def test_bits_of_half_precision_are_refused(tmp_path: Path) -> None:
    def function(x: Any) -> dict[str, Any]:
        return {"y": tf.bitcast(tf.cast(x, tf.float16), tf.uint16)}

    with pytest.raises(ConversionError, match=r"Format onnx, graph 'f'.*looks at the bits of float16 numbers"):
        publish(tmp_path, {"f": ((spec("x", -1, 2),), function)}, data={"x": numbers(20, 2)})


def test_h5_files_of_keras_2(tmp_path: Path) -> None:
    inputs = keras.Input((4, 3), name="x")
    model = keras.Model(inputs, keras.layers.GRU(2, name="y")(inputs))
    model.save(tmp_path / "gru.h5")
    with h5py.File(tmp_path / "gru.h5", "r+") as file:
        config = json.loads(file.attrs["model_config"])
        # As Keras 2 wrote it.
        config["config"]["layers"][1]["config"]["time_major"] = False
        file.attrs["model_config"] = json.dumps(config)
    report = export(
        tmp_path / "gru.h5", tmp_path / "m", data={"x": numbers(20, 4, 3)}, options=OPTIONS, formats=("saved_model",)
    )
    x = numbers(2, 4, 3)
    servable = serve(report, "saved_model")
    np.testing.assert_allclose(call(servable, "serving_default", x=x)["y"], model(x), atol=1e-6)
    servable.close()
