"""Keras models: which inputs they have, how they are called with them, and what their outputs are called."""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import keras
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, AnyFunction, SignatureFunction, TensorSpec
from modelyard.errors import ConfigurationError, ConversionError
from modelyard.export.live._specs import INPUT_FORM, distinct, named_outputs

_SAY = f"Say them: --signature {INPUT_FORM}, once for each (signatures= in Python)."
#: Suffixes of the files that Keras loads: its own, and the HDF5 of earlier versions.
KERAS_FILES = frozenset({".keras", ".h5", ".hdf5"})


def load_keras_model(path: Path) -> keras.Model:
    """Loads a ``.keras`` or ``.h5`` file; code inside it, such as lambda layers, is refused by Keras."""
    try:
        with _readable(path) as file:
            return keras.models.load_model(file, compile=False, safe_mode=True)
    # Keras raises ValueError, TypeError, OSError and more: this is the boundary that maps them.
    except Exception as exc:
        # Of a layer inside a model it tells all of the model's configuration first.
        text = str(exc).rpartition("Exception encountered: ")[2]
        if text.startswith("Could not locate"):
            text = (
                f"{text.partition('.')[0]}, which is not of Keras. Name the Python module that defines it: "
                "--import MODULE (in Python: import it, and register it with Keras)."
            )
        elif "`Lambda` layer whose `function` is a Python lambda" in text:
            text = (
                "a Lambda layer of it holds Python code, which could do anything. If you trust the file, load it in "
                "Python, keras.models.load_model(file, safe_mode=False), and give the model to modelyard.export.export."
            )
        if text.startswith("No model config found"):
            text = "it holds weights and no model. Make the model in Python, call its load_weights, and export that."
        raise ConversionError(f"Keras cannot load {path}: {text}") from exc


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """A file that Keras 3 reads: Keras 2 wrote an argument of recurrent layers that it does not know."""
    config = ""
    if path.suffix != ".keras":
        with h5py.File(path) as file:
            found = file.attrs.get("model_config", "")
            config = found.decode() if isinstance(found, bytes) else str(found)
    known = config.replace(', "time_major": false', "")
    if known == config:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="modelyard-") as folder:
        copy = shutil.copyfile(path, Path(folder) / path.name)
        with h5py.File(copy, "r+") as file:
            file.attrs["model_config"] = known
        yield copy


