"""Small real models for tests: ONNX graphs made by hand, SavedModels made with TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import overload

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    REGRESS_METHOD,
    AnyVersion,
    ExampleDecode,
    FeatureSpec,
    FormatEntry,
    Location,
    Manifest,
    ModelVersion,
    RemotePath,
    RemoteVersion,
    RowsCheck,
    Signature,
    Source,
    TensorSpec,
    VerifyReport,
    hash_files,
    publish,
    staging,
)

#: Of ONNX's numbers of dtypes.
_DTYPES = {1: "float32", 6: "int32", 7: "int64", 8: "string"}


@overload
def publish_affine(
    model_dir: Path, *, slope: float, intercept: float, rows: RowsCheck | None = None
) -> ModelVersion: ...


@overload
def publish_affine(
    model_dir: RemotePath, *, slope: float, intercept: float, rows: RowsCheck | None = None
) -> RemoteVersion: ...


def publish_affine(model_dir: Location, *, slope: float, intercept: float, rows: RowsCheck | None = None) -> AnyVersion:
    """Publishes ``y = slope * x + intercept`` over float32 [-1] as an ONNX version with a manifest."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    constants = [
        helper.make_tensor("slope", TensorProto.FLOAT, [], [slope]),
        helper.make_tensor("intercept", TensorProto.FLOAT, [], [intercept]),
    ]
    nodes = [
        helper.make_node("Mul", ["x", "slope"], ["scaled"]),
        helper.make_node("Add", ["scaled", "intercept"], ["y"]),
    ]
    return _publish(model_dir, helper.make_graph(nodes, "affine", [x], [y], constants), rows=rows)


def publish_slow(model_dir: Path, *, loops: int, tried: bool = False) -> AnyVersion:
    """Publishes ``y = x`` over float32 [-1] as an ONNX version that takes about a millisecond for each loop.

    Requests are computed one by one; ``tried``: a server finds out how, by slow requests of its own at each load.
    """

    def value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    side = 256
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["carried", "identity"], ["next"]),
            helper.make_node("Identity", ["go_on"], ["still"]),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("go_on", [], TensorProto.BOOL), value("carried", [side, side])],
        [value("still", [], TensorProto.BOOL), value("next", [side, side])],
    )
    constants = [
        numpy_helper.from_array(np.eye(side, dtype=np.float32), "identity"),
        numpy_helper.from_array(np.array(loops, dtype=np.int64), "loops"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    nodes = [
        helper.make_node("Loop", ["loops", "yes", "identity"], ["product"], body=body),
        helper.make_node("ReduceMax", ["product"], ["one"], keepdims=0),
        helper.make_node("Mul", ["x", "one"], ["y"]),
    ]
    return _publish(
        model_dir,
        helper.make_graph(nodes, "slow", [value("x", ["batch"])], [value("y", ["batch"])], constants),
        rows=None if tried else RowsCheck(verdict="dependent", reason="so that each is computed for itself"),
    )


def publish_rounds(model_dir: Path) -> AnyVersion:
    """Publishes ``y = x`` over float32 [-1] as an ONNX version that counts to the largest of its rows meanwhile.

    The signature ``regress`` does so with the feature x of examples.
    """

    def value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [helper.make_node("Add", ["carried", "step"], ["next"]), helper.make_node("Identity", ["go_on"], ["still"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go_on", [], TensorProto.BOOL), value("carried", [])],
        [value("still", [], TensorProto.BOOL), value("next", [])],
    )
    constants = [
        numpy_helper.from_array(np.array(0, np.float32), "zero"),
        numpy_helper.from_array(np.array(1, np.float32), "step"),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["rounds"], to=TensorProto.INT64),
        helper.make_node("Loop", ["rounds", "yes", "zero"], ["counted"], body=body),
        helper.make_node("Mul", ["counted", "zero"], ["nothing"]),
    ]

    def graph(name: str, output: str) -> onnx.GraphProto:
        all_nodes = [*nodes, helper.make_node("Add", ["x", "nothing"], [output])]
        return helper.make_graph(all_nodes, name, [value("x", ["batch"])], [value(output, ["batch"])], constants)

    return _publish(model_dir, graph("rounds", "y"), regress=graph("regress", "outputs"))


def publish_regressor(model_dir: Path) -> AnyVersion:
    """Publishes ``outputs = 2 x`` over the feature x of examples, a float32: its only signature regresses."""

    x, outputs = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in ("x", "outputs"))
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["outputs"])], "regressor", [x], [outputs])
    return publish_graphs(
        model_dir, {DEFAULT_SIGNATURE: graph}, {DEFAULT_SIGNATURE: _regress(DEFAULT_SIGNATURE)}, Source()
    )


