"""ONNX graphs and SavedModels in OpenVINO."""

from __future__ import annotations

import queue
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.artifact.runtimes import copy_openvino, integer_limit, openvino_core, openvino_settings
from modelyard.errors import InternalError, InvalidInputError, LoadError, PredictionError
from modelyard.serving.backends._base import Arrays, failure
from modelyard.serving.backends._devices import CPU, openvino_device
from modelyard.serving.backends._openvino_reader import OpenVinoGraph, read_onnx, read_saved_model, short_reason
from modelyard.serving.backends._operators import RECURRENT, check_values, graphs_with

if TYPE_CHECKING:
    import openvino

#: What may hold numbers that the CPU plugin has no room for.
_NARROWED = (np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint32), np.dtype(np.uint64))
_WHOLE = np.iinfo(np.int32).max
_BAD_INPUT = re.compile(r"shape|\bind(ex|ices)\b|segment_ids")


class OpenVinoBackend:
    """OpenVINO, on the CPU if nothing else is said, in float32 whatever the CPU could do faster, unless told otherwise.

    Its source is ONNX files by graph name, or the directory of a SavedModel, which it reads without TensorFlow.
    Computation is in float32 (recent CPUs would else be given bfloat16) and int32: integers beyond what the graph's
    operations compute exactly are refused at the inputs.
    """

    name = "openvino"
    checks_shapes = True
    computes_in_caller = False
    few_shapes: frozenset[str] = frozenset()

    def __init__(
        self,
        source: Mapping[str, Path] | Path,
        *,
        threads: int,
        requests: int,
        tags: Sequence[str] = (),
        bfloat16: bool = False,
        device: str = CPU,
    ) -> None:
        if isinstance(source, Path):
            read = read_saved_model(source, tags)
        else:
            read = {name: read_onnx(name, path) for name, path in source.items()}
        device = openvino_device(device)
        self.on_device = device != "CPU"
        settings = openvino_settings(bfloat16=bfloat16, threads=threads, requests=requests, device=device)
        self._graphs = {name: _compile(name, graph, settings, requests, device) for name, graph in read.items()}
        self._recurrent = frozenset() if isinstance(source, Path) else graphs_with(source, RECURRENT)
        #: The graphs by name; of a SavedModel, the signatures that OpenVINO can serve.
        self.signatures: Mapping[str, Signature] = {name: graph.signature for name, graph in read.items()}

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Computes one batch; strings that end in zero bytes come without them."""
        compiled = self._graphs.get(graph)
        if compiled is None:
            raise InternalError(f"Graph {graph!r} was called after close. This is a bug.")
        if inputs.keys() != compiled.inputs.keys():
            raise InvalidInputError(
                f"Graph {graph!r} received {', '.join(sorted(inputs)) or 'nothing'}; "
                f"expected {', '.join(sorted(compiled.inputs))}."
            )
        if graph in self._recurrent:
            check_values(graph, inputs)
        for name, array in inputs.items():
            _check_range(name, array, compiled.limit)
        # Tensors share these arrays but do not keep them alive: they must outlive the inference.
        arrays = {name: np.require(array, requirements=["A", "C", "W"]) for name, array in inputs.items()}
        with compiled.request() as request:
            try:
                for name, array in arrays.items():
                    request.set_input_tensor(compiled.inputs[name], compiled.tensor(array, shared_memory=True))
            except (RuntimeError, TypeError, ValueError) as exc:
                raise InvalidInputError(
                    f"OpenVINO refuses the inputs of graph {graph!r}: {short_reason(exc)}."
                ) from exc
            try:
                # Never infer(): with one stream of one thread it drops errors of the graph (2026.4) and leaves the
                # outputs of the previous call in place, which may be another client's.
                request.start_async()
                request.wait()
            except RuntimeError as exc:
                # Shapes that fit the inputs but not each other, and indices, are found out on the way.
                kind = InvalidInputError if _BAD_INPUT.search(str(exc)) else PredictionError
                raise failure(kind, f"OpenVINO failed on graph {graph!r}: {short_reason(exc)}.") from exc
            return {name: copy_openvino(request.get_output_tensor(compiled.outputs[name])) for name in outputs}

    def interrupt(self, threads: Collection[int] | None = None) -> bool:
        """The runtime cannot."""
        return False

    def close(self) -> None:
        self._graphs.clear()


@dataclass(frozen=True, kw_only=True)
class _Compiled:
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    requests: queue.SimpleQueue[openvino.InferRequest]
    tensor: type[openvino.Tensor]
    #: The largest integer of a request.
    limit: int

    @contextmanager
    def request(self) -> Iterator[openvino.InferRequest]:
        request = self.requests.get()
        try:
            yield request
        finally:
            self.requests.put(request)


def _compile(
    name: str, graph: OpenVinoGraph, settings: Mapping[object, object], requests: int, device: str
) -> _Compiled:
    import openvino

    # Each request serves one call at a time.
    pool: queue.SimpleQueue[openvino.InferRequest] = queue.SimpleQueue()
    try:
        compiled = openvino_core().compile_model(graph.model, device, settings)
        for _ in range(requests):
            pool.put(compiled.create_infer_request())
    except RuntimeError as exc:
        raise LoadError(f"OpenVINO cannot compile graph {name!r} for {device}: {short_reason(exc)}.") from exc
    return _Compiled(
        inputs=graph.inputs, outputs=graph.outputs, requests=pool, tensor=openvino.Tensor,
        limit=integer_limit(graph.model),
    )  # fmt: skip


def _check_range(name: str, array: npt.NDArray[Any], limit: int) -> None:
    whole = limit == _WHOLE
    if array.dtype not in _NARROWED or not array.size or (whole and array.dtype == np.int32):
        return
    lowest = -limit - whole
    if not lowest <= array.min() <= array.max() <= limit:
        raise InvalidInputError(
            f"Input {name!r} has values from {array.min()} to {array.max()}; the openvino backend computes "
            f"{array.dtype} in 32 bits, {'' if whole else 'and this graph partly in float32, '}"
            f"from {lowest} to {limit}."
        )
