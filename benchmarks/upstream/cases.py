"""Minimal cases of faults in converters; each prints what TensorFlow says and what the converted graph says.

Run with ``python -m benchmarks.upstream.cases [NAME ...]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

FLOATS = np.array([[-1.0, 2.0, 3.0], [4.0, -5.0, 6.0]], np.float32)
LENGTHS = np.array([1, 3], np.int32)

#: By name: "onnx", "onnxslim", "einsum" (tf2onnx whose optimizers may fail), "tflite" or "flex" (with TensorFlow's own
#: operators); what is converted, and its inputs.
CASES: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
    "one_hot_negative": ("onnx", lambda i: tf.one_hot(i, 3), (np.array([0, -1], np.int32),)),
    "scatter_duplicates": ("onnx", lambda x: tf.scatter_nd(tf.zeros([2, 1], tf.int32), x, [2, 3]), (FLOATS,)),
    "diag_of_one": ("onnx", tf.linalg.diag, (FLOATS[:1],)),
    "soft_suppression": (
        "onnx",
        lambda b: tf.image.non_max_suppression_with_scores(b, [0.9, 0.8], 2, soft_nms_sigma=0.5)[1],
        (np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]], np.float32),),
    ),
    "ragged_rows": (
        "onnxslim",
        lambda x, n: tf.reduce_sum(tf.RaggedTensor.from_tensor(x, lengths=n), 1),
        (FLOATS, LENGTHS),
    ),
    "infinity": ("tflite", lambda x: tf.where(x > 0, x, float("-inf")), (FLOATS,)),
    "suppression_padded": (
        "tflite",
        lambda b: tf.image.non_max_suppression(b, tf.constant([0.9, 0.8]), 2),
        (np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]], np.float32),),
    ),
    "narrow_quotient": ("onnx", lambda x: x // tf.constant(3, tf.int8), (np.array([-128, 7], np.int8),)),
    "quotient": ("onnx", lambda x: x // 3, (np.array([-7, 7], np.int32),)),
    "remainder": ("onnx", lambda x: x % 3, (np.array([-7, 7], np.int32),)),
    "large_softplus": ("tflite", tf.nn.softplus, (FLOATS * 130,)),
    "not_chosen": ("onnx", lambda x: tf.where(x > 0, tf.math.log(x), 0.0), (FLOATS,)),
    "narrow_shift": (
        "onnx",
        lambda x: tf.bitwise.right_shift(x, tf.constant(1, tf.int8)),
        (np.array([-100], np.int8),),
    ),
    "negative_segment": ("onnx", lambda x: tf.math.unsorted_segment_max(x, [0, -1], 2), (FLOATS,)),
    "computed_order": ("onnx", lambda x: tf.transpose(x, tf.where(tf.shape(x)[0] > 9, [0, 1], [1, 0])), (FLOATS,)),
    "ellipsis": ("einsum", lambda x: tf.einsum("...i,ij->...j", x, tf.ones([3, 2])), (FLOATS,)),
    "squeezed": (
        "tflite",
        # The last axis is 1, and the converter cannot know.
        lambda x: tf.squeeze(tf.transpose(tf.reshape(x, [-1, 3, tf.size(x) // tf.size(x)]), [1, 0, 2]), -1),
        (FLOATS,),
    ),
    "no_elements": ("tflite", lambda x: tf.where(x > 9), (FLOATS,)),
    "select_operators": ("flex", lambda x: tf.linalg.inv(x), (np.eye(3, dtype=np.float32)[None],)),
    "scan": ("onnx", lambda x: tf.scan(lambda a, b: a + b, x), (FLOATS,)),
    "short_resize": ("onnx", lambda x: tf.image.resize(x, [9, 9]), (np.ones((1, 7, 7, 1), np.float32),)),
    "greedy_blank": (
        "onnx",
        lambda x: tf.nn.ctc_greedy_decoder(x, tf.constant([2]), blank_index=0)[0][0].values,
        (FLOATS[:, np.newaxis],),
    ),
    "scan_backwards": (
        "onnx",
        lambda x: tf.scan(lambda a, b: a + b, x, tf.zeros([3]), reverse=True),
        (FLOATS,),
    ),
    "einsum_dot": ("tflite", lambda x: tf.einsum("bij,bij->b", x, x), (np.ones((2, 4, 3), np.float32),)),
}


def convert(kind: str, function: Any, inputs: tuple[Any, ...]) -> Any:
    """What the converted graph answers."""
    if kind in ("tflite", "flex"):
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
        if kind == "flex":
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model_content=converter.convert())
        details = sorted(interpreter.get_input_details(), key=lambda detail: str(detail["name"]))
        for detail, value in zip(details, inputs, strict=True):
            interpreter.resize_tensor_input(detail["index"], value.shape)
        interpreter.allocate_tensors()
        for detail, value in zip(details, inputs, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    import onnxruntime
    import onnxslim
    import tf2onnx
    from tf2onnx import optimizer

    optimize = optimizer.optimize_graph
    # By default it goes on without an optimizer that fails, and says so in the log.
    strict = partial(optimize, catch_errors=False) if kind == "einsum" else optimize
    with mock.patch.object(optimizer, "optimize_graph", lambda graph, _, **more: strict(graph, **more)):
        model, _ = tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=18)
    model = onnxslim.slim(model) if kind == "onnxslim" else model
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def main() -> None:
    """Runs the cases named, or all."""
    for name in sys.argv[1:] or CASES:
        kind, call, inputs = CASES[name]
        specs = [tf.TensorSpec([None, *value.shape[1:]], value.dtype, name=f"x{i}") for i, value in enumerate(inputs)]
        function = tf.function(call, input_signature=specs, autograph=False)
        expected = function(*inputs).numpy()
        try:
            found = convert(kind, function, inputs)
        # To show what a converter raises is the point.
        except Exception as exc:
            _say(f"{name} ({kind}): fails: {str(exc).splitlines()[0][:150]}")
            continue
        wrong = found.shape != expected.shape or not np.allclose(found, expected, equal_nan=True)
        _say(f"{name} ({kind}): {'WRONG' if wrong else 'right'}")
        if wrong:
            _say(f"  expected {expected.shape} {expected.ravel()[:6]}, found {found.shape} {found.ravel()[:6]}")


if __name__ == "__main__":
    main()
