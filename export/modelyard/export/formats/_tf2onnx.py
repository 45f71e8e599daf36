"""tf2onnx, held to two rules of ours: what fails is an error, and what it lacks or breaks is made here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import tensorflow as tf

from modelyard.export.formats._freeze import Frozen, forget_initializers
from modelyard.export.formats._onnx_handlers import make_handlers
from modelyard.export.text import Handler, name_operator_sets

if TYPE_CHECKING:
    from onnx import ModelProto
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tf2onnx.graph import Graph

_LOG = logging.getLogger("modelyard.export")


def convert_function(
    frozen: Frozen, *, opset: int, renamed: Mapping[str, str] | None = None, optimized: bool = True
) -> ModelProto:
    """An ONNX model of a frozen function.

    The steps are those of ``tf2onnx.convert.from_function``, except that TensorFlow optimizes the graph without the
    large weights, and that no copy of the whole model is made before each of tf2onnx's own optimizers, to go on with
    where one fails: for 100 MB of weights those copies were 8 GB. Where one fails, all is converted again without them.
    """
    from tf2onnx import optimizer, tf_loader
    from tf2onnx.tfonnx import process_tf_graph

    concrete = frozen.function.get_concrete_function()
    forget_initializers(concrete)
    tensors, weights = concrete.inputs[: frozen.inputs], concrete.inputs[frozen.inputs :]
    names = {tensor.name: spec.name for tensor, spec in zip(tensors, frozen.function.input_signature, strict=False)}
    outputs = {tensor.name: (renamed or {}).get(name, name) for name, tensor in concrete.structured_outputs.items()}
    values = {tensor.op.name: value for tensor, value in zip(weights, frozen.weights, strict=True)}
    handlers, failures = _recorded(make_handlers({name: table.export() for name, table in frozen.tables.items()}))
    with tf.device("/cpu:0"):
        definition = tf_loader.from_function(concrete, [tensor.name for tensor in concrete.inputs], list(outputs))
        contents = _make_constant(definition, values)
        with tf.Graph().as_default() as tensorflow_graph:
            tf.import_graph_def(definition, name="")
            graph = process_tf_graph(
                tensorflow_graph,
                continue_on_error=True,
                opset=opset,
                custom_op_handlers=handlers,
                input_names=list(names),
                output_names=list(outputs),
                const_node_values=contents,
                tensors_to_rename=names | outputs,
            )
            del contents
            if failures:
                raise failures[0]
            if optimized:
                try:
                    with _written_once():
                        graph = optimizer.optimize_graph(graph, catch_errors=False, optimizers=_optimizers(graph))
                # They raise whatever comes up, and leave a graph that is half done.
                except Exception as exc:
                    _LOG.info("Not optimized, as tf2onnx fails on it: %s", exc)
                    return convert_function(frozen, opset=opset, renamed=renamed, optimized=False)
            _drop_no_axes(graph)
            model = graph.make_model(f"converted from {concrete.name}")
            name_operator_sets(model)
            return _with_shapes(model, {outputs[each.name]: each.shape for each in concrete.outputs})


def _recorded(
    handlers: Mapping[str, tuple[Handler, list[str]]],
) -> tuple[dict[str, tuple[Callable[..., None], list[str]]], list[Exception]]:
    """The handlers, and a list of what they raise from now on: tf2onnx goes on where one fails."""
    failures: list[Exception] = []

    def recorded(handler: Handler) -> Handler:
        def call(*arguments: Any) -> None:
            try:
                handler(*arguments)
            except Exception as exc:
                failures.append(exc)
                raise

        return call

    return {op: (recorded(handler), arguments) for op, (handler, arguments) in handlers.items()}, failures


def _with_shapes(model: ModelProto, shapes: Mapping[str, tf.TensorShape]) -> ModelProto:
    """Gives outputs whose rank tf2onnx or TensorFlow has forgotten, such as counts of words, the one that is known."""
    from onnx.helper import make_tensor_value_info
    from onnx.shape_inference import infer_shapes

    unknown = [each for each in model.graph.output if not each.type.tensor_type.HasField("shape")]
    if unknown:
        found = {each.name: each for each in infer_shapes(model).graph.output}
        for each in unknown:
            each.CopyFrom(found[each.name])
            if each.type.tensor_type.HasField("shape"):
                continue
            shape = shapes[each.name]
            if shape.rank is None:
                raise ValueError(
                    f"how many dimensions the output {each.name!r} has is not known; tf.ensure_shape tells it"
                )
            each.CopyFrom(make_tensor_value_info(each.name, each.type.tensor_type.elem_type, shape.as_list()))
    return model


def _optimizers(graph: Graph) -> dict[str, object]:
    """All of tf2onnx's optimizers, but that of Einsum where one has an ellipsis: it knows letters only."""
    from tf2onnx import optimizer

    equations = [node.get_attr_value("equation", b"") for node in graph.get_nodes() if node.type == "Einsum"]
    unknown = {"einsum_optimizer"} if any(b"." in each for each in equations) else set()
    return {name: each for name, each in optimizer._get_optimizers().items() if name not in unknown}


def _drop_no_axes(graph: Graph) -> None:
    """Leaves out what adds no axes, as tf2onnx writes it for Einsum: OpenVINO 2026.4 adds one there."""
    for node in list(graph.get_nodes()):
        if node.type != "Unsqueeze" or node.output[0] in graph.outputs:
            continue
        if node.inputs[1].is_const() and not node.inputs[1].get_tensor_value():
            graph.replace_all_inputs(node.output[0], node.input[0])
            graph.remove_node(node.name)


def _make_constant(definition: GraphDef, values: Mapping[str, npt.NDArray[Any]]) -> dict[str, bytes]:
    """Makes constants without content of the inputs that are weights, and gives tf2onnx's form of their contents."""
    contents: dict[str, bytes] = {}
    for node in definition.node:
        value = values.get(node.name)
        if value is None:
            continue
        contents[node.name] = value.tobytes()
        name, dtype = node.name, node.attr["dtype"].type
        node.Clear()
        node.name, node.op = name, "Const"
        node.attr["dtype"].type = node.attr["value"].tensor.dtype = dtype
        node.attr["value"].tensor.tensor_shape.CopyFrom(tf.TensorShape(value.shape).as_proto())
    return contents


@contextmanager
def _written_once() -> Iterator[None]:
    """Keeps tf2onnx from writing all nodes into their messages after each of its optimizers: nobody reads those.

    With loops and branches that took a fifth to a third of a conversion. And a
    protobuf message frees what it held only when it goes itself: with 115 MB of
    weights (ConvNeXtTiny) a conversion came to 6.0 GB above what it began with.
    """
    from tf2onnx.graph import Graph

    update = Graph.update_proto
    Graph.update_proto = lambda graph, external_tensor_storage=None: None
    try:
        yield
    finally:
        Graph.update_proto = update
