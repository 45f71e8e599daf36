"""OpenVINO's entry point, which a process must never give back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

#: Operations that the CPU plugin computes in float32, of integers too.
_IN_FLOATS = frozenset("Divide FloorMod Mod Power ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum TopK".split())
_LOCK = threading.Lock()
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


def prepare_openvino(model: Any) -> None:
    """Changes a graph, and those inside of it, where the CPU plugin (2026.4) differs from ONNX and TensorFlow.

    Equal values stay in their order where the largest are chosen. An index out of range is an error also of the
    operations that read or write other memory with it.
    """
    with _LOCK:
        _manager().run_passes(model)


@cache
def _manager() -> Any:
    """Made once: OpenVINO keeps what was made for one."""
    from openvino import opset13 as ops
    from openvino.passes import Manager

    manager = Manager()
    for pattern, change in _CHANGES:
        manager.register_pass(_rule(pattern, partial(change, ops)))
    return manager


def _rule(pattern: list[str], change: Callable[[Any], None]) -> Any:
    from openvino.passes import Matcher, MatcherPass, WrapType

    class Rule(MatcherPass):  # type: ignore[misc]  # its bindings have no types
        def __init__(self) -> None:
            super().__init__()
            self.register_matcher(Matcher(WrapType(pattern), pattern[0]), self._change)

        def _change(self, matcher: Any) -> bool:
            change(matcher.get_match_root())
            return True

    return Rule()


def _keep_order(ops: Any, node: Any) -> None:
    node.set_attribute("stable", True)


def _check_places(ops: Any, node: Any) -> None:
    """Of GatherND: an index has a number for each of some axes, behind those of the batch."""
    axes = ops.gather(ops.shape_of(node.input_value(1)), _constant(ops, [-1]), _constant(ops, 0))
    begin = _constant(ops, [node.get_attributes()["batch_dims"]])
    sizes = ops.slice(ops.shape_of(node.input_value(0)), begin, ops.add(begin, axes), _constant(ops, [1]))
    _check_index(ops, node, ops.negative(sizes), sizes)


def _check_elements(ops: Any, node: Any) -> None:
    """Of ScatterElementsUpdate: an index is along one axis."""
    axis = ops.convert(node.input_value(3), "i64")
    size = ops.gather(ops.shape_of(node.input_value(0)), axis, _constant(ops, 0))
    _check_index(ops, node, ops.negative(size), size)


def _check_segments(ops: Any, node: Any) -> None:
    """Of SegmentMax, which leaves out what is too large by itself."""
    _check_index(ops, node, _constant(ops, 0), _constant(ops, 1 << 62))


def _check_index(ops: Any, node: Any, least: Any, end: Any) -> None:
    """Has the second input end the call where a number of it is outside of ``least`` to ``end`` - 1."""
    index = node.input_value(1)
    wide = ops.convert(index, "i64")
    outside = ops.logical_or(ops.less(wide, least), ops.greater_equal(wide, end))
    every = ops.reduce_logical_or(ops.reshape(outside, _constant(ops, [-1]), False), _constant(ops, 0), True)
    # Of one zero only the first is to be had: this operation refuses any other.
    zero = ops.gather_elements(_constant(ops, [0]), ops.convert(every, "i64"), 0)
    node.input(1).replace_source_output(ops.add(index, ops.convert_like(zero, index)).output(0))


def _constant(ops: Any, value: int | list[int]) -> Any:
    return ops.constant(np.array(value, np.int64))


_CHANGES: tuple[tuple[list[str], Callable[[Any, Any], None]], ...] = (
    (["opset11.TopK"], _keep_order),
    (["opset5.GatherND", "opset8.GatherND"], _check_places),
    (["opset3.ScatterElementsUpdate", "opset12.ScatterElementsUpdate"], _check_elements),
    (["opset16.SegmentMax"], _check_segments),
)


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


def copy_openvino(tensor: Any) -> npt.NDArray[Any]:
    """A copy of an output tensor, which the next inference overwrites; strings are an array of bytes objects."""
    if tensor.element_type.get_type_name() == "string":
        if not tensor.get_size():
            # Asked for the bytes of no strings, OpenVINO divides by zero (2026.4), which ends the process.
            return np.zeros(tuple(tensor.get_shape()), dtype=object)
        return np.asarray(tensor.bytes_data).astype(object)
    return np.array(tensor.data)
