"""ONNX graphs in onnxruntime, the default backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError, LoadError, MissingDependencyError, PredictionError
from modelyard.serving.backends._base import Arrays
from modelyard.serving.backends._recurrent import check_values, recurrent_graphs
from modelyard.serving.requests import without_paths

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "bool": "bool",
    "string": "string",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
}

#: Computes Pad with zeros followed by MaxPool wrongly where all values are negative, in 1.31 at least.
_WRONG_OPTIMIZERS = ["Pad_Fusion"]


class OnnxRuntimeBackend:
    """One onnxruntime session per graph: sessions are safe to share between threads.

    Args:
        graphs: ONNX files by graph name.
        threads: Intra-op threads of each session.

    Raises:
        LoadError: onnxruntime cannot read a file.
        MissingDependencyError: onnxruntime is not installed.
    """

    name = "onnxruntime"
    checks_shapes = True

    def __init__(self, graphs: Mapping[str, Path], *, threads: int) -> None:
        try:
            import onnxruntime
        except ModuleNotFoundError as exc:
            if exc.name != "onnxruntime":
                raise
            raise MissingDependencyError(
                package="onnxruntime", extra="serving", purpose="The onnxruntime backend"
            ) from exc
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Idle worker threads that spin would take the cores from the request path.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Its errors come as exceptions, too. Printed beside that they would look like the server's, and most are none:
        # loading tries what a model takes, and clients send what it does not.
        options.log_severity_level = 4
        self._sessions: dict[str, Any] = {}
        self.computes_in_caller = threads == 1
        for graph, path in graphs.items():
            try:
                session = onnxruntime.InferenceSession(
                    str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=_WRONG_OPTIMIZERS
                )
            # onnxruntime's exceptions share no base class of their own: this is the boundary that maps them.
            except Exception as exc:
                raise LoadError(f"onnxruntime cannot load {path}: {exc}") from exc
            self._sessions[graph] = session
        self._recurrent = recurrent_graphs(graphs)
        self._signatures = {graph: _signature(graph, session) for graph, session in self._sessions.items()}

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The graphs by name."""
        return self._signatures

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Computes one batch.

        Args:
            graph: One of :attr:`signatures`.
            inputs: Arrays by input name.
            outputs: The outputs to compute.

        Raises:
            InvalidInputError: onnxruntime refuses a shape, or would not survive it; or a string is not UTF-8.
            PredictionError: onnxruntime failed.
        """
        if graph in self._recurrent:
            check_values(graph, inputs)
        feeds = {name: _text(name, array) if array.dtype == object else array for name, array in inputs.items()}
        try:
            values = self._sessions[graph].run(list(outputs), feeds)
        # As above: no common base class to name.
        except Exception as exc:
            kind = InvalidInputError if type(exc).__name__ == "InvalidArgument" else PredictionError
            raise kind(f"onnxruntime cannot run graph {graph!r} on these inputs: {without_paths(str(exc))}") from exc
        return dict(zip(outputs, (_bytes(value) if value.dtype == object else value for value in values), strict=True))

    def close(self) -> None:
        """Frees the sessions."""
        self._sessions.clear()


def _signature(graph: str, session: Any) -> Signature:
    return Signature(
        inputs=tuple(_spec(node) for node in session.get_inputs()),
        outputs=tuple(_spec(node) for node in session.get_outputs()),
        compute=graph,
    )


def _spec(node: Any) -> TensorSpec:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _DTYPES:
        hint = ' Convert scikit-learn models with options={id(model): {"zipmap": False}}.' if "map(" in kind else ""
        raise LoadError(
            f"ONNX value {node.name!r} has type {node.type}; expected a tensor of a dtype known here.{hint}"
        )
    shape = tuple(size if isinstance(size, int) else -1 for size in node.shape)
    return TensorSpec(name=node.name, dtype=_DTYPES[kind], shape=shape)


def _text(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # onnxruntime's strings are Python text on the way in and on the way out.
    try:
        flat = [value.decode("utf-8") for value in array.ravel().tolist()]
    except UnicodeDecodeError as exc:
        raise InvalidInputError(
            f"Input {name!r} holds a string that is not UTF-8 ({exc.reason}); the onnxruntime backend takes no other."
        ) from exc
    return _object_array(flat, array.shape)


def _bytes(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    flat = [value.encode("utf-8") if isinstance(value, str) else value for value in array.ravel().tolist()]
    return _object_array(flat, array.shape)


def _object_array(values: list[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    result = np.empty(len(values), dtype=object)
    result[:] = values
    return result.reshape(shape)
