"""Keras models by what they say of themselves: subclassed ones, files of custom classes, and every output of all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.artifact import read_manifest
from modelyard.errors import ConfigurationError, ConversionError, ModelyardError, VerificationError
from modelyard.export import ExportOptions, ExportReport, export
from modelyard.export.cli import export_here as main

OPTIONS = ExportOptions(
    formats=("saved_model", "onnx"), min_examples=16, latency_calls=10, runtimes=(), measure_seconds=0.5
)
# What Keras itself does while it saves and loads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Model '.*' had a build config:UserWarning"),
]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 7)).astype(np.float32)
IDS = RNG.integers(0, 10, (16, 2))

LAYERS = """
import keras

class Pair(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(4)
        self.embedding = keras.layers.Embedding(10, 3)

    def call(self, inputs):
        return {"dense": self.dense(inputs["x"]), "embedded": self.embedding(inputs["ids"])}

@keras.saving.register_keras_serializable(package="mine")
class Plain(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(3)

    def call(self, x, training=False):
        return self.dense(x)
"""


class Plain(keras.Model):
    """One argument, one tensor."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(x)


def add_variable(model: Any) -> Any:
    model.scale = tf.Variable(2.0)
    return lambda y: y * model.scale


def add_module(model: Any) -> Any:
    model.module = tf.Module()
    model.module.parts = {"shift": tf.Variable([1.0, 2.0, 3.0]), "layer": keras.layers.Dense(3)}
    return lambda y: model.module.parts["layer"](y + model.module.parts["shift"])


def add_table(model: Any) -> Any:
    values = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([5.0, 7.0]))
    model.table = tf.lookup.StaticHashTable(values, 3.0)
    return lambda y: y + model.table.lookup(tf.cast(y > 0, tf.int64))


class Two(keras.Model):
    """Two arguments, of which Keras remembers the first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(3)

    def call(self, x: Any, y: Any = None) -> Any:
        return self.first(x), self.second(y)


class Listed(keras.Model):
    """A list, in which Keras remembers every shape."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = keras.layers.Dense(4)

    def call(self, inputs: Any) -> Any:
        left, right = inputs
        return [self.dense(left), {"sum": left + right}]


class Built(keras.Model):
    """A build of its own with two shapes, which Keras saves by the names of its arguments."""

    def build(self, x_shape: Any, y_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(x_shape[-1], y_shape[-1]), initializer="glorot_uniform")

    def call(self, x: Any, y: Any) -> Any:
        return x @ self.kernel + y


def publish(model: Any, folder: Path, data: Any = "random", **arguments: Any) -> ExportReport:
    return export(model, folder / "repository" / "m", data=data, options=OPTIONS, examples=16, **arguments)


def inputs_of(report: ExportReport) -> dict[str, tuple[str, tuple[int, ...] | None]]:
    return {spec.name: (spec.dtype, spec.shape) for spec in report.manifest.signatures["serving_default"].inputs}


def served(report: ExportReport, **inputs: Any) -> dict[str, Any]:
    function = tf.saved_model.load(str(report.version.path)).signatures["serving_default"]
    answer = function(**{name: tf.constant(value) for name, value in inputs.items()})
    return {name: value.numpy() for name, value in answer.items()}


@pytest.mark.parametrize("how", ["called", "fitted", "file"])
def test_a_subclassed_model_knows_its_inputs(how: str, tmp_path: Path) -> None:
    model: Any = Plain()
    if how == "fitted":
        model.compile("sgd", "mse")
        model.fit(X, np.zeros((16, 3)), verbose=0)
    expected = model(X).numpy()
    source = model
    if how == "file":
        source = tmp_path / "m.keras"
        model.save(source)
    with keras.saving.custom_object_scope({"Plain": Plain}):
        report = publish(source, tmp_path)
    assert inputs_of(report) == {"x": ("float32", (-1, 7))}
    np.testing.assert_allclose(served(report, x=X)["output_0"], expected, atol=1e-6)


def test_a_file_of_custom_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_layers.py").write_text(LAYERS)
    monkeypatch.syspath_prepend(tmp_path)
    own: Any = __import__("own_layers")
    model = own.Pair()
    expected = {name: value.numpy() for name, value in model({"x": X, "ids": IDS}).items()}
    model.save(tmp_path / "pair.keras")
    np.savez(tmp_path / "data.npz", x=X.astype(np.float64), ids=IDS)
    command = [str(tmp_path / "pair.keras"), "--data", str(tmp_path / "data.npz"), "--min-examples", "16"]
    command += ["--repository", str(tmp_path / "r"), "--format", "saved_model", "--measure-seconds", "0.5"]
    assert main(command) == 1
    assert "Could not locate class 'Pair', which is not of Keras." in (error := capsys.readouterr().err)
    assert "--import MODULE" in error and len(error) < 500
    assert main([*command, "--import", "no_such_layers"]) == 2
    assert "--import no_such_layers: there is no module 'no_such_layers'" in capsys.readouterr().err
    command += ["--import", "own_layers"]
    # Nobody said that ids are integers, but the data does.
    assert main(command) == 2
    assert "--signature ids:int64[-1,2]" in capsys.readouterr().err
    assert main([*command, "--signature", "ids:int64[-1,2]", "--signature", "x:float32[-1,7]"]) == 0
    version = tmp_path / "r" / "pair" / "1"
    assert {spec.name: spec.dtype for spec in read_manifest(version).signatures["serving_default"].inputs} == {
        "ids": "int64", "x": "float32",
    }  # fmt: skip
    answer = tf.saved_model.load(str(version)).signatures["serving_default"](ids=tf.constant(IDS), x=tf.constant(X))
    for name, value in expected.items():
        np.testing.assert_allclose(answer[name].numpy(), value, atol=1e-6)


def test_a_list_of_inputs_and_nested_outputs(tmp_path: Path) -> None:
    model: Any = Listed()
    model([X, X])
    report = publish(model, tmp_path)
    assert inputs_of(report) == {"inputs_0": ("float32", (-1, 7)), "inputs_1": ("float32", (-1, 7))}
    answer = served(report, inputs_0=X, inputs_1=X)
    assert set(answer) == {"output_0", "output_1_sum"}
    np.testing.assert_allclose(answer["output_1_sum"], X + X, atol=1e-6)


class Masked(keras.Model):
    """Keras has a ``mask`` of its own; here it is an input like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(10, 3)

    def call(self, ids: Any, mask: Any) -> Any:
        return self.embedding(ids) * mask[..., None]


# Keras takes it for its own, and goes on.
@pytest.mark.filterwarnings("ignore:Layer 'masked'.*was passed an input with a mask:UserWarning")
def test_an_argument_called_mask(tmp_path: Path) -> None:
    model: Any = Masked()
    mask = (X[:, :2] > 0).astype(np.float32)
    expected = model(IDS, mask).numpy()
    with pytest.raises(ConversionError, match=r"has no known inputs.*--signature NAME:DTYPE\[SHAPE\]"):
        publish(model, tmp_path)
    report = publish(model, tmp_path, signatures=["ids:int64[-1,2]", "mask:float32[-1,2]"])
    np.testing.assert_allclose(served(report, ids=IDS, mask=mask)["output_0"], expected, atol=1e-6)


def test_several_arguments(tmp_path: Path) -> None:
    built: Any = Built()
    expected = built(X, y=X[:, :2]).numpy()
    report = publish(built, tmp_path)
    assert inputs_of(report) == {"x": ("float32", (-1, 7)), "y": ("float32", (-1, 2))}
    np.testing.assert_allclose(served(report, x=X, y=X[:, :2])["output_0"], expected, atol=1e-6)

    model: Any = Two()
    second = model(X, y=X[:, :2])[1].numpy()
    with pytest.raises(ConversionError, match=r"the shapes of its first argument.*--signature NAME:DTYPE\[SHAPE\]"):
        publish(model, tmp_path)
    declared = ["x:float32[-1,7]", "y:float32[-1,2]"]
    report = publish(model, tmp_path, signatures=declared)
    np.testing.assert_allclose(served(report, x=X, y=X[:, :2])["output_1"], second, atol=1e-6)
    # Keras loads this file without the weights of the second layer, and says no more than a warning.
    model.save(tmp_path / "two.keras")
    with (
        keras.saving.custom_object_scope({"Two": Two}),
        pytest.raises(ConversionError, match="what it was trained with is not there"),
    ):
        publish(tmp_path / "two.keras", tmp_path, signatures=declared)


@pytest.mark.parametrize(
    ("signatures", "error", "message"),
    [
        (None, ConversionError, r"has no known inputs.*--signature NAME:DTYPE\[SHAPE\]"),
        (["x:float32[-1,7]"], ConversionError, "makes new weights when it is called"),
        (["x:float32"], ConfigurationError, "names alone choose"),
        (["x:float32[-1,seven]"], ConfigurationError, r"--signature x:float32\[-1,seven\]; expected"),
        (["x:float99[-1,7]"], ConfigurationError, "has dtype 'float99'; expected one of"),
        (["x:float32[-1,7]", "serve"], ConfigurationError, "Received --signature serve; expected"),
        (["x:float32[-1,7]", "x:float32[-1,2]"], ConfigurationError, "declared twice: x, x"),
        (["serve"], ConfigurationError, r"names alone choose.*NAME:DTYPE\[SHAPE\]"),
    ],
)
def test_inputs_that_nobody_knows(signatures: Any, error: type[ModelyardError], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        publish(keras.Sequential([keras.layers.Dense(3)]), tmp_path, signatures=signatures)


def test_declared_inputs_of_a_model_that_knows_its_own(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((7,), name="x"), keras.layers.Dense(3)])
    assert inputs_of(publish(model, tmp_path, signatures=["row:float64[-1,7]"])) == {"row": ("float64", (-1, 7))}
    left, right = keras.Input((7,), name="left"), keras.Input((7,), name="right")
    both = keras.Model([left, right], keras.layers.Dense(1)(left + right))
    with pytest.raises(ConfigurationError, match="has the inputs left, right; --signature declares up, right"):
        publish(both, tmp_path, signatures=["up:float32[-1,7]", "right:float32[-1,7]"])


def test_a_call_with_a_signature_of_its_own(tmp_path: Path) -> None:
    class Signed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = keras.layers.Embedding(10, 3)

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int32)])
        def call(self, ids: Any) -> Any:
            return self.embedding(ids)

    model: Any = Signed()
    model(IDS.astype(np.int32))
    assert inputs_of(publish(model, tmp_path)) == {"ids": ("int32", (-1, 2))}


def test_a_sequential_model_that_was_called_takes_any_batch(tmp_path: Path) -> None:
    model = keras.Sequential([keras.layers.Dense(3)])
    expected = model(X).numpy()
    report = publish(model, tmp_path)
    ((name, (_, shape)),) = inputs_of(report).items()
    assert shape == (-1, 7)
    np.testing.assert_allclose(served(report, **{name: X[:5]})["output_0"], expected[:5], atol=1e-6)


@pytest.mark.parametrize("kind", ["live", "file", "saved_model"])
def test_a_siamese_model_keeps_both_outputs(kind: str, tmp_path: Path) -> None:
    left, right = keras.Input((7,), name="left"), keras.Input((7,), name="right")
    tower = keras.layers.Dense(3, name="tower")
    model: Any = keras.Model([left, right], [tower(left), tower(right)])
    expected = [value.numpy() for value in model([X, -X])]
    source = model
    if kind == "file":
        model.save(source := tmp_path / "siamese.keras")
    if kind == "saved_model":
        model.export(source := tmp_path / "siamese", verbose=False)
    report = publish(source, tmp_path)
    answer = served(report, left=X, right=-X)
    names = ["output_0", "output_1"] if kind == "saved_model" else ["tower", "tower_1"]
    assert sorted(answer) == names
    for name, value in zip(names, expected, strict=True):
        np.testing.assert_allclose(answer[name], value, atol=1e-6)


def test_nested_outputs_of_a_dictionary(tmp_path: Path) -> None:
    value = keras.Input((7,), name="value")
    dense = keras.layers.Dense(3)
    model: Any = keras.Model({"value": value}, {"a": dense(value), "b": (dense(value + 1.0), [dense(value - 1.0)])})
    answer = served(publish(model, tmp_path), value=X)
    assert sorted(answer) == ["a", "b_0", "b_1_0"]
    np.testing.assert_allclose(answer["b_1_0"], dense(X - 1.0).numpy(), atol=1e-6)


@pytest.mark.parametrize("where", ["model", "submodel"])
@pytest.mark.parametrize("add", [add_variable, add_module, add_table])
def test_what_keras_does_not_list_is_saved(add: Callable[[Any], Any], where: str, tmp_path: Path) -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)
            self.compute = add(self)

        def call(self, x: Any) -> Any:
            return self.compute(self.dense(x))

    class Outer(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Own()

        def call(self, x: Any) -> Any:
            return self.inner(x)

    model: Any = Own() if where == "model" else Outer()
    expected = model(X).numpy()
    np.testing.assert_allclose(served(publish(model, tmp_path), x=X)["output_0"], expected, atol=1e-5)


@pytest.mark.parametrize("nested", [{"z": "zz", "b": "bb"}, OrderedDict(z="zz", b="bb"), [{"z": ["zz"], "b": "bb"}]])
def test_outputs_of_unsorted_keys_are_those_of_their_layers(nested: Any, tmp_path: Path) -> None:
    value = keras.Input((7,), name="value")
    layers = {name: keras.layers.Dense(3, name=name) for name in ("aa", "zz", "bb")}
    outputs = keras.tree.map_structure(lambda name: layers[name](value), ("aa", nested))
    answer = served(publish(keras.Model(value, outputs), tmp_path), value=X)
    assert answer.keys() == layers.keys()
    for name, layer in layers.items():
        np.testing.assert_allclose(answer[name], layer(X).numpy(), atol=1e-6)


def test_lists_and_other_floats_are_arrays(tmp_path: Path) -> None:
    model: Any = Plain()
    model(X)
    for data in (X.astype(np.float64), X.tolist(), {"x": X.astype(np.float64).tolist()}):
        assert publish(model, tmp_path, data).checks["onnx"].report.examples == 16
    # Examples of different lengths are such; this model takes rows of one.
    with pytest.raises(VerificationError, match=r"have shape \[1, 1\]; expected \['N', 7\]"):
        publish(model, tmp_path, {"x": [[1.0], [1.0, 2.0]]})


def test_a_report_is_ten_lines(tmp_path: Path) -> None:
    model: Any = Plain()
    model(X)
    text = str(publish(model, tmp_path))
    assert len(text.splitlines()) <= 10
    for part in ("m version 1: ", "saved_model: verified on 16 examples, max. error ", "onnx: ", " kB", "report.html"):
        assert part in text
    assert "Examples: 16 random examples" in text and "Served by default with " in text
