"""A pad of zeros before a max-pooling, written so that no runtime folds one into the other.

A pooling's own padding is nothing, less than any number; zeros are more than negative numbers. onnxruntime (its
optimizer "Pad_Fusion", in 1.31 at least) makes the first of the second all the same, and is wrong wherever a window at
the border holds negative values only: the first pooling of ResNet50V2, with an error of a hundredth of what its outputs
spread over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


def guard_pads(model: ModelProto) -> int:
    """Separates each such pair by a slice: one more row is padded, and cut off again."""
    import numpy as np
    from onnx import helper, numpy_helper

    graph = model.graph
    constants = {each.name: each for each in graph.initializer}
    pads = {node.output[0]: node for node in graph.node if node.op_type == "Pad" and node.input[1] in constants}
    pools = [node for node in graph.node if node.op_type == "MaxPool" and node.input[0] in pads]
    for pool in pools:
        pad = pads[pool.input[0]]
        amounts = numpy_helper.to_array(constants[pad.input[1]]).copy()
        axes = [name for name in pad.input[3:4] if name]
        last = numpy_helper.to_array(constants[axes[0]])[-1] if axes else len(amounts) // 2 - 1
        name = f"{pool.name or pool.output[0]}_guard"
        amounts[-1] += 1
        arrays = {"pads": amounts, "start": [0], "end": [-1], "axis": [last]}
        for key, value in arrays.items():
            graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.int64), f"{name}_{key}"))
        longer = helper.make_node(
            "Pad", [pad.input[0], f"{name}_pads", *pad.input[2:]], [f"{name}_longer"], name=f"{name}_pad"
        )
        longer.attribute.extend(pad.attribute)
        cut = helper.make_node(
            "Slice",
            [f"{name}_longer", f"{name}_start", f"{name}_end", f"{name}_axis"],
            [f"{name}_cut"],
            name=f"{name}_slice",
        )
        pool.input[0] = f"{name}_cut"
        position = list(graph.node).index(pool)
        graph.node.insert(position, cut)
        graph.node.insert(position, longer)
    _drop_unused(graph, list(pads.values()))
    return len(pools)


def _drop_unused(graph: GraphProto, pads: list[NodeProto]) -> None:
    used = {name for node in graph.node for name in node.input} | {each.name for each in graph.output}
    for pad in pads:
        if pad.output[0] not in used:
            graph.node.remove(pad)
