"""SavedModel: the format that TensorFlow Serving's own image serves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import fingerprinting_utils

from modelyard.artifact import PREDICT_METHOD
from modelyard.errors import ConversionError, PublishError
from modelyard.export.formats._failures import gist
from modelyard.export.sources import TracedModel

if TYPE_CHECKING:
    from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
    from tensorflow.python.types.core import PolymorphicFunction

#: Names that TensorFlow leaves as they are.
_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INPUT = "input_{}"


def export_saved_model(source: TracedModel, directory: Path) -> None:
    """Writes a SavedModel with every signature, encoded inputs decoded in its own graph."""
    module = tf.Module()
    module.root = _holder(source.root)
    # Kept as attributes too, so that a Python reload finds the functions with their variables.
    module.functions = dict(source.serving)
    module.states = _seed_states(source.root)
    methods = {name: each.method for name, each in source.signatures.items()}
    try:
        save_functions(module, directory, source.serving, methods=methods)
    except ConversionError as exc:
        raise ConversionError(f"Format saved_model: {exc.message}") from exc
    except OSError as exc:
        raise PublishError(f"Cannot write the SavedModel below {directory}: {exc}") from exc
    # Saving raises ValueError, AssertionError, tf.errors.* and more: this is the boundary that maps them.
    except Exception as exc:
        raise ConversionError(
            f"Format saved_model: TensorFlow cannot save the model: {gist(exc)}. A variable that the signatures use "
            "and the root does not hold is the usual cause."
        ) from exc


def _check_distinct(signature: str, names: Sequence[str]) -> None:
    # Python's parameters are these in TensorFlow's loader, which calls by them.
    parameters = [re.sub(r"\W", "_", name) for name in names]
    alike = sorted(name for name, each in zip(names, parameters, strict=True) if parameters.count(each) > 1)
    if alike:
        raise ConversionError(
            f"The inputs {', '.join(map(repr, alike))} of signature {signature!r} are one name to TensorFlow, which "
            "writes _ for what is no letter or digit. Rename one of them."
        )


def _numbered(function: PolymorphicFunction) -> PolymorphicFunction:
    specs = [
        tf.TensorSpec(spec.shape, spec.dtype, name=_INPUT.format(index))
        for index, spec in enumerate(function.input_signature)
    ]
    return tf.function(lambda *tensors: function(*tensors), input_signature=specs, autograph=False)


def _rename_inputs(graph: MetaGraphDef, signature: str, names: Sequence[str]) -> None:
    """Names the inputs of a signature that were saved by number, for servers and for TensorFlow's own loader."""
    inputs = graph.signature_def[signature].inputs
    known = {_INPUT.format(index): name for index, name in enumerate(names)}
    infos = {name: inputs.pop(number) for number, name in known.items()}
    for name, info in infos.items():
        inputs[name].CopyFrom(info)
    objects = graph.object_graph_def.nodes
    held = {child.local_name: child.node_id for child in objects[0].children}
    loaded = {child.local_name: child.node_id for child in objects[held["signatures"]].children}
    keywords = objects[loaded[signature]].bare_concrete_function.argument_keywords
    keywords[:] = [known[number] for number in keywords]


def _holder(root: tf.Module) -> tf.Module:
    """What holds the variables of a root and can be saved."""
    # Not above: a process that converts saved graphs needs no Keras, which takes as long to load as TensorFlow.
    import keras

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


def _seed_states(root: tf.Module) -> list[tf.Variable]:
    """States of seed generators: Keras does not track them, and functions capture them though they draw nothing."""
    import keras

    layers = [each for each in tf.train.TrackableView(root).descendants() if isinstance(each, keras.Layer)]
    weights = {id(variable) for layer in layers for variable in layer.weights}
    return [each.value for layer in layers for each in layer.variables if id(each) not in weights]


def save_functions(
    module: tf.Module,
    directory: Path,
    functions: Mapping[str, PolymorphicFunction],
    *,
    methods: Mapping[str, str] | None = None,
    options: tf.saved_model.SaveOptions | None = None,
) -> None:
    """Saves functions as signatures, under any names of signatures and inputs.

    TensorFlow makes identifiers of the inputs' names, or stops. So they are saved by number, and named in the file.
    """
    names = {name: [spec.name for spec in function.input_signature] for name, function in functions.items()}
    renamed = {name for name, inputs in names.items() if any(not _SAFE.fullmatch(each) for each in inputs)}
    for name in sorted(renamed):
        _check_distinct(name, names[name])
    saved = {name: _numbered(each) if name in renamed else each for name, each in functions.items()}
    module.numbered = [saved[name] for name in sorted(renamed)]
    signatures = {name: function.get_concrete_function() for name, function in saved.items()}
    tf.saved_model.save(module, str(directory), signatures=signatures, options=options)
    methods = {name: method for name, method in (methods or {}).items() if method != PREDICT_METHOD}
    if not renamed and not methods:
        return
    path = directory / "saved_model.pb"
    content = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for graph in content.meta_graphs:
        for name, method in methods.items():
            graph.signature_def[name].method_name = method
        for name in renamed:
            _rename_inputs(graph, name, names[name])
    path.write_bytes(content.SerializeToString(deterministic=True))
    (directory / "fingerprint.pb").unlink(missing_ok=True)
    fingerprinting_utils.write_fingerprint(str(directory))
