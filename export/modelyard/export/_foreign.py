"""SavedModels that somebody else made, of TensorFlow 2 or 1, and ``.keras`` files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, PREDICT_METHOD, AnyFunction, SignatureFunction, TensorSpec
from modelyard.errors import ConversionError
from modelyard.export._unsafe_ops import check_ops, read_saved_model

_INIT_SIGNATURE = "__saved_model_init_op"
_OPAQUE = frozenset({"resource", "variant"})
_REFERENCE_VARIABLES = frozenset({"TemporaryVariable", "Variable", "VariableV2"})


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with what it offers.

    Attributes:
        root: Holds the variables.
        signatures: What to serve, by name.
        saved_model: The directory that it came from, to be published as it is; None for a model that is saved anew.
    """

    root: Any = field(repr=False)
    signatures: dict[str, AnyFunction]
    saved_model: Path | None = None


def load_saved_model(directory: Path, *, names: Sequence[str] = (), allow_unsafe_ops: bool = False) -> LoadedModel:
    """Loads a SavedModel directory.

    Args:
        directory: Holds ``saved_model.pb``; TensorFlow 2 or 1 format.
        names: The signatures wanted; empty for all that can be called.
        allow_unsafe_ops: Load it though it runs Python or touches files.

    Raises:
        ConversionError: It cannot be loaded; has operations that are not
            allowed; or a signature is unknown or cannot travel.
    """
    graph = read_saved_model(directory)
    if not allow_unsafe_ops:
        # Before it is loaded: loading runs the model's initializers.
        check_ops(directory, graph)
    known = sorted(name for name in graph.signature_def if name != _INIT_SIGNATURE)
    for name in names:
        if name not in known:
            raise ConversionError(f"{directory} has no signature {name!r}; it has {', '.join(known) or 'none'}.")
    if not known:
        raise ConversionError(f"{directory} has no signature to serve. Save it with signatures.")
    wanted = {name: graph.signature_def[name] for name in names or known}
    try:
        if any(node.op in _REFERENCE_VARIABLES for node in graph.graph_def.node):
            root, functions = tf.Module(), _from_session(directory, wanted)
        else:
            root = tf.saved_model.load(str(directory), tags=["serve"])
            functions = {name: root.signatures[name] for name in wanted}
    # TensorFlow raises classes of its own, ValueError, OSError, KeyError and more: this is the boundary.
    except Exception as exc:
        raise ConversionError(f"TensorFlow cannot load {directory}: {exc}") from exc
    signatures: dict[str, AnyFunction] = {
        name: SignatureFunction(
            inputs=_inputs(name, functions[name]),
            function=_caller(functions[name]),
            method=definition.method_name or PREDICT_METHOD,
        )
        for name, definition in wanted.items()
    }
    return LoadedModel(root=root, signatures=signatures, saved_model=directory)


def load_keras_file(path: Path) -> LoadedModel:
    """Loads a ``.keras`` file; code inside it, such as lambda layers, is refused by Keras.

    Args:
        path: The file.

    Raises:
        ConversionError: Keras cannot load it.
    """
    import keras

    try:
        model = keras.models.load_model(path, compile=False, safe_mode=True)
    # Keras raises ValueError, TypeError, OSError and more: this is the boundary that maps them.
    except Exception as exc:
        raise ConversionError(f"Keras cannot load {path}: {exc}") from exc
    return LoadedModel(root=model, signatures=keras_signatures(model))


def keras_signatures(model: Any) -> dict[str, AnyFunction]:
    """The default signature of a Keras model: its own inputs and outputs by name.

    Args:
        model: A Keras 3 model that is built.

    Raises:
        ConversionError: It has not been built, so that its inputs are unknown.
    """
    tensors, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    if not tensors or not outputs:
        raise ConversionError(
            f"The Keras model {model.name!r} has no known inputs. Call it once on data, or declare its signatures."
        )
    names = [tensor.name for tensor in tensors]
    inputs = tuple(
        TensorSpec(
            name=name, dtype=str(tensor.dtype), shape=tuple(-1 if size is None else int(size) for size in tensor.shape)
        )
        for name, tensor in zip(names, tensors, strict=True)
    )
    # Output tensors are all called keras_tensor_N: the layers' names are what people know.
    fallback = list(getattr(model, "output_names", None) or [f"output_{index}" for index in range(len(outputs))])

    def function(**tensors: Any) -> dict[str, Any]:
        values = [tensors[name] for name in names]
        # A Sequential model takes its tensor bare, though it says that it takes a list of one.
        structure = values[0] if len(values) == 1 else tf.nest.pack_sequence_as(model.input, values)
        result = model(structure, training=False)
        if isinstance(result, dict):
            return dict(result)
        return dict(zip(fallback, tf.nest.flatten(result), strict=True))

    return {DEFAULT_SIGNATURE: SignatureFunction(inputs=inputs, function=function)}


def _from_session(directory: Path, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Functions of a model with TensorFlow 1's variables, which live in a session only and are made constant."""
    v1 = tf.compat.v1
    tensors = {
        name: (
            {key: info.name for key, info in each.inputs.items()},
            {key: info.name for key, info in each.outputs.items()},
        )
        for name, each in definitions.items()
    }
    ends = sorted({name.partition(":")[0] for _, outputs in tensors.values() for name in outputs.values()})
    with v1.Graph().as_default(), v1.Session() as session:
        v1.saved_model.load(session, ["serve"], str(directory))
        graph = v1.graph_util.convert_variables_to_constants(session, session.graph_def, ends)
    imported = v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph, name=""), [])
    functions = {}
    for name, (inputs, outputs) in tensors.items():
        feeds = {key: imported.graph.get_tensor_by_name(tensor) for key, tensor in inputs.items()}
        fetches = {key: imported.graph.get_tensor_by_name(tensor) for key, tensor in outputs.items()}
        functions[name] = _Pruned(imported, feeds, fetches)
    return functions


class _Pruned:
    """Part of a graph, called as a signature is."""

    def __init__(self, graph: Any, feeds: Mapping[str, Any], fetches: Mapping[str, Any]) -> None:
        self._names = sorted(feeds)
        self._function = graph.prune([feeds[name] for name in self._names], dict(fetches))
        specs = {name: tf.TensorSpec(feeds[name].shape, feeds[name].dtype, name=name) for name in self._names}
        self.structured_input_signature = ((), specs)

    def __call__(self, **tensors: Any) -> Any:
        return self._function(*[tensors[name] for name in self._names])


def _inputs(name: str, function: Any) -> tuple[TensorSpec, ...]:
    specs = function.structured_input_signature[1]
    for key, spec in specs.items():
        if spec.dtype.name in _OPAQUE or not isinstance(spec, tf.TensorSpec):
            raise ConversionError(
                f"Input {key!r} of signature {name!r} is {spec}, which no request can send. Choose other signatures."
            )
    return tuple(
        TensorSpec(
            name=key,
            dtype=spec.dtype.name,
            shape=_shape(spec),
        )
        for key, spec in sorted(specs.items())
    )


def _shape(spec: Any) -> tuple[int, ...] | None:
    if spec.shape.rank is None:
        # Serialized messages come in a vector, said or not.
        return (-1,) if spec.dtype == tf.string else None
    return tuple(-1 if size is None else size for size in spec.shape.as_list())


def _caller(function: Any) -> Any:
    # A plain call, because a mapping of signatures holds functions whose parameters have no Python names.
    return lambda **tensors: dict(function(**tensors))
