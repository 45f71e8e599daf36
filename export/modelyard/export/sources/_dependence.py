"""Which outputs of a function are computed from its inputs, and which are constants of the model."""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

# What these give is known from the shape of what they take.
_SHAPES = frozenset({"BroadcastGradientArgs", "OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})


def computed_outputs(function: Any) -> frozenset[str]:
    """Names of the outputs that depend on values of the inputs, not on their shapes alone.

    Args:
        function: A ``tf.function`` with an input signature, that returns a mapping.

    Returns:
        Every output whose origin cannot be told is among them.
    """
    concrete = function.get_concrete_function()
    names = sorted(concrete.structured_outputs)
    try:
        constant = convert_variables_to_constants_v2(concrete, lower_control_flow=False, aggressive_inlining=True)
    # TensorFlow raises whatever comes up where a function cannot be inlined: then nothing is known of any output.
    except Exception:
        return frozenset(names)
    nodes = {node.name: node for node in constant.graph.as_graph_def().node}
    inputs = {tensor.op.name for tensor in constant.inputs}
    return frozenset(
        name for name, tensor in zip(names, constant.outputs, strict=True) if _reaches(tensor.op.name, inputs, nodes)
    )


def _reaches(start: str, targets: set[str], nodes: dict[str, Any]) -> bool:
    seen, waiting = set(), [start]
    while waiting:
        name = waiting.pop()
        if name in targets:
            return True
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        if nodes[name].op not in _SHAPES:
            waiting += [each.partition(":")[0] for each in nodes[name].input if not each.startswith("^")]
    return False
