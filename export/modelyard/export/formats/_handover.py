"""A traced model on its way to another process: its graphs as a SavedModel, all else as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from modelyard.errors import ConversionError, PublishError
from modelyard.export.formats._failures import gist
from modelyard.export.formats._freeze import named
from modelyard.export.sources import Reference, TracedModel


def save_graphs(source: TracedModel, directory: Path) -> None:
    """Writes the graphs of a model, with the variables and tables that they read, and nothing of its layers.

    Args:
        source: The traced model.
        directory: For :func:`load_reference`.

    Raises:
        ConversionError: TensorFlow cannot save it.
        PublishError: The directory cannot be written.
    """
    module = tf.Module()
    module.graphs = list(source.graphs.values())
    # Whether the root holds them or not.
    module.held = [each.get_concrete_function().graph.variables for each in source.graphs.values()]
    resource = tf.saved_model.experimental.TrackableResource
    parts = [] if source.root is None else tf.train.TrackableView(source.root).descendants()
    module.tables = [each for each in parts if isinstance(each, resource)]
    # Nobody trains by this copy.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        tf.saved_model.save(module, str(directory), options=options)
    except OSError as exc:
        raise PublishError(f"Cannot write a temporary SavedModel below {directory}: {exc}") from exc
    # Saving raises ValueError, AssertionError, tf.errors.* and more: this is the boundary that maps them.
    except Exception as exc:
        raise ConversionError(f"TensorFlow cannot save the model for its converters: {gist(exc)}.") from exc


def plain(reference: Reference) -> Reference:
    """A reference that can be sent to another process: without functions and variables.

    Args:
        reference: The model and its answers.
    """
    source = replace(reference.source, root=None, graphs=dict.fromkeys(reference.source.graphs), serving={})
    return _with_source(reference, source)


def graph_specs(source: TracedModel) -> list[tuple[Any, ...]]:
    """What the graphs take, in their order.

    Args:
        source: The traced model.
    """
    return [tuple(each.input_signature) for each in source.graphs.values()]


def load_reference(reference: Reference, directory: Path, specs: Sequence[tuple[Any, ...]]) -> Reference:
    """Gives a reference its graphs back.

    Args:
        reference: From :func:`plain`.
        directory: From :func:`save_graphs`.
        specs: From :func:`graph_specs`.
    """
    root = tf.saved_model.load(str(directory))
    functions = [_function(each, spec) for each, spec in zip(root.graphs, specs, strict=True)]
    graphs = dict(zip(reference.source.graphs, functions, strict=True))
    return _with_source(reference, replace(reference.source, root=root, graphs=graphs))


def _with_source(reference: Reference, source: TracedModel) -> Reference:
    return replace(reference, source=source, others=tuple(replace(each, source=source) for each in reference.others))


def _function(restored: Any, specs: tuple[Any, ...]) -> Any:
    # One that is loaded has forgotten its input signature.
    def call(*tensors: Any) -> dict[str, Any]:
        return {key: named(value, key) for key, value in restored(*tensors).items()}

    return tf.function(call, input_signature=specs, autograph=False)
