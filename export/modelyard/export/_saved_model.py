"""SavedModel: the format that TensorFlow Serving's own image serves."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from modelyard.errors import ConversionError, PublishError
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
    module.root = source.root
    # Kept as attributes too, so that a Python reload finds the functions with their variables.
    module.functions = dict(source.serving)
    signatures = {name: function.get_concrete_function() for name, function in source.serving.items()}
    try:
        tf.saved_model.save(module, str(directory), signatures=signatures)
    except OSError as exc:
        raise PublishError(f"Cannot write the SavedModel below {directory}: {exc}") from exc
    # Saving raises ValueError, AssertionError, tf.errors.* and more: this is the boundary that maps them.
    except Exception as exc:
        raise ConversionError(
            f"Format saved_model: TensorFlow cannot save the model: {exc}. A variable that the signatures use and the "
            "root does not hold is the usual cause."
        ) from exc
