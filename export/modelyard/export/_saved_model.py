"""SavedModel: the format that TensorFlow Serving's own image serves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import fingerprinting_utils

from modelyard.artifact import PREDICT_METHOD, Signature
from modelyard.errors import ConversionError, PublishError
from modelyard.export._failures import gist
from modelyard.export._trace import TracedModel


def export_saved_model(source: TracedModel, directory: Path) -> None:
    """Writes a SavedModel with every signature, encoded inputs decoded in its own graph.

    Args:
        source: The traced model.
        directory: The version directory; ``saved_model.pb`` and ``variables/`` go there.

    Raises:
        ConversionError: TensorFlow cannot save the model.
        PublishError: The directory cannot be written.
    """
    module = tf.Module()
    module.root = _holder(source.root)
    # Kept as attributes too, so that a Python reload finds the functions with their variables.
    module.functions = dict(source.serving)
    signatures = {name: function.get_concrete_function() for name, function in source.serving.items()}
    module.states = _seed_states(source.root)
    try:
        tf.saved_model.save(module, str(directory), signatures=signatures)
        _set_methods(source.signatures, directory)
    except OSError as exc:
        raise PublishError(f"Cannot write the SavedModel below {directory}: {exc}") from exc
    # Saving raises ValueError, AssertionError, tf.errors.* and more: this is the boundary that maps them.
    except Exception as exc:
        raise ConversionError(
            f"Format saved_model: TensorFlow cannot save the model: {gist(exc)}. A variable that the signatures use "
            "and the root does not hold is the usual cause."
        ) from exc


def _holder(root: Any) -> Any:
    """What holds the variables of a root and can be saved."""
    if not isinstance(root, keras.Model) or getattr(root, "inputs", None):
        return root
    # To save a subclassed model itself, TensorFlow calls it on the first of its arguments, with floats; it may want
    # others. So what is in it is held instead, wherever it is: layers, and the variables and tables of TensorFlow that
    # Keras does not list.
    held = (keras.Layer, tf.Variable, tf.saved_model.experimental.TrackableResource)
    parts = tf.train.TrackableView(root).descendants()
    module = tf.Module()
    module.weights = list(root.variables)
    module.parts = [each for each in parts if isinstance(each, held) and not isinstance(each, keras.Model)]
    return module


def _seed_states(root: Any) -> list[Any]:
    """States of seed generators: Keras does not track them, and functions capture them though they draw nothing."""
    layers = [each for each in tf.train.TrackableView(root).descendants() if isinstance(each, keras.Layer)]
    weights = {id(variable) for layer in layers for variable in layer.weights}
    return [each.value for layer in layers for each in layer.variables if id(each) not in weights]


def _set_methods(signatures: Mapping[str, Signature], directory: Path) -> None:
    """Writes the methods of signatures: TensorFlow 2 calls each of them predict, whatever it is for."""
    methods = {name: each.method for name, each in signatures.items() if each.method != PREDICT_METHOD}
    if not methods:
        return
    path = directory / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for graph in saved.meta_graphs:
        for name, method in methods.items():
            graph.signature_def[name].method_name = method
    path.write_bytes(saved.SerializeToString(deterministic=True))
    (directory / "fingerprint.pb").unlink(missing_ok=True)
    fingerprinting_utils.write_fingerprint(str(directory))
