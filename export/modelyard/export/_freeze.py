"""Frozen graphs: what both foreign converters start from.

A frozen function has no variable that a converter could lose. Known gaps of the
converters are closed here too, on the graph that both get.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    _run_inline_graph_optimization,
    convert_variables_to_constants_v2,
)

_RESIZES = frozenset({"ResizeArea", "ResizeBicubic", "ResizeBilinear"})
#: What makes of a function a call into XLA, which nothing inlines.
_COMPILED = ("_XlaMustCompile", "_noinline")


def freeze(function: Any) -> Any:
    """A function without variables, with the same inputs and outputs by name.

    Args:
        function: A ``tf.function`` with an input signature, that returns a mapping.

    Returns:
        A ``tf.function`` with the same input signature.
    """
    concrete = function.get_concrete_function()
    constant = _rewrite(convert_variables_to_constants_v2(concrete, lower_control_flow=False))
    # A frozen function returns the outputs of the original flattened, which sorts a mapping by key.
    names = sorted(concrete.structured_outputs)

    def call(*tensors: Any) -> dict[str, Any]:
        values = constant(*tensors)
        values = list(values) if isinstance(values, list | tuple) else [values]
        for name, value in zip(names, values, strict=True):
            # A graph that was rewritten no longer knows what its functions return.
            value.set_shape(concrete.structured_outputs[name].shape)
        return {name: tf.identity(value, name=name) for name, value in zip(names, values, strict=True)}

    return tf.function(call, input_signature=function.input_signature, autograph=False)


def _rewrite(constant: Any) -> Any:
    """Casts integer images to float in front of each interpolating resize, and compiles nothing by XLA.

    TensorFlow's kernels take uint8 and give float32, where those of ONNX and
    TFLite give what they take. tf2onnx 1.17 and the TFLite converter of
    TensorFlow 2.21 translate one to the other without a cast; the first makes
    an invalid graph of it, the second stops.

    Keras compiles every convolution with groups by XLA (those of ConvNeXt, for
    one). Such a call is not inlined, and tf2onnx has nothing to make of it.
    """
    graph = constant.graph.as_graph_def()
    resized = _cast_images(graph.node, suffix="")
    for body in graph.library.function:
        # Inside a function an output is named by its argument, too.
        resized |= _cast_images(body.node_def, suffix=":y:0")
    compiled = any([_forget_compilation(owner) for owner in (*graph.library.function, *graph.node)])
    if resized or compiled:
        constant = _imported(graph, constant, suffix="rewritten")
    if compiled:
        inlined = _run_inline_graph_optimization(constant, lower_control_flow=False, aggressive_inlining=False)
        constant = _imported(inlined, constant, suffix="inlined")
    return constant


def _imported(graph: Any, original: Any, *, suffix: str) -> Any:
    """A graph as a function, with inputs and outputs named as before."""
    _rename_functions(graph, suffix)
    imported = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])
    return imported.prune([tensor.name for tensor in original.inputs], [tensor.name for tensor in original.outputs])


def _rename_functions(graph: Any, suffix: str) -> None:
    """Gives every function of a graph another name: TensorFlow refuses one name for two definitions."""
    names = {body.signature.name: f"{body.signature.name}_{suffix}" for body in graph.library.function}
    for body in graph.library.function:
        body.signature.name = names[body.signature.name]
    for nodes in (graph.node, *(body.node_def for body in graph.library.function)):
        for node in nodes:
            for attribute in node.attr.values():
                for called in (attribute.func, *attribute.list.func):
                    if called.name in names:
                        called.name = names[called.name]


def _forget_compilation(owner: Any) -> bool:
    """Removes the attributes from a node, or from a function and its nodes."""
    owners = [owner, *getattr(owner, "node_def", ())]
    compiled = [each for each in owners if _COMPILED[0] in each.attr]
    for each in compiled:
        for attribute in _COMPILED:
            each.attr.pop(attribute, None)
    return bool(compiled)


def _cast_images(nodes: Any, *, suffix: str) -> bool:
    resizes = [node for node in nodes if node.op in _RESIZES and tf.as_dtype(node.attr["T"].type).is_integer]
    for node in resizes:
        cast = nodes.add(op="Cast", name=f"{node.name}/as_float", input=[node.input[0]])
        cast.attr["SrcT"].type = node.attr["T"].type
        cast.attr["DstT"].type = node.attr["T"].type = tf.float32.as_datatype_enum
        node.input[0] = f"{cast.name}{suffix}"
    return bool(resizes)
