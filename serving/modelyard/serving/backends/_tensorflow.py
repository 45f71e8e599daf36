"""Raw SavedModels in TensorFlow: the optional backend for models that have no ONNX or TFLite sibling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import CLASSIFY_METHOD, PREDICT_METHOD, REGRESS_METHOD, Signature, TensorSpec
from modelyard.errors import InvalidInputError, LoadError, MissingDependencyError, PredictionError, UnsupportedError
from modelyard.serving.backends._base import Arrays
from modelyard.serving.backends._saved_model import read_signature_defs
from modelyard.wire import dtype_by_enum, shape_from_proto, tensorflow_pb2

#: The pseudo-signature by which TF2 initialises a model; it cannot be called.
_INIT_OP = "__saved_model_init_op"
_METHODS = (PREDICT_METHOD, CLASSIFY_METHOD, REGRESS_METHOD)


class TensorFlowBackend:
    """TensorFlow's own runtime; TF1 and TF2 formats alike.

    Args:
        path: The SavedModel directory.
        threads: Not used per model: TensorFlow's thread pools are process-wide.

    Raises:
        LoadError: TensorFlow cannot load the directory.
        MissingDependencyError: TensorFlow is not installed.
    """

    name = "tensorflow"
    checks_shapes = False

    def __init__(self, path: Path, *, threads: int) -> None:
        try:
            import tensorflow as tf
        except ModuleNotFoundError as exc:
            if exc.name != "tensorflow":
                raise
            raise MissingDependencyError(
                package="tensorflow",
                extra="tensorflow",
                purpose=f"{path} holds a SavedModel with no ONNX or TFLite sibling, so serving it",
            ) from exc
        self._tf = tf
        try:
            self._model = tf.saved_model.load(str(path), tags=["serve"])
        # TensorFlow raises classes of its own, ValueError, OSError, KeyError and more: the boundary maps them all.
        except Exception as exc:
            raise LoadError(f"TensorFlow cannot load {path}: {exc}") from exc
        definitions = read_signature_defs(path)
        self._signatures = {
            name: signature
            for name, definition in definitions.items()
            if (signature := _signature(name, definition)) is not None
        }
        self._functions = {name: self._model.signatures[name] for name in self._signatures}

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The SavedModel's signatures that can be called."""
        return self._signatures

    def run(self, graph: str, inputs: Arrays, outputs: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        """Computes one batch.

        Args:
            graph: One of :attr:`signatures`.
            inputs: Arrays by input name.
            outputs: The outputs to return.

        Raises:
            InvalidInputError: A kernel refuses the inputs.
            PredictionError: A kernel failed.
        """
        tf = self._tf
        try:
            feeds = {name: tf.constant(array, dtype=_tf_dtype(tf, array)) for name, array in inputs.items()}
            values = self._functions[graph](**feeds)
        except (tf.errors.InvalidArgumentError, TypeError, ValueError) as exc:
            raise InvalidInputError(f"TensorFlow refuses the inputs of signature {graph!r}: {exc}") from exc
        except tf.errors.OpError as exc:
            raise PredictionError(f"TensorFlow failed on signature {graph!r}: {exc}") from exc
        return {name: np.asarray(values[name].numpy()) for name in outputs}

    def close(self) -> None:
        """Frees the model."""
        self._functions.clear()
        self._model = None


def _tf_dtype(tf: Any, array: npt.NDArray[Any]) -> Any:
    return tf.string if array.dtype == object else tf.as_dtype(array.dtype)


def _signature(name: str, definition: tensorflow_pb2.SignatureDef) -> Signature | None:
    if name == _INIT_OP:
        return None
    try:
        inputs, outputs = _specs(definition.inputs), _specs(definition.outputs)
    except (InvalidInputError, UnsupportedError):
        # A resource or variant in a signature cannot travel; the signature still shows in the metadata.
        return None
    method = definition.method_name if definition.method_name in _METHODS else PREDICT_METHOD
    return Signature(inputs=inputs, outputs=outputs, compute=name, method=method)


def _specs(infos: Mapping[str, tensorflow_pb2.TensorInfo]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=name, dtype=dtype_by_enum(info.dtype).name, shape=shape_from_proto(info.tensor_shape))
        for name, info in sorted(infos.items())
    )
