"""SavedModels that somebody else made, of TensorFlow 2 or 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.artifact import PREDICT_METHOD, AnyFunction, SignatureFunction, TensorSpec
from modelyard.errors import ConversionError
from modelyard.export.sources._trace import as_spec
from modelyard.export.sources._unsafe_ops import INIT_SIGNATURE, check_ops, read_saved_model

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
    from tensorflow.python.types.core import ConcreteFunction

_OPAQUE = frozenset({"resource", "variant"})
_REFERENCE_VARIABLES = frozenset({"TemporaryVariable", "Variable", "VariableV2"})


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with what it offers."""

    #: Holds the variables.
    root: tf.Module = field(repr=False)
    #: What to serve.
    signatures: dict[str, AnyFunction]
    #: The directory that it came from, to be published as it is; None for a model that is saved anew.
    saved_model: Path | None = None
    #: Whether the dtypes of the inputs are assumed: the model does not say them.
    assumed: bool = False
    #: What to do where it cannot be traced.
    hint: str = ""


def load_saved_model(directory: Path, *, names: Sequence[str] = (), allow_unsafe_ops: bool = False) -> LoadedModel:
    """Loads a SavedModel directory."""
    graph = read_saved_model(directory, links_out=allow_unsafe_ops)
    if not allow_unsafe_ops:
        # Before it is loaded: loading runs the model's initializers.
        check_ops(directory, graph)
    known = sorted(name for name in graph.signature_def if name != INIT_SIGNATURE)
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


def _from_session(directory: Path, definitions: Mapping[str, SignatureDef]) -> dict[str, _Pruned]:
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

    def __init__(
        self, graph: ConcreteFunction, feeds: Mapping[str, tf.Tensor], fetches: Mapping[str, tf.Tensor]
    ) -> None:
        self._names = sorted(feeds)
        self._function = graph.prune([feeds[name] for name in self._names], dict(fetches))
        specs = {name: tf.TensorSpec(feeds[name].shape, feeds[name].dtype, name=name) for name in self._names}
        self.structured_input_signature = ((), specs)

    def __call__(self, **tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._function(*[tensors[name] for name in self._names])


def _inputs(name: str, function: ConcreteFunction) -> tuple[TensorSpec, ...]:
    specs = _keywords(function)
    for key, spec in specs.items():
        if spec.dtype.name in _OPAQUE or not isinstance(spec, tf.TensorSpec):
            raise ConversionError(
                f"Input {key!r} of signature {name!r} is {spec}, which no request can send. Choose other signatures."
            )
    return tuple(
        # Serialized messages come in a vector, said or not.
        TensorSpec(name=key, dtype="string", shape=(-1,))
        if spec.shape.rank is None and spec.dtype == tf.string
        else as_spec(key, spec)
        for key, spec in sorted(specs.items())
    )


def _keywords(function: ConcreteFunction) -> dict[str, tf.TensorSpec]:
    """Specs of the inputs by their names in requests; where these are no identifiers, parameters have others."""
    specs: dict[str, tf.TensorSpec] = function.structured_input_signature[1]
    names = getattr(function, "_arg_keywords", None) or list(specs)
    if set(names) == set(specs) or len(names) != len(specs):
        return specs
    return {
        name: tf.TensorSpec(tensor.shape, tensor.dtype, name=name)
        for name, tensor in zip(names, function.inputs, strict=False)
    }


def _caller(function: ConcreteFunction) -> Callable[..., Mapping[str, tf.Tensor]]:
    # A plain call, because a mapping of signatures holds functions whose parameters have no Python names.
    return lambda **tensors: dict(function(**tensors))
