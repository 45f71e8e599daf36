from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from modelyard.artifact import TensorSpec
from modelyard.errors import InternalError, InvalidInputError, LoadError, PredictionError
from modelyard.serving.backends import TensorFlowBackend, _tensorflow, available_runtimes
from modelyard.serving.requests import Arrays
from modelyard.wire import tensorflow_pb2


def _load(path: Path, tags: tuple[str, ...] = ("serve",)) -> TensorFlowBackend:
    return TensorFlowBackend(path, threads=1, tags=tags)


@pytest.fixture(scope="module")
def signatures(signatures_saved_model: Path) -> TensorFlowBackend:
    return _load(signatures_saved_model)


@pytest.fixture(scope="module")
def half_plus_two(tf1_saved_model: Path) -> TensorFlowBackend:
    return _load(tf1_saved_model)


def test_signatures_say_what_the_model_says(signatures: TensorFlowBackend) -> None:
    assert "__saved_model_init_op" not in signatures.signatures
    two = signatures.signatures["two"]
    assert two.inputs == (
        TensorSpec(name="count", dtype="int64", shape=(-1,)),
        TensorSpec(name="x", dtype="float32", shape=(-1,)),
    )
    assert [spec.name for spec in two.outputs] == ["echo", "next", "y"]
    assert signatures.signatures["unknown_rank"].inputs[0].shape is None


def test_it_computes_the_outputs_that_are_asked_for(signatures: TensorFlowBackend) -> None:
    inputs = {"x": np.array([1, 2], np.float32), "count": np.array([5, 1 << 40])}
    values = signatures.run("two", inputs, ["next", "y"])
    assert {name: value.tolist() for name, value in values.items()} == {"next": [6, (1 << 40) + 1], "y": [2.5, 3.0]}
    assert values["next"].dtype == np.int64


def test_strings_are_bytes_both_ways(signatures: TensorFlowBackend) -> None:
    text = np.array([b"caf\xc3\xa9", b"\xff\x00", b""], dtype=object)
    values = signatures.run("text", {"text": text}, ["upper", "length"])
    assert values["upper"].dtype == object
    assert values["upper"].tolist() == [b"CAF\xc3\xa9", b"\xff\x00", b""]
    assert values["length"].tolist() == [5, 2, 0]
    assert signatures.run("label", {"id": np.array([2, 7])}, ["label"])["label"].tolist() == [b"two", b"none"]


def test_tf1_signatures_run_in_a_session(half_plus_two: TensorFlowBackend) -> None:
    x = np.array([[1], [3]], np.float32)
    assert half_plus_two.run("serving_default", {"x": x}, ["y"])["y"].tolist() == [[2.5], [3.5]]
    assert half_plus_two.signatures["regress_x_to_y"].method == "tensorflow/serving/regress"


def test_tf1_state_lives_as_long_as_the_model(counter_saved_model: Path) -> None:
    backend = _load(counter_saved_model)
    for expected in (1.0, 2.0):
        assert backend.run("incr_counter", {}, ["output"])["output"].item() == expected
    assert backend.run("incr_counter_by", {"delta": np.array(0.5, np.float32)}, ["output"])["output"].item() == 2.5
    backend.close()
    assert _load(counter_saved_model).run("get_counter", {}, ["output"])["output"].item() == 0.0


def test_signatures_that_were_edited_in_the_saved_file(signatures_saved_model: Path, tmp_path: Path) -> None:
    """As upstream, what the file says is served, whatever the functions are called that it was saved with."""
    edited = shutil.copytree(signatures_saved_model, tmp_path / "edited")
    saved = tensorflow_pb2.SavedModel.FromString((edited / "saved_model.pb").read_bytes())
    definitions = saved.meta_graphs[0].signature_def
    definitions["added"].CopyFrom(definitions["label"])
    two = definitions["two"]
    two.inputs["image"].CopyFrom(two.inputs["x"])
    two.outputs["score"].CopyFrom(two.outputs["y"])
    del two.inputs["x"], two.outputs["y"]
    (edited / "saved_model.pb").write_bytes(saved.SerializeToString())
    backend = _load(edited)
    assert backend.run("added", {"id": np.array([2, 7])}, ["label"])["label"].tolist() == [b"two", b"none"]
    inputs = {"image": np.array([1, 2], np.float32), "count": np.array([5, 6])}
    values = backend.run("two", inputs, ["score", "next"])
    assert {name: value.tolist() for name, value in values.items()} == {"score": [2.5, 3.0], "next": [6, 7]}


