"""ONNX graphs and SavedModels in OpenVINO."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.artifact.runtimes import (
    copy_openvino,
    integer_limit,
    lookup_sizes,
    openvino_core,
    openvino_settings,
)
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
T = TypeVar("T")
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
        import openvino

        if isinstance(source, Path):
            read = read_saved_model(source, tags)
        else:
            read = {name: read_onnx(name, path) for name, path in source.items()}
        self._tensor = openvino.Tensor
        device = openvino_device(device)
        self.on_device = device != "CPU"
        settings = openvino_settings(bfloat16=bfloat16, threads=threads, requests=requests, device=device)
        self._graphs = {name: _Compiled(name, graph, settings, requests, device) for name, graph in read.items()}
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
            _check_rows(name, array, compiled.rows.get(name))
        # Tensors share these arrays but do not keep them alive: they must outlive the inference.
        arrays = {name: np.require(array, requirements=["A", "C", "W"]) for name, array in inputs.items()}
        return compiled.call(partial(self._compute, compiled, graph, arrays, outputs))

    def _compute(
        self,
        compiled: _Compiled,
        graph: str,
        arrays: Arrays,
        outputs: Sequence[str],
        request: openvino.InferRequest,
    ) -> dict[str, npt.NDArray[Any]]:
        try:
            for name, array in arrays.items():
                request.set_input_tensor(compiled.inputs[name], self._tensor(array, shared_memory=True))
        except (RuntimeError, TypeError, ValueError) as exc:
            raise InvalidInputError(f"OpenVINO refuses the inputs of graph {graph!r}: {short_reason(exc)}.") from exc
        try:
            # Never infer(): with one stream of one thread it drops errors of the graph (2026.4) and leaves the outputs
            # of the previous call in place, which may be another client's.
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


class _Compiled:
    """A graph, and requests to it: each serves one call at a time."""

    def __init__(
        self, name: str, graph: OpenVinoGraph, settings: Mapping[object, object], requests: int, device: str
    ) -> None:
        self.inputs, self.outputs = graph.inputs, graph.outputs
        #: The largest integer of a request.
        self.limit = integer_limit(graph.model)
        rows = lookup_sizes(graph.model)
        #: By input that is looked up in a table, how many rows that has.
        self.rows = {name: rows[number] for name, number in graph.inputs.items() if number in rows}
        try:
            self._make = partial(_make_requests, graph.model, settings, requests, device)
            made = self._make()
        except RuntimeError as exc:
            raise LoadError(f"OpenVINO cannot compile graph {name!r} for {device}: {short_reason(exc)}.") from exc
        # Of sizes that are known there are none of a call before.
        self._spoils = any(port.partial_shape.is_dynamic for node in graph.model.get_ops() for port in node.outputs())
        self._generation, self._renewing, self._repeating = 0, threading.Lock(), threading.Lock()
        #: Under way, with their generation, by their identity.
        self._busy: dict[int, tuple[int, openvino.InferRequest]] = {}
        self._idle: queue.SimpleQueue[tuple[int, openvino.InferRequest]] = queue.SimpleQueue()
        self._put(made)

    def call(self, compute: Callable[[openvino.InferRequest], T]) -> T:
        """What is computed with a request that nobody else uses.

        An operation that fails keeps the shape of that call's answer, and gives it to a later call that has the shapes
        of the one before (2026.4): [1, 0, 0, 0] for one row, an error, or the end of the process. So a graph is
        compiled anew after a failure, and calls that began between a failure and that are made again.
        """
        answer = self._attempt(compute)
        while not answer:
            # Two calls that fail beside each other, and are made again beside each other, would do so forever.
            with self._repeating:
                answer = self._attempt(compute)
        return answer[0]

    def _attempt(self, compute: Callable[[openvino.InferRequest], T]) -> tuple[T] | tuple[()]:
        """What is computed; nothing where another call of the generation has failed, which may have spoilt it."""
        generation, request = self._idle.get()
        while generation != self._generation:
            generation, request = self._idle.get()
        self._busy[id(request)] = generation, request
        try:
            if self._is_sound(generation, request):
                result = compute(request)
                if self._is_sound(generation, request):
                    return (result,)
            self._renew(generation)
        except (InvalidInputError, PredictionError):
            sound = self._is_sound(generation, request)
            self._renew(generation)
            if sound:
                raise
        finally:
            # Who fails is among these until the generation says so.
            del self._busy[id(request)]
            self._idle.put((generation, request))
        return ()

    def _is_sound(self, generation: int, own: openvino.InferRequest) -> bool:
        """Whether no other call of a generation has failed, which the other's own thread may not know yet.

        One of an earlier generation says nothing: it is under way until its thread has renewed the graph, or has seen
        that another did.
        """
        for began, request in list(self._busy.values()) if self._spoils else ():
            try:
                if began == generation and request is not own:
                    request.wait_for(0)
            except RuntimeError:
                return False
        return generation == self._generation

    def _renew(self, generation: int) -> None:
        if not self._spoils:
            return
        with self._renewing:
            if generation != self._generation:
                return
            # From here on nobody is given a request of before.
            self._generation += 1
            try:
                made = self._make()
            except RuntimeError:
                self._generation = generation
                raise
            self._put(made)

    def _put(self, requests: Iterable[openvino.InferRequest]) -> None:
        for request in requests:
            self._idle.put((self._generation, request))


def _make_requests(
    model: openvino.Model, settings: Mapping[object, object], requests: int, device: str
) -> list[openvino.InferRequest]:
    compiled = openvino_core().compile_model(model, device, settings)
    return [compiled.create_infer_request() for _ in range(requests)]


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


def _check_rows(name: str, array: npt.NDArray[Any], rows: int | None) -> None:
    """OpenVINO has zeros for what is in no row."""
    if rows is not None and array.size and not -rows <= array.min() <= array.max() < rows:
        raise InvalidInputError(
            f"Input {name!r} has values from {array.min()} to {array.max()}; the graph looks them up in a table of "
            f"{rows} rows."
        )
