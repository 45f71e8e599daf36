"""Raw SavedModels in TensorFlow: the optional backend for models that have no ONNX or TFLite sibling."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature, TensorSpec
from modelyard.console import leave_out_keras
from modelyard.errors import (
    InternalError,
    InvalidInputError,
    LoadError,
    PredictionError,
    UnsupportedError,
)
from modelyard.serving.backends._base import Arrays, failure
from modelyard.serving.backends._saved_model import callable_signatures, read_meta_graph
from modelyard.serving.requests import without_paths
from modelyard.wire import dtype_by_enum, tensorflow_pb2

_LOG = logging.getLogger("modelyard.serving")

#: Names of the inputs in the order of the arguments, and the prepared call.
_Call = tuple[list[str], Callable[..., Sequence[object]]]
#: Packages whose import registers the operations that upstream's server is built with.
_OPERATIONS = ("tensorflow_text", "tensorflow_decision_forests")
_UNKNOWN_OPERATION = "Op type not registered"
_OPERATIONS_HINT = (
    "TensorFlow Serving has the operations of TensorFlow Text and TensorFlow Decision Forests built in; here they come "
    "with their packages: pip install tensorflow-text, or tensorflow-decision-forests, of this TensorFlow's version."
)
#: Prepared calls that a model keeps: there is one for each set of outputs that clients ask for.
_MAX_CALLS = 64


class TensorFlowBackend:
    """TensorFlow's own runtime; TF1 and TF2 formats alike."""

    name = "tensorflow"
    checks_shapes = False
    computes_in_caller = False
    on_device = False
    few_shapes: frozenset[str] = frozenset()

    def __init__(self, path: Path, *, threads: int, tags: Sequence[str]) -> None:
        # Before TensorFlow, which takes seconds to import, while other models wait.
        graph = read_meta_graph(path, tags)
        # Read when TensorFlow allocates for the first time: its own pool for oneDNN never lets go of a byte.
        os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
        try:
            with leave_out_keras():
                import tensorflow as tf
        except (ImportError, OSError) as exc:
            raise LoadError(
                f"TensorFlow is installed but cannot be imported: {exc}. It needs a writable temporary directory, "
                "such as /tmp."
            ) from exc
        self._tf = tf
        self._runner: _Functions | _Session | None
        load = partial(_load, tf, path, tags, graph, threads)
        try:
            try:
                self._runner, signatures = load()
            except Exception as exc:
                if _UNKNOWN_OPERATION not in str(exc) or not _import_operations():
                    raise
                self._runner, signatures = load()
        # TensorFlow raises classes of its own, ValueError, OSError, KeyError and more: the boundary maps them all.
        except Exception as exc:
            hint = f" {_OPERATIONS_HINT}" if _UNKNOWN_OPERATION in str(exc) else ""
            raise LoadError(f"TensorFlow cannot load {path}: {exc}{hint}") from exc
        #: The SavedModel's signatures that can be called.
        self.signatures: Mapping[str, Signature] = signatures

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        tf, runner = self._tf, self._runner
        if runner is None:
            raise InternalError(f"Signature {graph!r} was called after close. This is a bug.")
        try:
            return runner.run(graph, inputs, outputs)
        except (tf.errors.InvalidArgumentError, TypeError, ValueError) as exc:
            raise InvalidInputError(
                f"TensorFlow refuses the inputs of signature {graph!r}: {without_paths(str(exc))}"
            ) from exc
        except tf.errors.OpError as exc:
            reason = f"TensorFlow failed on signature {graph!r}: {without_paths(str(exc))}"
            raise failure(PredictionError, reason) from exc

    def interrupt(self, threads: Collection[int] | None = None) -> bool:
        """The runtime cannot."""
        return False

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if isinstance(runner, _Session):
            runner.close()
        del runner
        collect_cycles()


def collect_cycles() -> None:
    """Collects garbage, among settled objects as well: TensorFlow's models are full of reference cycles.

    All requests wait for it, which is why the other runtimes, whose models have none, do without.
    """
    settled = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if settled:
        gc.freeze()


def _load(
    tf: ModuleType, path: Path, tags: Sequence[str], graph: tensorflow_pb2.MetaGraphDef, threads: int
) -> tuple[_Functions | _Session, dict[str, Signature]]:
    signatures = callable_signatures(graph)
    if graph.HasField("object_graph_def"):
        functions = _Functions(tf, path, tags, signatures)
        if functions.have(signatures):
            return functions, signatures
        del functions
    # TF1's reference variables exist in a session only; TF2's functions need none, but do not know of signatures that
    # were added or renamed in the saved file.
    session = _Session(tf, path, tags, graph, threads)
    return session, session.corrected(signatures)


