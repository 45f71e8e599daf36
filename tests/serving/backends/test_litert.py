from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from modelyard.artifact import TensorSpec
from modelyard.errors import ArtifactError, InvalidInputError, LoadError, PredictionError
from modelyard.serving.backends import LitertBackend
from modelyard.serving.machine import resident_bytes
from modelyard.wire import tensorflow_pb2
from tests.support.tflite import with_signatures
from tests.support.waiting import until


@pytest.fixture(scope="module")
def lookup_tflite(session_dir: Path) -> Path:
    """Signatures ``lookup`` (``id`` int32 [-1] to ``row`` float32 [-1, 2]), ``half`` (``x`` to ``y``) and more."""
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="id")])
        def lookup(self, id):
            return {"row": tf.gather(tf.constant([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]), id)}

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
        def half(self, x):
            return {"y": tf.matmul(x, tf.constant([[0.5], [0.5]])) + 2.0, "sum": tf.reduce_sum(x, axis=1)}

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
        def places(self, x):
            return {"found": tf.where(x > 0), "sum": tf.reduce_sum(x, axis=1)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, name="x")])
        def share(self, x):
            return {"y": tf.reshape(60 // x, [3])}

        @tf.function(input_signature=[tf.TensorSpec([1, 5], tf.float32, name="x")])
        def column(self, x):
            return {"y": x[:, 3]}

    model = Model()
    folder = session_dir / "lookup"
    signatures = {name: getattr(model, name) for name in ("column", "half", "lookup", "places", "share")}
    tf.saved_model.save(model, str(folder), signatures=signatures)
    path = folder / "model.tflite"
    path.write_bytes(tf.lite.TFLiteConverter.from_saved_model(str(folder), signature_keys=list(signatures)).convert())
    return path


@pytest.fixture(scope="module")
def plain_tflite(session_dir: Path) -> Path:
    """``a`` float32 [-1, 3] to ``b``, with no signature embedded."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        a = v1.placeholder(tf.float32, [None, 3], name="a")
        b = tf.add(tf.multiply(a, 0.5), 2.0, name="b")
        content = v1.lite.TFLiteConverter.from_session(session, [a], [b]).convert()
    path = session_dir / "plain.tflite"
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def two_outputs(session_dir: Path) -> Path:
    """``x`` float32 [-1, 2] to ``double`` and ``more``, one more; the tensors have a converter's names."""
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
        def call(self, x):
            return {"double": x * 2.0, "more": x + 1.0}

    folder = session_dir / "two_outputs"
    model = Model()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.call})
    path = folder / "model.tflite"
    path.write_bytes(tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert())
    return path


@pytest.fixture(scope="module")
def parsing(session_dir: Path) -> Callable[..., Path]:
    """Makes files whose graph parses ``tf.Example``, by a custom operation or by TensorFlow's."""
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def double(self, examples):
            return {"y": 2.0 * tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"]}

    folder = session_dir / "parsing"
    model = Model()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.double})

    def make(*, flex: bool) -> Path:
        converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
        if flex:
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        converter.allow_custom_ops = not flex
        path = folder / f"{flex}.tflite"
        path.write_bytes(converter.convert())
        return path

    return make


def _load(path: Path, *, interpreters: int = 1) -> LitertBackend:
    return LitertBackend(path, threads=1, interpreters=interpreters)


def test_signatures_say_what_the_file_says(lookup_tflite: Path) -> None:
    signatures = _load(lookup_tflite).signatures
    assert sorted(signatures) == ["column", "half", "lookup", "places", "share"]
    assert signatures["lookup"].inputs == (TensorSpec(name="id", dtype="int32", shape=(-1,)),)
    assert signatures["half"].inputs == (TensorSpec(name="x", dtype="float32", shape=(-1, 2)),)
    assert [spec.name for spec in signatures["half"].outputs] == ["sum", "y"]


