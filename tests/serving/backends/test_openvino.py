from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelyard.errors import InternalError, InvalidInputError, LoadError, RequestTooLargeError
from modelyard.serving.backends import OpenVinoBackend


def _load(path: Path, *, threads: int = 1, requests: int = 1) -> OpenVinoBackend:
    return OpenVinoBackend({"graph": path}, threads=threads, requests=requests)


def test_arrays_may_be_read_only_or_scattered(scores_onnx: Path, images: np.ndarray) -> None:
    backend = _load(scores_onnx)
    frozen = np.frombuffer(images.tobytes(), dtype=np.float32).reshape(images.shape)
    scattered = np.repeat(images, 2, axis=0)[::2]
    for array in (frozen, scattered):
        values = backend.run("graph", {"image": array}, ["scores"])
        np.testing.assert_array_equal(values["scores"], images.reshape(2, 6)[:, :4])


def test_an_answer_is_not_overwritten_by_the_next(scores_onnx: Path, images: np.ndarray) -> None:
    backend = _load(scores_onnx)
    first = backend.run("graph", {"image": images}, ["scores"])["scores"]
    backend.run("graph", {"image": images * 0}, ["scores"])
    np.testing.assert_array_equal(first, images.reshape(2, 6)[:, :4])


def test_what_is_served_is_what_was_loaded(write_onnx, tmp_path: Path) -> None:
    """A file that is changed in place changes no answer; one that is cut ends no process."""
    table = np.arange(1 << 20, dtype=np.float32).reshape(-1, 256)
    path = write_onnx(
        "table",
        [helper.make_node("Gather", ["rows", "ids"], ["row"])],
        {"ids": ("int64", ["n"])},
        {"row": ("float32", ["n", 256])},
        {"rows": table},
    )
    onnx.save(onnx.load(path), tmp_path / "table.onnx", save_as_external_data=True, location="rows.bin")
    backend = _load(tmp_path / "table.onnx")
    with (tmp_path / "rows.bin").open("r+b") as file:
        file.write(bytes(table.nbytes))
    found = backend.run("graph", {"ids": np.array([3, 4000])}, ["row"])["row"]
    np.testing.assert_array_equal(found, table[[3, 4000]])


def test_an_empty_batch_has_empty_answers_of_every_kind(scores_onnx: Path, images: np.ndarray) -> None:
    values = _load(scores_onnx).run("graph", {"image": images[:0]}, ["scores", "label", "class_id"])
    assert {name: value.shape for name, value in values.items()} == {"scores": (0, 4), "label": (0,), "class_id": (0,)}
    assert values["label"].dtype == object


def test_outputs_that_share_a_tensor_keep_their_names(write_onnx) -> None:
    path = write_onnx(
        "shared",
        [
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("Identity", ["y"], ["again"]),
            helper.make_node("Identity", ["x"], ["echo"]),
        ],
        {"x": ("float32", ["n"])},
        {"again": ("float32", ["n"]), "y": ("float32", ["n"]), "echo": ("float32", ["n"])},
    )
    values = _load(path).run("graph", {"x": np.array([-1, 2], np.float32)}, ["y", "again", "echo"])
    assert {name: value.tolist() for name, value in values.items()} == {"y": [0, 2], "again": [0, 2], "echo": [-1, 2]}


def test_calls_at_the_same_time_get_their_own_answers(scores_onnx: Path) -> None:
    backend = _load(scores_onnx, requests=2)
    wrong: list[int] = []

    def call(number: int) -> None:
        image = np.full((1, 2, 3), number, np.float32)
        for _ in range(100):
            if not np.all(backend.run("graph", {"image": image}, ["scores"])["scores"] == number):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_equal_values_keep_their_order(write_onnx) -> None:
    path = write_onnx(
        "largest",
        [
            helper.make_node("Constant", [], ["k"], value_ints=[5]),
            helper.make_node("TopK", ["x", "k"], ["values", "places"]),
        ],
        {"x": ("float32", ["n", 8])},
        {"values": ("float32", ["n", 5]), "places": ("int64", ["n", 5])},
    )
    x = np.array([[1, 1, 1, 1, 1, 1, 1, 1], [3, 1, 3, 1, 3, 1, 3, 1]], np.float32)
    places = _load(path).run("graph", {"x": x}, ["places"])["places"]
    assert places.tolist() == [[0, 1, 2, 3, 4], [0, 2, 4, 6, 1]]