def publish_crashing(model_dir: Path) -> AnyVersion:
    """Publishes ``y = x`` over float32 [-1] as an ONNX version that ends onnxruntime's process: an LSTM on no rows."""

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in "xy")
    constants = [
        numpy_helper.from_array(np.zeros((1, 8, 1), np.float32), "w"),
        numpy_helper.from_array(np.zeros((1, 8, 2), np.float32), "r"),
        numpy_helper.from_array(np.array([1, -1, 1], np.int64), "shape"),
        numpy_helper.from_array(np.array([0], np.int64), "zero"),
        numpy_helper.from_array(np.array([1], np.int64), "one"),
    ]
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["steps"]),
        helper.make_node("Slice", ["steps", "zero", "zero", "one"], ["none"]),
        helper.make_node("LSTM", ["none", "w", "r"], ["states"], hidden_size=2),
        helper.make_node("ReduceSum", ["states"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    return _publish(model_dir, helper.make_graph(nodes, "crashing", [x], [y], constants))


def publish_hungry(model_dir: Path, *, megabytes: int) -> AnyVersion:
    """Publishes ``y = x`` over float32 [-1] as an ONNX version that takes so much memory to compute it."""

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in "xy")
    nodes = [
        # By the number of its inputs, so that it is not computed at loading.
        helper.make_node("Shape", ["x"], ["rows"]),
        helper.make_node("Mul", ["rows", "many"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("ReduceMax", ["zeros"], ["zero"], keepdims=0),
        helper.make_node("Add", ["x", "zero"], ["y"]),
    ]
    many = numpy_helper.from_array(np.array([megabytes << 18], np.int64), "many")
    return _publish(model_dir, helper.make_graph(nodes, "hungry", [x], [y], [many]))


def publish_pairs(model_dir: Path) -> ModelVersion:
    """Publishes ``y = 2 a + b`` over float32 [-1, 3], and ``s``, the sum of each row of it."""

    a, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "aby")
    s = helper.make_tensor_value_info("s", TensorProto.FLOAT, ["batch"])
    nodes = [
        helper.make_node("Add", ["a", "a"], ["twice"]),
        helper.make_node("Add", ["twice", "b"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axes"], ["s"], keepdims=0),
    ]
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    return _publish(model_dir, helper.make_graph(nodes, "pairs", [a, b], [y, s], [axes]))


def publish_words(model_dir: Path) -> ModelVersion:
    """Publishes ``scores`` float32 [-1, 3] of int32 ``ids`` [-1, 2] below 3, and ``echo`` of the string ``word`` [-1].

    The highest score is that of the first id.
    """

    ids = helper.make_tensor_value_info("ids", TensorProto.INT32, ["batch", 2])
    word = helper.make_tensor_value_info("word", TensorProto.STRING, ["batch"])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])
    echo = helper.make_tensor_value_info("echo", TensorProto.STRING, ["batch"])
    constants = [
        numpy_helper.from_array(np.eye(3, dtype=np.float32), "table"),
        numpy_helper.from_array(np.array(0, np.int64), "zero"),
    ]
    nodes = [
        helper.make_node("Gather", ["ids", "zero"], ["first"], axis=1),
        helper.make_node("Gather", ["table", "first"], ["scores"]),
        helper.make_node("Identity", ["word"], ["echo"]),
    ]
    return _publish(model_dir, helper.make_graph(nodes, "words", [ids, word], [scores, echo], constants))


def publish_names(model_dir: Path, names: Iterable[str]) -> ModelVersion:
    """Publishes ``name``, a string [-1], and ``length`` of it, float32 [-1], of int64 ``id`` [-1] among some."""

    ids = helper.make_tensor_value_info("id", TensorProto.INT64, ["batch"])
    name = helper.make_tensor_value_info("name", TensorProto.STRING, ["batch"])
    length = helper.make_tensor_value_info("length", TensorProto.FLOAT, ["batch"])
    texts = list(names)
    constants = [
        numpy_helper.from_array(np.array(texts, object), "names"),
        numpy_helper.from_array(np.array([len(text) for text in texts], np.float32), "lengths"),
    ]
    nodes = [
        helper.make_node("Gather", ["names", "id"], ["name"]),
        helper.make_node("Gather", ["lengths", "id"], ["length"]),
    ]
    return _publish(model_dir, helper.make_graph(nodes, "names", [ids], [name, length], constants))


@overload
def _publish(
    model_dir: Path, graph: onnx.GraphProto, *, regress: onnx.GraphProto | None = None, rows: RowsCheck | None = None
) -> ModelVersion: ...


@overload
def _publish(
    model_dir: RemotePath,
    graph: onnx.GraphProto,
    *,
    regress: onnx.GraphProto | None = None,
    rows: RowsCheck | None = None,
) -> RemoteVersion: ...


def _publish(
    model_dir: Location,
    graph: onnx.GraphProto,
    *,
    regress: onnx.GraphProto | None = None,
    rows: RowsCheck | None = None,
) -> AnyVersion:
    """Publishes an ONNX graph whose inputs and outputs all begin with the rows; and one over examples with x."""

    def specs(infos: Iterable[onnx.ValueInfoProto]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                name=info.name,
                dtype=_DTYPES[info.type.tensor_type.elem_type],
                shape=(-1, *(size.dim_value for size in info.type.tensor_type.shape.dim[1:])),
            )
            for info in infos
        )

    graphs = {DEFAULT_SIGNATURE: graph}
    signatures = {
        DEFAULT_SIGNATURE: Signature(inputs=specs(graph.input), outputs=specs(graph.output), compute=DEFAULT_SIGNATURE)
    }
    if regress is not None:
        graphs["regress"] = regress
        signatures["regress"] = _regress("regress")
    checks = {} if rows is None else {DEFAULT_SIGNATURE: rows}
    return publish_graphs(model_dir, graphs, signatures, Source(), rows=checks)


def _regress(graph: str) -> Signature:
    """The signature of a graph from x to outputs, over examples with x."""
    return Signature(
        inputs=(TensorSpec(name="inputs", dtype="string", shape=(-1,)),),
        outputs=(TensorSpec(name="outputs", dtype="float32", shape=(-1,)),),
        compute=graph,
        method=REGRESS_METHOD,
        decode=ExampleDecode(input="inputs", features=(FeatureSpec(name="x", dtype="float32"),)),
    )


def publish_graphs(
    model_dir: Location,
    graphs: Mapping[str, onnx.GraphProto],
    signatures: Mapping[str, Signature],
    source: Source,
    *,
    rows: Mapping[str, RowsCheck] | None = None,
) -> AnyVersion:
    with staging(model_dir) as staged:
        (staged / "onnx").mkdir()
        for name, graph in graphs.items():
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
            onnx.checker.check_model(model)
            (staged / "onnx" / f"{name}.onnx").write_bytes(model.SerializeToString())
        files = hash_files(staged)
        verify = VerifyReport(
            examples=1, batch_sizes=(1, 2), max_abs_error=0.0, max_rel_error=0.0, rows={} if rows is None else rows
        )
        entry = FormatEntry(
            path="onnx",
            precision="float32",
            converter={"onnx": onnx.__version__},
            runtime={"name": "onnxruntime"},
            verify=verify,
        )
        return publish(
            staged,
            model_dir,
            lambda version: Manifest(
                model=model_dir.name,
                version=version,
                created="2026-01-01T00:00:00Z",
                source=source,
                signatures=signatures,
                files=files,
                formats={"onnx": entry},
            ),
        )


def save_double(directory: Path, *, shape: list[int | str]) -> None:
    """Saves ``y = 2 x`` over float32 of a shape as an ONNX version of somebody else, with no manifest."""

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    (directory / "onnx").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, str(directory / "onnx" / f"{DEFAULT_SIGNATURE}.onnx"))


def save_half_plus_two(directory: Path) -> None:
    """Saves a TF2 model with several signatures over y = 0.5 x + 2, and one over strings."""
    import tensorflow as tf

    class HalfPlusTwo(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = tf.Variable(0.5)
            self.b = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def predict(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": self.a * x + self.b}

        @tf.function(
            input_signature=[
                tf.TensorSpec([None], tf.float32, name="x"),
                tf.TensorSpec([None], tf.int64, name="count"),
            ]
        )
        def two_inputs(self, x: tf.Tensor, count: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": self.a * x + self.b, "next": count + 1}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
        def strings(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"upper": tf.strings.upper(text), "raw_bytes": text, "length": tf.strings.length(text)}

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def total(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"sum": tf.reduce_sum(x)}

    module = HalfPlusTwo()
    tf.saved_model.save(
        module,
        str(directory),
        signatures={
            DEFAULT_SIGNATURE: module.predict,
            "two_inputs": module.two_inputs,
            "strings": module.strings,
            "total": module.total,
        },
    )