def test_each_signature_computes_the_outputs_that_are_asked_for(lookup_tflite: Path) -> None:
    backend = _load(lookup_tflite)
    for ids in ([2], [0, 1, 2, 0]):
        row = backend.run("lookup", {"id": np.array(ids, np.int32)}, ["row"])["row"]
        assert row.tolist() == [[2.0 * each, 2.0 * each + 1] for each in ids]
    values = backend.run("half", {"x": np.array([[1, 3], [2, 2]], np.float32)}, ["sum", "y"])
    assert {name: value.tolist() for name, value in values.items()} == {"sum": [4, 4], "y": [[4], [4]]}
    assert list(backend.run("half", {"x": np.ones((1, 2), np.float32)}, ["y"])) == ["y"]


def test_without_a_signature_tensor_names_stand_for_it(plain_tflite: Path) -> None:
    backend = _load(plain_tflite)
    (signature,) = backend.signatures.values()
    assert [(spec.name, spec.dtype) for spec in (*signature.inputs, *signature.outputs)] == [
        ("a", "float32"),
        ("b", "float32"),
    ]
    for rows in (1, 4, 2):
        values = backend.run("serving_default", {"a": np.full((rows, 3), 2, np.float32)}, ["b"])
        assert values["b"].tolist() == [[3.0] * 3] * rows


def test_without_a_signature_names_are_cut_as_upstream_cuts_them(two_outputs: Path) -> None:
    """``serving_default_x:0`` is called ``serving_default_x``; what would have one name with another keeps its own."""
    backend = _load(with_signatures(two_outputs, None))
    (signature,) = backend.signatures.values()
    assert [spec.name for spec in signature.inputs] == ["serving_default_x"]
    assert sorted(spec.name for spec in signature.outputs) == ["PartitionedCall", "PartitionedCall:1"]
    assert backend.tensor_names == {
        "serving_default": (
            {"serving_default_x": "serving_default_x:0"},
            {"PartitionedCall": "PartitionedCall:0", "PartitionedCall:1": "PartitionedCall:1"},
        )
    }
    names = [spec.name for spec in signature.outputs]
    values = backend.run("serving_default", {"serving_default_x": np.array([[1, 3]], np.float32)}, names)
    assert sorted(value.tolist() for value in values.values()) == [[[2, 4]], [[2, 6]]]


def test_signatures_for_tensorflow_serving_go_before_the_file_s_own(two_outputs: Path) -> None:
    first, second = tensorflow_pb2.SignatureDef(), tensorflow_pb2.SignatureDef()
    first.inputs["a"].name, first.outputs["scores"].name = "serving_default_x:0", "PartitionedCall:1"
    first.method_name = "tensorflow/serving/classify"
    second.inputs["b"].name, second.outputs["b"].name = "serving_default_x:0", "PartitionedCall:0"
    backend = _load(with_signatures(two_outputs, {"one": first, "two": second}))
    assert {name: each.method.rpartition("/")[2] for name, each in backend.signatures.items()} == {
        "one": "classify",
        "two": "predict",
    }
    assert backend.signatures["one"].inputs == (TensorSpec(name="a", dtype="float32", shape=(-1, 2)),)
    assert backend.tensor_names["two"] == ({"b": "serving_default_x:0"}, {"b": "PartitionedCall:0"})
    x = np.array([[1, 3]], np.float32)
    values = [backend.run("one", {"a": x}, ["scores"])["scores"], backend.run("two", {"b": x}, ["b"])["b"]]
    assert sorted(value.tolist() for value in values) == [[[2, 4]], [[2, 6]]]


def test_a_signature_for_tensorflow_serving_may_have_the_colon_that_the_file_lacks(plain_tflite: Path) -> None:
    definition = tensorflow_pb2.SignatureDef()
    definition.inputs["x"].name, definition.outputs["y"].name = "a:0", "b:0"
    backend = _load(with_signatures(plain_tflite, {"serving_default": definition}))
    assert backend.run("serving_default", {"x": np.full((1, 3), 2, np.float32)}, ["y"])["y"].tolist() == [[3.0] * 3]


