"""The process in which converters and foreign runtimes work: one for all formats, another one where that has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tensorflow as tf

from modelyard.errors import ConversionError, InternalError, PublishError
from modelyard.export.formats._failures import gist
from modelyard.export.formats._freeze import named
from modelyard.export.isolation import Kept, Worker
from modelyard.export.publish import ExportOptions, Progress
from modelyard.export.sources import Reference, TracedModel

if TYPE_CHECKING:
    from tensorflow.python.types.core import PolymorphicFunction


def _save_graphs(source: TracedModel, directory: Path) -> None:
    """Writes the graphs of a model, with the variables and tables that they read, and nothing of its layers."""
    module = tf.Module()
    module.graphs = list(source.graphs.values())
    # Whether the root holds them or not.
    module.held = [each.get_concrete_function().graph.variables for each in source.graphs.values()]
    resource = tf.saved_model.experimental.TrackableResource
    parts = [] if source.root is None else tf.train.TrackableView(source.root).descendants()
    module.tables = [each for each in parts if isinstance(each, resource)]
    # This copy is not trained.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        tf.saved_model.save(module, str(directory), options=options)
    except OSError as exc:
        raise PublishError(f"Cannot write a temporary SavedModel below {directory}: {exc}") from exc
    # Saving raises ValueError, AssertionError, tf.errors.* and more: this is the boundary that maps them.
    except Exception as exc:
        raise ConversionError(f"TensorFlow cannot save the model for its converters: {gist(exc)}.") from exc


def _plain(reference: Reference) -> Reference:
    """A reference that can be sent to another process: without functions and variables."""
    source = replace(reference.source, root=None, graphs=dict.fromkeys(reference.source.graphs), serving={})
    return _with_source(reference, source)


def _load_reference(reference: Reference, directory: Path, specs: Sequence[tuple[tf.TensorSpec, ...]]) -> Reference:
    """Gives a reference its graphs back."""
    root = tf.saved_model.load(str(directory))
    functions = [_function(each, spec) for each, spec in zip(root.graphs, specs, strict=True)]
    graphs = dict(zip(reference.source.graphs, functions, strict=True))
    return _with_source(reference, replace(reference.source, root=root, graphs=graphs))


def _with_source(reference: Reference, source: TracedModel) -> Reference:
    return replace(reference, source=source, others=tuple(replace(each, source=source) for each in reference.others))


def _function(restored: PolymorphicFunction, specs: tuple[tf.TensorSpec, ...]) -> PolymorphicFunction:
    # One that is loaded has forgotten its input signature.
    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return {key: named(value, key) for key, value in restored(*tensors).items()}

    return tf.function(call, input_signature=specs, autograph=False)


#: What a conversion needs and takes seconds to load.
_MODULES = ("modelyard.export.formats._formats", "tf2onnx", "onnxruntime")


class Apart:
    """A process that begins to load its libraries when this is made, and gets the model when it is asked for something.

    Its methods may be called until the ``with`` block ends.
    """

    def __init__(self) -> None:
        self._worker = Worker(modules=_MODULES)
        self._maker: Kept | None = None
        self._given: tuple[Callable[..., Any], Reference, Path, ExportOptions] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def give(self, make: Callable[..., Any], reference: Reference, staged: Path, options: ExportOptions) -> None:
        """Says what the process will work on."""
        self._given = make, reference, staged, options

    def worker(self) -> Worker:
        """The process; a new one where the last has ended."""
        if not self._worker.alive:
            self._worker.close()
            self._worker, self._maker = Worker(modules=_MODULES), None
        return self._worker

    def call(self, method: str, *arguments: Any, stage: str, progress: Progress | None = None) -> Any:
        """Calls a method of what was made over there."""
        worker = self.worker()
        if self._maker is None:
            if self._given is None:
                raise InternalError("Nothing was given to work on. This is a bug.")
            make, reference, staged, options = self._given
            graphs = worker.folder / "graphs"
            _save_graphs(reference.source, graphs)
            specs = [tuple(each.input_signature) for each in reference.source.graphs.values()]
            self._maker = worker.keep(_make, make, _plain(reference), graphs, specs, staged, options, stage=stage)
        return worker.call(method, self._maker, *arguments, stage=stage, progress=progress)


def _make(
    make: Callable[..., Any],
    reference: Reference,
    graphs: Path,
    specs: Sequence[tuple[object, ...]],
    staged: Path,
    options: ExportOptions,
) -> Any:
    """In the worker."""
    return make(_load_reference(reference, graphs, specs), staged, options)