_TABLE = np.eye(10, dtype=np.float32)


def _branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)])


#: Operations of a table that take indices, some of these, and the answer.
_INDEXED: dict[str, tuple[list[onnx.NodeProto], list[list[int]], np.ndarray]] = {
    "rows": ([helper.make_node("GatherND", ["table", "x"], ["y"])], [[9], [-1]], _TABLE[[9, 9]]),
    "numbers": ([helper.make_node("GatherND", ["table", "x"], ["y"])], [[9, 9], [-1, 3]], _TABLE[[9, 9], [9, 3]]),
    "of a batch": (
        [
            helper.make_node("Slice", ["table", "zero", "two"], ["part"]),
            helper.make_node("GatherND", ["part", "x"], ["y"], batch_dims=1),
        ],
        [[1], [-9]],
        _TABLE[[0, 1], [1, 1]],
    ),
    "looked up": ([helper.make_node("Gather", ["table", "x"], ["y"])], [[9], [-1]], _TABLE[[[9], [9]]]),
    "scattered": (
        [helper.make_node("ScatterElements", ["table", "x", "ones"], ["y"])],
        [[8], [-1]],
        _TABLE + [[float(row > 7 and column == 0) for column in range(10)] for row in range(10)],
    ),
    "in a branch": (
        [
            helper.make_node("Size", ["x"], ["size"]),
            helper.make_node("Cast", ["size"], ["yes"], to=TensorProto.BOOL),
            helper.make_node(
                "If", ["yes"], ["y"],
                then_branch=_branch("then", helper.make_node("GatherND", ["table", "x"], ["found"])),
                else_branch=_branch("else", helper.make_node("Identity", ["table"], ["all"])),
            ),
        ],
        [[9], [-1]],
        _TABLE[[9, 9]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", [10, -11, 1_000_000, -1_000_000])
@pytest.mark.parametrize("kind", _INDEXED)
def test_an_index_out_of_range_is_an_error(write_onnx, kind: str, wrong: int) -> None:
    """The plugin itself answers with other memory, or ends the process."""
    nodes, right, expected = _INDEXED[kind]
    constants = {
        "table": _TABLE, "ones": np.ones((2, 1), np.float32), "zero": np.array([0]), "two": np.array([2]),
    }  # fmt: skip
    path = write_onnx(
        "indexed", nodes, {"x": ("int64", ["n", len(right[0])])}, {"y": ("float32", None)}, constants=constants
    )
    backend = _load(path)
    np.testing.assert_array_equal(backend.run("graph", {"x": np.array(right)}, ["y"])["y"], expected)
    with pytest.raises(InvalidInputError, match="indices|table of 10 rows"):
        backend.run("graph", {"x": np.array([right[0], [wrong] * len(right[0])])}, ["y"])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_that_would_be_rounded_are_refused(write_onnx, dtype: str) -> None:
    # A quotient and a maximum are computed in float32; what is passed on and added is not.
    path = write_onnx(
        "quotient",
        [
            helper.make_node("Constant", [], ["three"], value=numpy_helper.from_array(np.array(3, dtype))),
            helper.make_node("Div", ["x", "three"], ["y"]),
        ],
        {"x": (dtype, ["n"])},
        {"y": (dtype, ["n"])},
    )
    backend = _load(path)
    assert backend.run("graph", {"x": np.array([1 << 24, 7], dtype)}, ["y"])["y"].tolist() == [5592405, 2]
    with pytest.raises(InvalidInputError, match="partly in float32, from -16777216 to 16777216"):
        backend.run("graph", {"x": np.array([(1 << 24) + 2, 7], dtype)}, ["y"])


def test_shapes_that_do_not_fit_each_other_are_refused(sum_onnx: Path) -> None:
    with pytest.raises(InvalidInputError, match="graph 'graph'"):
        _load(sum_onnx).run("graph", {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}, ["y"])


@pytest.mark.parametrize(("threads", "requests"), [(1, 1), (2, 1), (1, 2)])
def test_a_failure_never_answers_with_the_call_before(fill_onnx: Path, threads: int, requests: int) -> None:
    backend = _load(fill_onnx, threads=threads, requests=requests)
    one = np.ones(1, np.float32)
    assert backend.run("graph", {"one": one, "shape": np.array([1, 2, 3])}, ["y"])["y"].shape == (1, 2, 3)
    with pytest.raises(RequestTooLargeError, match="graph 'graph'"):
        backend.run("graph", {"one": one, "shape": np.array([1 << 15, 1 << 15, 1 << 15])}, ["y"])
    assert backend.run("graph", {"one": one, "shape": np.array([3, 1, 2])}, ["y"])["y"].shape == (3, 1, 2)


@pytest.fixture
def lookup(write_onnx) -> Callable[..., Path]:
    """Writes a graph that looks ``x`` [n] up in 0 to 9, and gives ``y`` [n]."""

    def write(operation: str) -> Path:
        places = ["x", "one"] if operation == "GatherND" else ["x"]
        path: Path = write_onnx(
            "found",
            [
                helper.make_node("Unsqueeze" if len(places) == 2 else "Identity", places, ["places"]),
                helper.make_node(operation, ["table", "places"], ["y"]),
            ],
            {"x": ("int64", ["n"])},
            {"y": ("float32", ["n"])},
            constants={"table": np.arange(10, dtype=np.float32), "one": np.array([1])},
        )
        return path

    return write


def test_failures_beside_other_calls_change_no_answer(lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the graph compiled again and again: it was, some eleven times for each call that failed."""
    compiled, failed, wrong = [], [], []
    compile_model = openvino.Core.compile_model

    def count(*args: Any) -> openvino.CompiledModel:
        compiled.append(args)
        return compile_model(*args)

    monkeypatch.setattr(openvino.Core, "compile_model", count)
    backend = _load(lookup("GatherElements"), requests=3)

    def call(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(50):
            fails, rows = numbers.random() < 0.2, numbers.randint(1, 6)
            places = np.array([99] * rows if fails else [numbers.randrange(10) for _ in range(rows)])
            try:
                right = backend.run("graph", {"x": places}, ["y"])["y"].tolist() == places.tolist()
            except InvalidInputError:
                right = fails
                failed.append(places)
            if not right:
                wrong.append(places)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert 1 < len(compiled) <= 2 * len(failed)


@pytest.mark.parametrize("requests", [1, 2])
@pytest.mark.parametrize("operation", ["GatherElements", "GatherND"])
def test_a_failure_leaves_nothing_to_the_next_calls(lookup, operation: str, requests: int) -> None:
    """OpenVINO's operation has the shape of the failed call's answer from then on, or ends the process."""
    backend = _load(lookup(operation), requests=requests)

    def call(*places: int) -> list[float]:
        values: list[float] = backend.run("graph", {"x": np.array(places)}, ["y"])["y"].tolist()
        return values

    for rows in (1, 3, 2):
        for wrong in (4, 1, 9):
            assert call(*range(rows)) == list(range(rows))
            with pytest.raises(InvalidInputError):
                call(*[99] * wrong)
            assert call(*range(rows)) == list(range(rows))


def test_what_has_the_same_place_is_added(tmp_path: Path) -> None:
    import tensorflow as tf

    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.int32), tf.TensorSpec([None], tf.float32)])
        def count(self, places, values):
            return {"sums": tf.scatter_nd(places, values, [4])}

    model = Model()
    tf.saved_model.save(model, str(tmp_path / "m"), signatures={"serving_default": model.count})
    backend = OpenVinoBackend(tmp_path / "m", threads=1, requests=1, tags=("serve",))
    feed = {"places": np.array([[1], [3], [1]], np.int32), "values": np.array([1, 2, 4], np.float32)}
    assert backend.run("serving_default", feed, ["sums"])["sums"].tolist() == [0, 5, 0, 2]


def test_a_resize_with_antialiasing_is_refused(write_onnx) -> None:
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear", antialias=1)
    shapes = {"x": ("float32", [1, 1, 6, 6])}, {"y": ("float32", [1, 1, 3, 3])}
    with pytest.raises(LoadError, match="'y' resizes with antialiasing, which OpenVINO leaves out"):
        _load(write_onnx("resized", [node], *shapes, {"sizes": np.array([1, 1, 3, 3], np.int64)}))


@pytest.mark.parametrize(
    ("kind", "between"),
    [
        ("int32", "int32"),
        ("int32", "int64"),
        ("int32", "int16"),
        ("int32", "uint16"),
        ("int64", "int32"),
        ("float32", "float32"),
        ("float32", "double"),
    ],
)
def test_what_is_converted_to_and_fro_is_this_call_s(write_onnx, kind: str, between: str) -> None:
    kinds = (between, kind) if between != kind else (kind,)
    names = ("x", *("other" for _ in kinds[1:]), "y")
    nodes = [
        helper.make_node("Cast", [names[i]], [names[i + 1]], to=helper.np_dtype_to_tensor_dtype(np.dtype(each)))
        for i, each in enumerate(kinds)
    ]
    backend = _load(write_onnx("converted", nodes, {"x": (kind, ["n", 2])}, {"y": (kind, ["n", 2])}))
    # Before, the second call was answered with what was in the memory of the first.
    for number, rows in enumerate((3, 1, 5, 1, 1, 2, 7)):
        x = np.arange(rows * 2).reshape(rows, 2).astype(kind) + 1000 * number
        np.testing.assert_array_equal(backend.run("graph", {"x": x}, ["y"])["y"], x)


@pytest.mark.parametrize("between", ["int16", "uint16"])
def test_integers_that_16_bits_do_not_hold_are_cut_as_by_tensorflow(write_onnx, between: str) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["other"], to=helper.np_dtype_to_tensor_dtype(np.dtype(between))),
        helper.make_node("Cast", ["other"], ["y"], to=TensorProto.INT32),
    ]
    x = np.array([-1, -70_000, 32_768, 65_536, 2**31 - 1, 7], np.int32)
    backend = _load(write_onnx("cut", nodes, {"x": ("int32", ["n"])}, {"y": ("int32", ["n"])}))
    np.testing.assert_array_equal(backend.run("graph", {"x": x}, ["y"])["y"], x.astype(between).astype(np.int32))


def test_integers_that_openvino_would_cut_are_refused(write_onnx) -> None:
    path = write_onnx(
        "twice", [helper.make_node("Add", ["x", "x"], ["y"])], {"x": ("int64", ["n"])}, {"y": ("int64", ["n"])}
    )
    backend = _load(path)
    assert backend.run("graph", {"x": np.array([-(1 << 30), (1 << 30) - 1])}, ["y"])["y"].tolist() == [
        -(1 << 31),
        (1 << 31) - 2,
    ]
    assert backend.run("graph", {"x": np.zeros(0, np.int64)}, ["y"])["y"].shape == (0,)
    with pytest.raises(InvalidInputError, match="values from 1 to 2147483648"):
        backend.run("graph", {"x": np.array([1, 1 << 31])}, ["y"])


@pytest.mark.parametrize(
    ("dtype", "shape", "message"),
    [
        ("string", ["n"], "input 'x' holds strings"),
        ("float32", None, "'x' has no fixed number of dimensions"),
        ("float64", ["n"], "'x' has the dtype f64"),
        ("bfloat16", ["n"], "'x' has the dtype bf16"),
    ],
)
def test_a_graph_that_it_cannot_compute_exactly_is_refused_by_name(write_onnx, dtype, shape, message: str) -> None:
    path = write_onnx(
        "echo", [helper.make_node("Identity", ["x"], ["y"])], {"x": (dtype, shape)}, {"y": (dtype, shape)}
    )
    with pytest.raises(LoadError, match=message) as caught:
        _load(path)
    assert "echo.onnx" in caught.value.message


def test_double_precision_inside_a_graph_is_refused(write_onnx) -> None:
    path = write_onnx(
        "inside",
        [
            helper.make_node("Cast", ["x"], ["wide"], to=11),
            helper.make_node("Mul", ["wide", "wide"], ["square"]),
            helper.make_node("Cast", ["square"], ["y"], to=1),
        ],
        {"x": ("float32", ["n"])},
        {"y": ("float32", ["n"])},
    )
    with pytest.raises(LoadError, match="is float64, which OpenVINO computes in float32"):
        _load(path)


def test_an_operation_without_counterpart_is_named(write_onnx) -> None:
    path = write_onnx(
        "join",
        [helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER")],
        {"x": ("string", ["n"])},
        {"y": ("string", ["n"])},
    )
    with pytest.raises(LoadError, match="no counterpart for StringNormalizer"):
        _load(path)


def test_a_call_after_close_is_a_bug(scores_onnx: Path, images: np.ndarray) -> None:
    backend = _load(scores_onnx)
    backend.close()
    with pytest.raises(InternalError, match="after close"):
        backend.run("graph", {"image": images}, ["scores"])


def _read(path: Path, tags: tuple[str, ...] = ("serve",)) -> OpenVinoBackend:
    return OpenVinoBackend(path, tags=tags, threads=1, requests=2)


def test_a_keras_model_is_right_to_1e_6(keras_saved_model: Path, keras_images: np.ndarray) -> None:
    import tensorflow as tf

    expected = tf.saved_model.load(str(keras_saved_model)).signatures["serving_default"](tf.constant(keras_images))
    backend = _read(keras_saved_model)
    (spec,) = backend.signatures["serving_default"].inputs
    assert spec.shape == (-1, 28, 28, 1)
    for batch in (keras_images[:1], keras_images):
        values = backend.run("serving_default", {spec.name: batch}, sorted(expected))
        assert set(values) == set(expected)
        for name, value in values.items():
            reference = expected[name].numpy()[: len(batch)]
            assert value.dtype == reference.dtype
            np.testing.assert_allclose(value, reference, rtol=0, atol=1e-6)
            assert np.ptp(value) > 0.01


def test_every_signature_that_it_can_read_keeps_its_names(
    signatures_saved_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="modelyard.serving"):
        backend = _read(signatures_saved_model)
    assert sorted(backend.signatures) == ["label", "same_names", "serving_default", "two"]
    two = backend.signatures["two"]
    assert {spec.name: (spec.dtype, spec.shape) for spec in two.inputs} == {
        "count": ("int64", (-1,)),
        "x": ("float32", (-1,)),
    }
    x = np.array([1, 2], np.float32)
    values = backend.run("two", {"x": x, "count": np.array([5, 6])}, ["next", "y", "echo"])
    assert {name: value.tolist() for name, value in values.items()} == {
        "next": [6, 7],
        "y": [2.5, 3.0],
        "echo": [1.0, 2.0],
    }
    assert backend.run("same_names", {"x": x}, ["x"])["x"].tolist() == [-1.0, -2.0]
    assert backend.run("label", {"id": np.array([2, 1, 9])}, ["label"])["label"].tolist() == [b"two", b"one", b"none"]
    lines = [record.getMessage().split(" is left out, OpenVINO cannot serve it: ") for record in caplog.records]
    assert {subject.split("signature ")[1].strip("'"): reason for subject, reason in lines} == {
        "adds": "it changes its state (AssignAddVariableOp), which OpenVINO does not keep between calls",
        "assigns": "it changes its state (AssignVariableOp), which OpenVINO does not keep between calls",
        "constant": "OpenVINO loses 'one' on the way, as it does with constants",
        "double": "'x' is float64, which OpenVINO does not compute exactly",
        "text": "its input 'text' holds strings",
        "unknown_rank": "its input 'x' has no fixed number of dimensions",
        "unknown_op": "there is no counterpart for Betainc",
    }


def test_a_tf1_model_is_cut_at_the_inputs_of_a_signature(tf1_saved_model: Path) -> None:
    backend = _read(tf1_saved_model)
    # The others parse tf.Example.
    assert list(backend.signatures) == ["serving_default"]
    values = backend.run("serving_default", {"x": np.array([[1], [3]], np.float32)}, ["y"])
    assert values["y"].tolist() == [[2.5], [3.5]]


def test_where_nothing_is_readable_every_reason_is_given(counter_saved_model: Path) -> None:
    with pytest.raises(LoadError, match="none of the signatures") as caught:
        _read(counter_saved_model)
    for reason in ("'incr_counter': it changes its state (AssignAdd)", "'reset_counter': it changes", "'get_counter'"):
        assert reason in caught.value.message
    assert "--runtime=tensorflow" in caught.value.message


def test_a_saved_model_without_its_tags_or_variables_is_a_load_error(keras_saved_model: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no meta graph with the tags"):
        _read(keras_saved_model, tags=("gpu",))
    (tmp_path / "saved_model.pb").write_bytes((keras_saved_model / "saved_model.pb").read_bytes())
    with pytest.raises(LoadError, match="none of the signatures"):
        _read(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff")
    with pytest.raises(LoadError, match="cannot be read as a SavedModel"):
        _read(tmp_path)


def test_read_only_inputs_live_until_the_answer(sum_onnx: Path) -> None:
    backend = _load(sum_onnx)
    # OpenVINO is given copies of these; freed too early, the second would take the place of the first.
    a = np.frombuffer(np.full(784, 1, np.float32).tobytes(), np.float32)
    b = np.frombuffer(np.full(784, 10, np.float32).tobytes(), np.float32)
    for _ in range(5):
        assert backend.run("graph", {"a": a, "b": b}, ["y"])["y"].tolist() == [11.0] * 784


def test_inputs_that_are_missing_are_never_those_of_the_call_before(sum_onnx: Path) -> None:
    backend = _load(sum_onnx)
    one = np.ones(2, np.float32)
    backend.run("graph", {"a": one, "b": one}, ["y"])
    with pytest.raises(InvalidInputError, match="received a; expected a, b"):
        backend.run("graph", {"a": one}, ["y"])


_PRESS_CTRL_C = """
import gc, os, signal, sys, threading
from pathlib import Path
from modelyard.serving.backends import OpenVinoBackend

held = [OpenVinoBackend({"scores": Path(sys.argv[1])}, threads=1, requests=1)]

def unload():
    held.pop().close()
    gc.collect()

# As the server does it: a thread of its own unloads.
thread = threading.Thread(target=unload)
thread.start()
thread.join()
signal.signal(signal.SIGINT, lambda *_: print("pressed", flush=True))
os.kill(os.getpid(), signal.SIGINT)
"""


def test_signals_arrive_after_a_model_was_unloaded_on_another_thread(scores_onnx: Path) -> None:
    command = [sys.executable, "-c", _PRESS_CTRL_C, str(scores_onnx)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "pressed\n"), done.stderr