def test_a_signature_for_tensorflow_serving_that_means_nothing_is_a_load_error(plain_tflite: Path) -> None:
    definition = tensorflow_pb2.SignatureDef()
    definition.inputs["x"].name = "absent:0"
    with pytest.raises(LoadError, match=r"'x' is the tensor 'absent:0'; the file has \['a'\]"):
        _load(with_signatures(plain_tflite, {"serving_default": definition}))
    for content in (b"", b"\x01", b"nonsense", bytes(range(64))):
        with pytest.raises(LoadError, match=r"plain\.tflite: The file's SignatureDefs cannot be read"):
            _load(with_signatures(plain_tflite, {}, content))


@pytest.mark.parametrize(("flex", "name"), [(False, "ParseExampleV2"), (True, "FlexParseExampleV2")])
def test_an_operation_that_litert_lacks_is_a_load_error(parsing, flex: bool, name: str) -> None:
    with pytest.raises(
        LoadError, match=rf"tflite: it needs the operation {name}, which LiteRT does not have.*modelyard export"
    ):
        _load(parsing(flex=flex))


def test_an_answer_is_not_overwritten_by_the_next(lookup_tflite: Path) -> None:
    backend = _load(lookup_tflite)
    first = backend.run("lookup", {"id": np.array([2], np.int32)}, ["row"])["row"]
    backend.run("lookup", {"id": np.array([0], np.int32)}, ["row"])
    assert first.tolist() == [[4, 5]]


def test_an_output_may_have_no_elements(lookup_tflite: Path) -> None:
    """LiteRT 2.3 computes it, and refuses to show it."""
    backend = _load(lookup_tflite)
    for x in ([[1, 0], [0, 1]], [[-1, -1]], [[0, 2]]):
        answer = backend.run("places", {"x": np.array(x, np.float32)}, ["found", "sum"])
        assert answer["found"].tolist() == np.argwhere(np.array(x) > 0).tolist()
        assert answer["found"].shape[1] == 2 and answer["found"].dtype == np.int64
        assert answer["sum"].tolist() == np.sum(x, 1).tolist()


