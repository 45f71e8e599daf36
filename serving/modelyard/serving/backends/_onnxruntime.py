"""ONNX graphs in onnxruntime, the default backend."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.artifact.runtimes import disable_telemetry, onnx_options, onnx_signature
from modelyard.errors import InvalidInputError, LoadError, PredictionError
from modelyard.serving.backends._base import Arrays, failure
from modelyard.serving.backends._devices import CPU, check_session, onnx_providers
from modelyard.serving.backends._operators import CONVOLUTIONS, RECURRENT, check_values, graphs_with
from modelyard.serving.backends._sessions import ShapeSessions
from modelyard.serving.requests import without_paths
from modelyard.wire import object_array

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, RunOptions

#: Computes Pad with zeros followed by MaxPool wrongly where all values are negative, in 1.31 at least.
_WRONG_OPTIMIZERS = ["Pad_Fusion"]


class OnnxRuntimeBackend:
    """One onnxruntime session per graph, which threads share; on a card, one for each shape where a graph convolves."""

    name = "onnxruntime"
    checks_shapes = True

    def __init__(self, graphs: Mapping[str, Path], *, threads: int, device: str = CPU) -> None:
        disable_telemetry()
        import onnxruntime

        options = onnx_options(threads)
        self._sessions: dict[str, InferenceSession] = {}
        self._by_shape: dict[str, ShapeSessions] = {}
        #: Of each thread's calls, by which they can be ended.
        self._calls: dict[int, RunOptions] = {}
        self.computes_in_caller = threads == 1 and device == CPU
        self.on_device = device != CPU
        self.few_shapes = frozenset() if device == CPU else graphs_with(graphs, CONVOLUTIONS)
        for graph, path in graphs.items():
            make = partial(
                onnxruntime.InferenceSession, str(path), options, providers=onnx_providers(device),
                disabled_optimizers=_WRONG_OPTIMIZERS, enable_fallback=0,
            )  # fmt: skip
            try:
                if graph in self.few_shapes:
                    self._by_shape[graph] = ShapeSessions(make)
                    session = self._by_shape[graph].first
                else:
                    session = make()
                check_session(session, device)
            # onnxruntime's exceptions share no base class of their own: this is the boundary that maps them.
            except Exception as exc:
                raise LoadError(f"onnxruntime cannot load {path}: {exc}") from exc
            self._sessions[graph] = session
        self._recurrent = graphs_with(graphs, RECURRENT)
        self.signatures: Mapping[str, Signature] = {
            graph: onnx_signature(graph, session, graphs[graph]) for graph, session in self._sessions.items()
        }

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        if graph in self._recurrent:
            check_values(graph, inputs)
        feeds = {name: _text(name, array) if array.dtype == object else array for name, array in inputs.items()}
        try:
            by_shape = self._by_shape.get(graph)
            session = self._sessions[graph] if by_shape is None else by_shape.of(feeds)
            values = session.run(list(outputs), feeds, self._call())
        # As above: no common base class to name.
        except Exception as exc:
            kind = InvalidInputError if type(exc).__name__ == "InvalidArgument" else PredictionError
            reason = f"onnxruntime cannot run graph {graph!r} on these inputs: {without_paths(str(exc))}"
            raise failure(kind, reason) from exc
        return dict(zip(outputs, (_bytes(value) if value.dtype == object else value for value in values), strict=True))

    def _call(self) -> RunOptions:
        thread = threading.get_ident()
        found = self._calls.get(thread)
        if found is None:
            import onnxruntime

            found = self._calls[thread] = onnxruntime.RunOptions()
        return found

    def interrupt(self, threads: Collection[int] | None = None) -> bool:
        """Ends calls that are running, those of some threads or all, with an error."""
        for thread in list(self._calls) if threads is None else threads:
            call = self._calls.pop(thread, None)
            if call is not None:
                call.terminate = True
        return True

    def close(self) -> None:
        self._sessions.clear()
        self._by_shape.clear()


def _text(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # onnxruntime's strings are Python text on the way in and on the way out.
    try:
        flat = [value.decode("utf-8") for value in array.ravel().tolist()]
    except UnicodeDecodeError as exc:
        raise InvalidInputError(
            f"Input {name!r} holds a string that is not UTF-8 ({exc.reason}); the onnxruntime backend takes no other."
        ) from exc
    return object_array(flat).reshape(array.shape)


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # It is nobody else's: its elements are replaced.
    flat = array.ravel()
    flat[:] = [value.encode("utf-8") if isinstance(value, str) else value for value in flat.tolist()]
    return flat.reshape(array.shape)