def _import_operations() -> bool:
    """Imports the packages of operations that are installed; whether any is new."""
    new = False
    for package in _OPERATIONS:
        if package in sys.modules or importlib.util.find_spec(package) is None:
            continue
        try:
            importlib.import_module(package)
        # Built for another TensorFlow, it fails in ways of its own.
        except Exception as exc:
            _LOG.warning("%s is installed and cannot be imported: %s", package, exc)
        else:
            new = True
    return new


class _Functions:
    """The signatures of a TF2-format model."""

    def __init__(self, tf: ModuleType, path: Path, tags: Sequence[str], names: Iterable[str]) -> None:
        self._tf = tf
        # The functions do not keep the variables alive: the model must.
        self._model = tf.saved_model.load(str(path), tags=list(tags))
        found = self._model.signatures
        self._functions = {name: found[name] for name in names if name in found}

    def have(self, signatures: Mapping[str, Signature]) -> bool:
        """Whether these are the functions' own signatures."""
        return all(
            name in self._functions
            and self._functions[name].structured_input_signature[1].keys() == {spec.name for spec in signature.inputs}
            and self._functions[name].structured_outputs.keys() == {spec.name for spec in signature.outputs}
            for name, signature in signatures.items()
        )

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        tf = self._tf
        feeds = {
            name: tf.constant(array, dtype=tf.string if array.dtype == object else tf.as_dtype(array.dtype))
            for name, array in inputs.items()
        }
        values = self._functions[graph](**feeds)
        return {name: np.asarray(values[name].numpy()) for name in outputs}


class _Session:
    """The signatures of a TF1-format model."""

    def __init__(
        self, tf: ModuleType, path: Path, tags: Sequence[str], graph: tensorflow_pb2.MetaGraphDef, threads: int
    ) -> None:
        from tensorflow.core.protobuf import config_pb2

        v1 = tf.compat.v1
        config = v1.ConfigProto(intra_op_parallelism_threads=threads)
        self._session = v1.Session(graph=tf.Graph(), config=config)
        with self._session.graph.as_default():
            v1.saved_model.load(self._session, list(tags), str(path))
        self._definitions = graph.signature_def
        self._config = config_pb2
        self._calls: dict[tuple[str, tuple[str, ...]], _Call] = {}

    def corrected(self, signatures: Mapping[str, Signature]) -> dict[str, Signature]:
        """The signatures with the dtypes that the graph's tensors have, whatever the SavedModel says of them.

        Old models say float of the strings that hold their examples. Upstream
        feeds and fetches tensors by name and never looks at what is said.
        """
        return {
            name: replace(
                signature,
                inputs=tuple(self._corrected(spec, self._definitions[name].inputs) for spec in signature.inputs),
                outputs=tuple(self._corrected(spec, self._definitions[name].outputs) for spec in signature.outputs),
            )
            for name, signature in signatures.items()
        }

    def _corrected(self, spec: TensorSpec, infos: Mapping[str, tensorflow_pb2.TensorInfo]) -> TensorSpec:
        try:
            kind = self._session.graph.get_tensor_by_name(infos[spec.name].name).dtype.base_dtype
            return replace(spec, dtype=dtype_by_enum(kind.as_datatype_enum).name)
        except (KeyError, ValueError, UnsupportedError):
            # No such tensor: the call will say so, as upstream's does.
            return spec

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        asked = sorted(outputs)
        key = (graph, tuple(asked))
        call = self._calls.get(key)
        if call is None:
            call = self._make_call(graph, asked)
            if len(self._calls) < _MAX_CALLS:
                call = self._calls.setdefault(key, call)
        names, function = call
        values = dict(zip(asked, function(*(inputs[name] for name in names)), strict=True))
        return {name: _as_array(values[name]) for name in outputs}

    def _make_call(self, graph: str, outputs: Sequence[str]) -> _Call:
        """A prepared call: unlike ``Session.run`` it leaves the check of shapes to the kernels, as upstream does."""
        definition = self._definitions[graph]
        names = sorted(definition.inputs)
        options = self._config.CallableOptions(
            feed=[definition.inputs[name].name for name in names],
            fetch=[definition.outputs[name].name for name in outputs],
        )
        return names, self._session._make_callable_from_options(options)

    def close(self) -> None:
        # Prepared calls release themselves through the session: they must go first.
        self._calls.clear()
        self._session.close()


def _as_array(value: object) -> npt.NDArray[Any]:
    # A rank-0 string comes back as plain bytes, which numpy would make a fixed-width string of.
    return np.array(value, dtype=object) if isinstance(value, bytes) else np.asarray(value)
