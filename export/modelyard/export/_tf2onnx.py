"""tf2onnx, held to two rules of ours: what fails is an error, and what it lacks or breaks is made here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Set, to whatever it may be, it stops tf2onnx 1.17 from copying the whole model before each of its optimizers to be
#: able to go on where one fails: for 100 MB of weights those copies were 8 GB. A failure is an error then.
_CATCH_ERRORS = "TF2ONNX_CATCH_ERRORS"


def convert_function(function: Any, *, opset: int) -> Any:
    """An ONNX model of a frozen ``tf.function``.

    Args:
        function: It has an input signature, and returns a mapping.
        opset: ONNX operator set.
    """
    import tf2onnx

    with _environment(_CATCH_ERRORS, "FALSE"), _new_messages():
        model, _ = tf2onnx.convert.from_function(
            function,
            input_signature=function.input_signature,
            opset=opset,
            custom_op_handlers={"AddV2": (_add, []), "Erfc": (_erfc, [])},
        )
    return model


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


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