def test_more_calls_than_interpreters_wait_for_each_other(lookup_tflite: Path) -> None:
    backend = _load(lookup_tflite, interpreters=2)
    answers: queue.SimpleQueue[tuple[int, list[list[float]]]] = queue.SimpleQueue()

    def call(number: int) -> None:
        for _ in range(50):
            row = backend.run("lookup", {"id": np.array([number], np.int32)}, ["row"])["row"]
            answers.put((number, row.tolist()))

    threads = [threading.Thread(target=call, args=(number % 3,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.qsize() == 300
    for _ in range(300):
        number, row = answers.get()
        assert row == [[2.0 * number, 2.0 * number + 1]]


def test_what_a_large_call_took_is_freed_later(plain_tflite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.serving.backends._litert._LARGE_S", 0.0)
    backend = _load(plain_tflite, interpreters=1)
    few, many = np.ones((1, 3), np.float32), np.ones((5_000_000, 3), np.float32)

    def megabytes(rows: npt.NDArray[np.float32]) -> float:
        assert (backend.run("serving_default", {"a": rows}, ["b"])["b"] == 2.5).all()
        return (resident_bytes() or 0) / 1e6

    before, large = megabytes(few), megabytes(many)
    assert large > before + 100
    # Other threads of this process come and go, too.
    until(lambda: megabytes(few) < (before + large) / 2)


def test_a_model_with_state_has_one_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a state of its own: two would count apart, and one that is made anew begins again."""
    import tensorflow as tf

    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = tf.Variable(0.0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def add(self, x):
            return {"total": self.total.assign_add(tf.reduce_sum(x))}

    model = Model()
    tf.saved_model.save(model, str(tmp_path), signatures={"add": model.add})
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path))
    converter.experimental_enable_resource_variables = True
    (tmp_path / "model.tflite").write_bytes(converter.convert())
    monkeypatch.setattr("modelyard.serving.backends._litert._LARGE_BYTES", 0)
    monkeypatch.setattr("modelyard.serving.backends._litert._LARGE_S", 0.0)
    backend = _load(tmp_path / "model.tflite", interpreters=3)
    assert len(backend._idle) == 1
    one = {"x": np.ones(1, np.float32)}
    assert [backend.run("add", one, ["total"])["total"].tolist() for _ in range(3)] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("shape", [(2,), (1, 3)])
def test_a_wrong_shape_is_refused_and_does_no_harm(lookup_tflite: Path, shape: tuple[int, ...]) -> None:
    backend = _load(lookup_tflite)
    with pytest.raises(InvalidInputError, match="signature 'half'"):
        backend.run("half", {"x": np.zeros(shape, np.float32)}, ["y"])
    assert backend.run("half", {"x": np.ones((1, 2), np.float32)}, ["y"])["y"].tolist() == [[3]]


def test_a_wrong_dtype_is_refused(lookup_tflite: Path) -> None:
    with pytest.raises(InvalidInputError, match="signature 'lookup'"):
        _load(lookup_tflite).run("lookup", {"id": np.zeros(1, np.float64)}, ["row"])


def test_a_failure_of_the_graph_is_not_the_callers(lookup_tflite: Path) -> None:
    backend = _load(lookup_tflite)
    with pytest.raises(PredictionError, match="signature 'share'"):
        backend.run("share", {"x": np.array([1, 2], np.int32)}, ["y"])
    assert backend.run("share", {"x": np.array([1, 2, 3], np.int32)}, ["y"])["y"].tolist() == [60, 30, 20]


@pytest.mark.parametrize(("graph", "name", "value"), [("lookup", "id", 99), ("share", "x", 0)])
def test_a_value_that_the_graph_refuses_is_the_callers(lookup_tflite: Path, graph: str, name: str, value: int) -> None:
    with pytest.raises(InvalidInputError, match=f"signature '{graph}'"):
        _load(lookup_tflite).run(graph, {name: np.array([value] * 3, np.int32)}, [])


def test_a_column_that_a_request_lacks_is_not_read_from_elsewhere(lookup_tflite: Path) -> None:
    backend = _load(lookup_tflite)
    for columns in (2, 0):
        with pytest.raises(InvalidInputError, match=r"shape \[1, .\]; expected \[-1, 5\]"):
            backend.run("column", {"x": np.ones((1, columns), np.float32)}, ["y"])
    rows = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert backend.run("column", {"x": rows}, ["y"])["y"].tolist() == [3, 8, 13]


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x1c\x00\x00\x00TFL3" + bytes(64)])
def test_a_corrupted_file_is_a_load_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"model\.tflite"):
        _load(path)


def test_an_absent_file_is_no_load_error(tmp_path: Path) -> None:
    """A version that cannot be loaded is given up; one that cannot be read is looked at again."""
    with pytest.raises(ArtifactError, match=r"model\.tflite cannot be read: ") as caught:
        _load(tmp_path / "model.tflite")
    assert not isinstance(caught.value, LoadError)


def test_the_interpreter_that_was_used_last_comes_first(lookup_tflite: Path) -> None:
    """It has the shapes of the last inputs."""
    backend = _load(lookup_tflite, interpreters=2)
    models = list(backend._idle)
    for _ in range(3):
        with backend._model() as first:
            assert first is models[-1]
    with backend._model() as first, backend._model() as second:
        assert [second, first] == models
    backend.close()


def test_close_lets_go_of_the_interpreters(lookup_tflite: Path) -> None:
    backend = _load(lookup_tflite, interpreters=2)
    model = weakref.ref(backend._idle[0])
    backend.close()
    assert model() is None