@pytest.mark.parametrize(
    ("model", "signature", "inputs", "expected"),
    [
        ("tf1_saved_model", "serving_default", {"x": np.array([[1], [3]], np.float32)}, {"y": [[2.5], [3.5]]}),
        ("signatures_saved_model", "label", {"id": np.array([2, 7])}, {"label": [b"two", b"none"]}),
    ],
)
def test_a_saved_model_as_text(
    model: str, signature: str, inputs: Arrays, expected: dict[str, Any], request: Any, tmp_path: Path
) -> None:
    """TensorFlow reads it, and so does TensorFlow Serving."""
    from tensorflow.core.protobuf import saved_model_pb2

    text = shutil.copytree(request.getfixturevalue(model), tmp_path / "text")
    saved = saved_model_pb2.SavedModel.FromString((text / "saved_model.pb").read_bytes())
    (text / "saved_model.pbtxt").write_text(text_format.MessageToString(saved))
    (text / "saved_model.pb").unlink()
    assert available_runtimes(text) == ("tensorflow",)
    values = _load(text).run(signature, inputs, list(expected))
    assert {name: value.tolist() for name, value in values.items()} == expected

    for nonsense in (b"meta_graphs { ", b"\xff", b"meta_graphs { signature_def { value { defaults " + b"{" * 100_000):
        (text / "saved_model.pbtxt").write_bytes(nonsense)
        with pytest.raises(LoadError, match="saved_model.pbtxt cannot be read as a SavedModel"):
            _load(text)


@pytest.mark.parametrize("model", ["tf1_saved_model", "signatures_saved_model"])
def test_operations_that_come_with_a_package(
    model: str, request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream has those of TensorFlow Text built in; here its package is imported where a model needs one."""
    original = request.getfixturevalue(model)
    copy = shutil.copytree(original, tmp_path / "copy")
    saved = tensorflow_pb2.SavedModel.FromString((copy / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        nodes[0].op = "TFText>Tokenize"
    (copy / "saved_model.pb").write_bytes(saved.SerializeToString())
    monkeypatch.setattr(_tensorflow, "_OPERATIONS", ("no_such_package",))
    with pytest.raises(LoadError, match=r"TFText>Tokenize.*pip install tensorflow-text"):
        _load(copy)
    # It stands in for the package, and puts the operation that is there in place of the one that is not.
    name = f"operations_of_{model}"
    (tmp_path / f"{name}.py").write_text(
        f"import shutil\nshutil.copytree({str(original)!r}, {str(copy)!r}, dirs_exist_ok=True)\n"
    )
    (tmp_path / "operations_that_fail.py").write_text("raise RuntimeError('built for another TensorFlow')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_tensorflow, "_OPERATIONS", ("operations_that_fail", name))
    assert _load(copy).signatures == _load(original).signatures


def test_a_wrong_shape_is_refused(keras_saved_model: Path) -> None:
    backend = _load(keras_saved_model)
    (spec,) = backend.signatures["serving_default"].inputs
    with pytest.raises(InvalidInputError, match="signature 'serving_default'"):
        backend.run("serving_default", {spec.name: np.zeros((1, 20, 28, 1), np.float32)}, ["output_0"])


def test_a_wrong_dtype_is_refused(signatures: TensorFlowBackend) -> None:
    inputs = {"x": np.ones(2, np.float64), "count": np.ones(2, np.int64)}
    with pytest.raises(InvalidInputError, match="signature 'two'"):
        signatures.run("two", inputs, ["y"])


def test_bytes_that_are_no_example_are_refused(half_plus_two: TensorFlowBackend) -> None:
    with pytest.raises(InvalidInputError, match="signature 'regress_x_to_y'"):
        half_plus_two.run("regress_x_to_y", {"inputs": np.array([b"\xff\xff"], dtype=object)}, ["outputs"])


def test_a_failure_of_the_graph_is_not_the_callers(tmp_path: Path) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        keys = v1.placeholder(tf.int64, [None], name="keys")
        initializer = tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), tf.constant([2.0]))
        table = v1.lookup.StaticHashTable(initializer, -1.0)
        info = v1.saved_model.build_tensor_info
        signature = v1.saved_model.build_signature_def(
            {"keys": info(keys)}, {"values": info(table.lookup(keys))}, "tensorflow/serving/predict"
        )
        builder = v1.saved_model.Builder(str(tmp_path / "model"))
        # Saved without the operation that would fill the table.
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map={"lookup": signature})
        builder.save()
    with pytest.raises(PredictionError, match="signature 'lookup'"):
        _load(tmp_path / "model").run("lookup", {"keys": np.array([1])}, ["values"])


def test_damaged_models_are_load_errors(keras_saved_model: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no meta graph with the tags"):
        _load(keras_saved_model, tags=("gpu",))
    content = (keras_saved_model / "saved_model.pb").read_bytes()
    (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(LoadError, match="TensorFlow cannot load"):
        _load(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(content[:-100])
    with pytest.raises(LoadError, match="cannot be read as a SavedModel"):
        _load(tmp_path)


@pytest.mark.parametrize("model", ["keras_saved_model", "tf1_saved_model"])
def test_a_call_after_close_is_a_bug(model: str, request: pytest.FixtureRequest) -> None:
    backend = _load(request.getfixturevalue(model))
    backend.close()
    with pytest.raises(InternalError, match="after close"):
        backend.run("serving_default", {}, [])