def keras_signatures(model: keras.Model, declared: Sequence[TensorSpec] = ()) -> tuple[dict[str, AnyFunction], bool]:
    """The default signature of a Keras model."""
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ConfigurationError(
            f"Keras computes with {backend} in this process (KERAS_BACKEND, or keras.json), and the export traces a "
            "model with TensorFlow. Save the model, model.save('model.keras'), and export the file with "
            f"KERAS_BACKEND=tensorflow; --expected (expected=) holds it to what {backend} answers."
        )
    arguments, assumed = _known_arguments(model)
    if declared:
        arguments, assumed = _declared_arguments(model, arguments, declared), False
    if arguments is None:
        raise ConversionError(
            f"The Keras model {model.name!r} has no known inputs: it was not called on data, or takes several "
            f"arguments. {_SAY}"
        )
    leaves = keras.tree.flatten(arguments)
    names = distinct([spec.name for spec in leaves])
    inputs = tuple(
        TensorSpec(name=name, dtype=spec.dtype, shape=spec.shape) for name, spec in zip(names, leaves, strict=True)
    )
    # Output tensors are all called keras_tensor_N: the layers' names are what people know.
    outputs = list(getattr(model, "output_names", None) or ())

    def function(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        positional, keyword = keras.tree.pack_sequence_as(arguments, [tensors[name] for name in names])
        return named_outputs(model(*positional, **keyword, training=False), outputs)

    return {DEFAULT_SIGNATURE: SignatureFunction(inputs=inputs, function=function)}, assumed


def _known_arguments(model: keras.Model) -> tuple[object, bool]:
    """Positional and keyword arguments with a :class:`TensorSpec` for each tensor, None where they are unknown."""
    if getattr(model, "inputs", None):
        # A Sequential model takes its tensor bare, though it says that it takes a list of one.
        structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        fixed = _has_fixed_batch(model)
        return ((keras.tree.map_structure(lambda tensor: _of_tensor(tensor, fixed=fixed), structure),), {}), False
    config, fixed = model.get_build_config() or {}, _has_fixed_batch(model)
    parameters = _parameters(model)
    if "shapes_dict" in config:
        shapes = {name.removesuffix("_shape"): shape for name, shape in config["shapes_dict"].items()}
        known = set(shapes) <= set(parameters)
        return (
            ((), {name: _specs(name, shape, fixed=fixed) for name, shape in shapes.items()}) if known else None
        ), True
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    # Of several arguments Keras remembers the first alone.
    if "input_shape" not in config or not parameters or len(required) > 1:
        return None, True
    return ((_specs(next(iter(parameters)), config["input_shape"], fixed=fixed, top=True),), {}), True


def _declared_arguments(model: keras.Model, known: object, declared: Sequence[TensorSpec]) -> Any:
    by_name = {spec.name: spec for spec in declared}
    if len(by_name) != len(declared):
        raise ConfigurationError(f"Inputs are declared twice: {', '.join(spec.name for spec in declared)}.")
    leaves = keras.tree.flatten(known) if known is not None else []
    if by_name.keys() == {spec.name for spec in leaves}:
        return keras.tree.pack_sequence_as(known, [by_name[spec.name] for spec in leaves])
    if len(leaves) == len(declared) == 1:
        return keras.tree.pack_sequence_as(known, list(declared))
    parameters = _parameters(model)
    if by_name.keys() <= parameters.keys():
        return (), by_name
    if leaves:
        raise ConfigurationError(
            f"The Keras model {model.name!r} has the inputs {', '.join(spec.name for spec in leaves)}; --signature "
            f"declares {', '.join(by_name)}."
        )
    return (declared[0] if len(declared) == 1 else by_name,), {}


def _parameters(model: keras.Model) -> dict[str, inspect.Parameter]:
    """Those of ``call`` that may be tensors."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(model.call).parameters
    return {name: each for name, each in parameters.items() if each.kind not in variable and name != "training"}


def _has_fixed_batch(model: keras.Model) -> bool:
    """Whether the size of the batch is the model's own, and not that of the data that it was built with by a call."""
    if any(isinstance(layer, keras.layers.RNN) and layer.stateful for layer in model._flatten_layers()):
        # Its state has a row for each of the batch.
        return True
    # A Sequential model gets its input layer by the first call.
    return not isinstance(model, keras.Sequential) and any(
        size is not None for tensor in getattr(model, "inputs", None) or () for size in tensor.shape[:1]
    )


def _of_tensor(tensor: keras.KerasTensor, *, fixed: bool) -> TensorSpec:
    sizes = [-1 if size is None else int(size) for size in tensor.shape]
    shape = tuple(sizes) if fixed else (-1, *sizes[1:])
    return TensorSpec(name=tensor.name, dtype=tf.as_dtype(tensor.dtype).name, shape=shape)


def _specs(name: str, shape: Any, *, fixed: bool, top: bool = False) -> Any:
    """The structure of shapes as one of specs."""
    if isinstance(shape, dict):
        return {key: _specs(str(key) if top else f"{name}_{key}", each, fixed=fixed) for key, each in shape.items()}
    if all(size is None or isinstance(size, int) for size in shape):
        sizes = tuple(-1 if size is None else size for size in shape)
        return TensorSpec(name=name, dtype=keras.config.floatx(), shape=sizes if fixed else (-1, *sizes[1:]))
    return [_specs(f"{name}_{index}", each, fixed=fixed) for index, each in enumerate(shape)]
