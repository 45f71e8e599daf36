"""TFLite: all graphs in one file, each under its own signature name.

The route matters. Measured with TensorFlow 2.21: ``from_saved_model`` on a
SavedModel that holds a Keras model returned a file without a single weight, and
no error. Freezing each function first leaves no variable that could get lost;
verification would catch it if it did.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

from modelyard.errors import ConversionError, PublishError
from modelyard.export._freeze import freeze
from modelyard.export._trace import TracedModel

TFLITE_NAME = "model.tflite"


def export_tflite(source: TracedModel, directory: Path) -> None:
    """Writes ``model.tflite`` with one signature for every graph.

    Args:
        source: The traced model.
        directory: The version directory.

    Raises:
        ConversionError: A graph cannot be frozen or converted.
        PublishError: The directory cannot be written.
    """
    module = tf.Module()
    frozen: dict[str, Any] = {}
    for graph, function in source.graphs.items():
        try:
            frozen[graph] = freeze(function)
        # Freezing raises whatever comes up: this is the boundary that maps it.
        except Exception as exc:
            raise ConversionError(f"Format tflite, graph {graph!r}: variables cannot be made constant: {exc}") from exc
    module.functions = frozen
    try:
        with tempfile.TemporaryDirectory() as folder:
            signatures = {graph: function.get_concrete_function() for graph, function in frozen.items()}
            tf.saved_model.save(module, folder, signatures=signatures)
            content = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(frozen)).convert()
    except OSError as exc:
        raise PublishError(f"Cannot write a temporary SavedModel: {exc}") from exc
    # As above; the converter names the op it does not know in its message.
    except Exception as exc:
        raise ConversionError(f"Format tflite, graphs {', '.join(frozen)}: the converter failed: {exc}") from exc
    try:
        (directory / TFLITE_NAME).write_bytes(content)
    except OSError as exc:
        raise PublishError(f"Cannot write {TFLITE_NAME} below {directory}: {exc}") from exc
