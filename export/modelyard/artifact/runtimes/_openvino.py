"""What exporters and servers share about OpenVINO, and what its graphs need of requests."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import TensorSpec

#: By OpenVINO's names.
OPENVINO_DTYPES = {"boolean": "bool", "f16": "float16", "f32": "float32", "f64": "float64", "string": "string"}
OPENVINO_DTYPES |= {
    f"{short}{bits}": f"{long}{bits}" for short, long in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)
}
#: Operations that the CPU plugin computes in float32, of integers too.
_IN_FLOATS = frozenset("Divide FloorMod Mod Power ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum TopK".split())
#: Operations that give integers as they are.
_PASSING = frozenset(("Convert", "Reshape", "Squeeze", "Unsqueeze"))
_INTEGERS = frozenset("i8 i16 i32 i64 u8 u16 u32 u64".split())


@cache
def openvino_core() -> Any:
    """The one ``openvino.Core`` of this process, kept to its end.

    Its CPU plugin gives the thread that loads it a stack for signal handlers (``sigaltstack(2)``), and unmaps that when
    the plugin goes, on whatever thread that happens: the next signal, such as Ctrl-C, then ends the process without a
    word (seen with OpenVINO 2026.4).
    """
    import openvino

    return openvino.Core()


def openvino_settings(*, bfloat16: bool, threads: int, requests: int = 1, device: str = "CPU") -> dict[Any, Any]:
    """What graphs are compiled with, by the exporter and by the server.

    Floats are computed in bfloat16 if so asked, else in float32 also where the CPU could do bfloat16. So many requests
    run at the same time, on the CPU each with so many threads.
    """
    import openvino

    hint = openvino.properties.hint
    settings = {
        hint.inference_precision(): openvino.Type.bf16 if bfloat16 else openvino.Type.f32,
        # Accuracy also keeps matrix products with compressed weights from quantizing their inputs.
        hint.execution_mode(): hint.ExecutionMode.PERFORMANCE if bfloat16 else hint.ExecutionMode.ACCURACY,
        hint.performance_mode(): hint.PerformanceMode.LATENCY,
        openvino.properties.num_streams(): requests,
    }
    if device == "CPU":
        # Threads tied to cores would all be tied to the same ones, model after model.
        settings[hint.enable_cpu_pinning()] = False
        settings[openvino.properties.inference_num_threads()] = threads * requests
    return settings


def integer_limit(model: Any) -> int:
    """The largest number that integers of requests may have for the CPU plugin (2026.4) to compute with them exactly.

    It computes integers in 32 bits, and some operations in float32, which holds those up to 2**24.
    """
    given: set[str] = set()
    # In the order of computing.
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), [each.get_node().get_friendly_name() for each in node.input_values()]
        if not any(port.get_element_type().get_type_name() in _INTEGERS for port in node.outputs()):
            continue
        if kind == "Parameter" or (kind != "ShapeOf" and given.intersection(sources)):
            given.add(node.get_friendly_name())
            if kind in _IN_FLOATS and sources[0] in given:
                return 1 << 24
    return (1 << 31) - 1


def lookup_sizes(model: Any) -> dict[int, int]:
    """By number of an input that is looked up in a table, how many rows that has: its integers are less than that."""
    numbers = {node.get_friendly_name(): number for number, node in enumerate(model.get_parameters())}
    sizes: dict[int, int] = {}
    for node in model.get_ops():
        if node.get_type_name() != "Gather" or node.input_value(2).get_node().get_type_name() != "Constant":
            continue
        source = node.input_value(1).get_node()
        while source.get_type_name() in _PASSING:
            source = source.input_value(0).get_node()
        rows = node.get_input_partial_shape(0)
        number = numbers.get(source.get_friendly_name())
        axis = int(node.input_value(2).get_node().get_data().item())
        if number is None or rows.rank.is_dynamic or rows[axis].is_dynamic:
            continue
        if source.get_element_type().get_type_name() in _INTEGERS:
            size = rows[axis].get_length()
            sizes[number] = min(size, sizes.get(number, size))
    return sizes


def openvino_spec(name: str, port: Any) -> TensorSpec:
    """What an input or output of a model holds."""
    kind, shape = port.get_element_type().get_type_name(), port.get_partial_shape()
    sizes = None if shape.rank.is_dynamic else tuple(-1 if size.is_dynamic else size.get_length() for size in shape)
    return TensorSpec(name=name, dtype=OPENVINO_DTYPES.get(kind, kind), shape=sizes)


def copy_openvino(tensor: Any) -> npt.NDArray[Any]:
    """A copy of an output tensor, which the next inference overwrites; strings are an array of bytes objects."""
    if tensor.element_type.get_type_name() == "string":
        if not tensor.get_size():
            # Asked for the bytes of no strings, OpenVINO divides by zero (2026.4), which ends the process.
            return np.zeros(tuple(tensor.get_shape()), dtype=object)
        return np.asarray(tensor.bytes_data).astype(object)
    return np.array(tensor.data)
