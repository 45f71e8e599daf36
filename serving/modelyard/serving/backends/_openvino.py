"""ONNX graphs and SavedModels in OpenVINO, for those who ask for it."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature, openvino_core
from modelyard.errors import InternalError, InvalidInputError, LoadError, MissingDependencyError, PredictionError
from modelyard.serving.backends._base import Arrays
from modelyard.serving.backends._openvino_reader import OpenVinoGraph, read_onnx, read_saved_model, short_reason
from modelyard.serving.backends._recurrent import check_values, recurrent_graphs

#: The CPU plugin computes these in int32.
_NARROWED = (np.dtype(np.int64), np.dtype(np.uint32), np.dtype(np.uint64))
_INT32 = np.iinfo(np.int32)


class OpenVinoBackend:
    """OpenVINO on the CPU, in float32 whatever the CPU could do faster, unless told otherwise.

    It reads the ONNX graphs of a version where there are any, else its
    SavedModel, with no TensorFlow installed. Computation is in float32 (recent
    CPUs would else be given bfloat16) and int32: 64-bit integers beyond that
    range are refused at the inputs.

    Args:
        graphs: ONNX files by graph name; None to read a SavedModel.
        saved_model: The SavedModel directory, where ``graphs`` is None.
        tags: Tags of the SavedModel's meta graph.
        threads: Threads of one inference.
        requests: How many inferences run at the same time.
        bfloat16: Compute floats in bfloat16, where that was verified.

    Raises:
        LoadError: OpenVINO cannot read a graph, or none of the signatures of a
            SavedModel.
        MissingDependencyError: OpenVINO is not installed.
    """

    name = "openvino"
    checks_shapes = True
    computes_in_caller = False

    def __init__(
        self,
        *,
        graphs: Mapping[str, Path] | None = None,
        saved_model: Path | None = None,
        tags: Sequence[str] = (),
        threads: int,
        requests: int,
        bfloat16: bool = False,
    ) -> None:
        if (graphs is None) == (saved_model is None):
            raise InternalError("OpenVinoBackend takes either ONNX graphs or a SavedModel. This is a bug.")
        try:
            import openvino
        except ModuleNotFoundError as exc:
            if exc.name != "openvino":
                raise
            raise MissingDependencyError(package="openvino", extra="openvino", purpose="The openvino backend") from exc
        if saved_model is not None:
            read = read_saved_model(saved_model, tags)
        else:
            read = {name: read_onnx(name, path) for name, path in (graphs or {}).items()}
        hint = openvino.properties.hint
        settings = {
            hint.inference_precision(): openvino.Type.bf16 if bfloat16 else openvino.Type.f32,
            # Accuracy also keeps matrix products with compressed weights from quantizing their inputs.
            hint.execution_mode(): hint.ExecutionMode.PERFORMANCE if bfloat16 else hint.ExecutionMode.ACCURACY,
            hint.performance_mode(): hint.PerformanceMode.LATENCY,
            # Threads tied to cores would all be tied to the same ones, model after model.
            hint.enable_cpu_pinning(): False,
            openvino.properties.num_streams(): requests,
            openvino.properties.inference_num_threads(): threads * requests,
        }
        self._graphs = {
            name: _compile(openvino_core(), name, graph, settings, requests) for name, graph in read.items()
        }
        self._recurrent = recurrent_graphs(graphs or {})
        self._signatures = {name: graph.signature for name, graph in read.items()}

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The graphs by name; of a SavedModel, the signatures that OpenVINO can serve."""
        return self._signatures

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Computes one batch.

        Args:
            graph: One of :attr:`signatures`.
            inputs: Arrays by input name.
            outputs: The outputs to return; OpenVINO always computes all. A
                string that ends in zero bytes comes without them.

        Raises:
            InvalidInputError: An input is missing, OpenVINO refuses a shape or computes nothing from it,
                or an integer is too large for it.
            PredictionError: OpenVINO failed.
        """
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
            _check_range(name, array)
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
                # outputs of the call before in place, which may have been somebody else's.
                request.start_async()
                request.wait()
            except RuntimeError as exc:
                # Shapes that fit the inputs but not each other are found on the way.
                kind = InvalidInputError if "shape" in str(exc) else PredictionError
                raise kind(f"OpenVINO failed on graph {graph!r}: {short_reason(exc)}.") from exc
            return {name: _copy(request.get_output_tensor(compiled.outputs[name])) for name in outputs}

    def close(self) -> None:
        """Frees the graphs."""
        self._graphs.clear()


@dataclass(frozen=True, kw_only=True)
class _Compiled:
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    requests: queue.SimpleQueue[Any]
    tensor: Any

    @contextmanager
    def request(self) -> Iterator[Any]:
        """One of the requests: each serves one call at a time."""
        request = self.requests.get()
        try:
            yield request
        finally:
            self.requests.put(request)


def _compile(core: Any, name: str, graph: OpenVinoGraph, settings: Mapping[str, Any], requests: int) -> _Compiled:
    import openvino

    pool: queue.SimpleQueue[Any] = queue.SimpleQueue()
    try:
        compiled = core.compile_model(graph.model, "CPU", dict(settings))
        for _ in range(requests):
            pool.put(compiled.create_infer_request())
    except RuntimeError as exc:
        raise LoadError(f"OpenVINO cannot compile graph {name!r}: {short_reason(exc)}.") from exc
    return _Compiled(
        inputs=graph.inputs,
        outputs=graph.outputs,
        requests=pool,
        tensor=openvino.Tensor,
    )


def _check_range(name: str, array: npt.NDArray[Any]) -> None:
    if array.dtype in _NARROWED and array.size and not _INT32.min <= array.min() <= array.max() <= _INT32.max:
        raise InvalidInputError(
            f"Input {name!r} has values from {array.min()} to {array.max()}; the openvino backend computes "
            f"{array.dtype} in 32 bits, from {_INT32.min} to {_INT32.max}."
        )


def _copy(tensor: Any) -> npt.NDArray[Any]:
    # The tensor is overwritten by the request's next call.
    if tensor.element_type.get_type_name() == "string":
        if not tensor.get_size():
            # Asked for the bytes of no strings, OpenVINO divides by zero (2026.4), which ends the process.
            return np.zeros(tuple(tensor.get_shape()), dtype=object)
        return np.asarray(tensor.bytes_data).astype(object)
    return np.array(tensor.data)
