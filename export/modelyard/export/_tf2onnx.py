"""tf2onnx, held to two rules of ours: what fails is an error, and what it lacks or breaks is made here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from modelyard.export._freeze import Frozen


def convert_function(frozen: Frozen, *, opset: int) -> Any:
    """An ONNX model of a frozen function.

    The steps are those of ``tf2onnx.convert.from_function``, except that
    TensorFlow optimizes the graph without the large weights, and that no copy of
    the whole model is made before each of tf2onnx's own optimizers, to go on
    with where one fails: for 100 MB of weights those copies were 8 GB. A failure
    is an error then.

    Args:
        frozen: From :func:`freeze`.
        opset: ONNX operator set.
    """
    from tf2onnx import optimizer, tf_loader
    from tf2onnx.tfonnx import process_tf_graph

    concrete = frozen.function.get_concrete_function()
    tensors, weights = concrete.inputs[: frozen.inputs], concrete.inputs[frozen.inputs :]
    names = {tensor.name: spec.name for tensor, spec in zip(tensors, frozen.function.input_signature, strict=False)}
    outputs = {tensor.name: name for name, tensor in concrete.structured_outputs.items()}
    values = {tensor.op.name: value for tensor, value in zip(weights, frozen.weights, strict=True)}
    with tf.device("/cpu:0"):
        definition = tf_loader.from_function(concrete, [tensor.name for tensor in concrete.inputs], list(outputs))
        contents = _make_constant(definition, values)
        with tf.Graph().as_default() as tensorflow_graph, _new_messages():
            tf.import_graph_def(definition, name="")
            graph = process_tf_graph(
                tensorflow_graph,
                continue_on_error=True,
                opset=opset,
                custom_op_handlers={"AddV2": (_add, []), "Erfc": (_erfc, [])},
                input_names=list(names),
                output_names=list(outputs),
                const_node_values=contents,
                tensors_to_rename=names | outputs,
            )
            del contents
            graph = optimizer.optimize_graph(graph, catch_errors=False)
            return graph.make_model(f"converted from {concrete.name}")


def _make_constant(definition: Any, values: Mapping[str, npt.NDArray[Any]]) -> dict[str, bytes]:
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


def _add(context: Any, node: Any, name: str, _: list[str]) -> None:
    """A sum, with a scalar constant as one of one value.

    tf2onnx 1.17 takes a constant that is added to a convolution for its bias,
    and stops where it has no size at all: MobileNetV3 adds 3 in its activation.
    """
    inputs, output = list(node.input), node.output[0]
    dtype, shape = context.get_dtype(output), context.get_shape(output)
    if shape:
        for index, operand in enumerate(node.inputs):
            if operand.is_const() and operand.get_tensor_value(as_list=False).ndim == 0:
                value = operand.get_tensor_value(as_list=False).reshape(1)
                inputs[index] = context.make_const(f"{name}/{index}", value).output[0]
    context.remove_node(name)
    context.make_node("Add", inputs, outputs=[output], name=name, dtypes=[dtype], shapes=[shape])


def _erfc(context: Any, node: Any, name: str, _: list[str]) -> None:
    """One less the error function: Keras 3.15 writes GELU by the complement, for which ONNX has no operator."""
    import numpy as np
    from tf2onnx import utils

    output, dtype, shape = node.output[0], context.get_dtype(node.output[0]), context.get_shape(node.output[0])
    source = node.input[0]
    context.remove_node(name)
    one = context.make_const(utils.make_name(name), np.array(1, utils.map_onnx_to_numpy_type(dtype)))
    erf = context.make_node("Erf", [source], dtypes=[dtype], shapes=[shape])
    context.make_node(
        "Sub", [one.output[0], erf.output[0]], outputs=[output], name=name, dtypes=[dtype], shapes=[shape]
    )


@contextmanager
def _new_messages() -> Iterator[None]:
    """Lets tf2onnx's nodes write themselves into new messages.

    Each of its optimizers ends with all nodes emptying and filling theirs, and a
    protobuf message frees what it held only when it goes itself: with 115 MB of
    weights (ConvNeXtTiny) a conversion came to 6.0 GB above what it began with.
    """
    from onnx import NodeProto
    from tf2onnx.graph import Node

    update = Node.update_proto

    def update_new(node: Any, external_tensor_storage: Any = None) -> None:
        old = node.op
        node._op = NodeProto(name=old.name, op_type=old.op_type, domain=old.domain, doc_string=old.doc_string)
        update(node, external_tensor_storage)

    Node.update_proto = update_new
    try:
        yield
    finally:
        Node.update_proto = update
