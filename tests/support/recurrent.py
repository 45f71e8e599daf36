"""ONNX files with an LSTM or a GRU, on which onnxruntime ends the process where they are given nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def recurrent_model(kind: str, path: Path) -> None:
    """Writes a model from steps of 3 numbers to the last state of 5, and to the states of all steps.

    Args:
        kind: ``LSTM`` or ``GRU``.
        path: The file; its folder is made.
    """
    gates = {"LSTM": 4, "GRU": 3}[kind]
    rng = np.random.default_rng(0)
    weights = {"w": (1, gates * 5, 3), "r": (1, gates * 5, 5)}
    constants = [
        numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name) for name, size in weights.items()
    ]
    constants.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    constants.append(numpy_helper.from_array(np.array([0], np.int64), "first"))
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node(kind, ["steps", "w", "r"], ["all", "end"], hidden_size=5),
        helper.make_node("Squeeze", ["end", "first"], ["state"]),
        helper.make_node("Squeeze", ["all", "axis"], ["by_step"]),
        helper.make_node("Transpose", ["by_step"], ["states"], perm=[1, 0, 2]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, kind, [value("x", TensorProto.FLOAT, ["n", "t", 3])],
        [value("state", TensorProto.FLOAT, ["n", 5]), value("states", TensorProto.FLOAT, ["n", "t", 5])], constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
