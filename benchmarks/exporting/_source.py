"""A model as it is, without any export: what it takes, what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.exporting._calls import Array, Call, Outputs
from benchmarks.zoo import Kind

#: Rows of each call where the batch is free; others than those that the export tries.
SIZES = (1, 5, 3)
#: Calls from which the distribution of a random output is known.
DRAWS = 100


def answers(kind: Kind, model: Any) -> list[Call]:
    """What a model answers to fresh examples, one call after the other. Its variables are left as they were."""
    ask = source_call(kind, model)
    rng = np.random.default_rng(1)
    with _restored(model):
        calls = []
        for size in SIZES:
            inputs = by_name(kind.sample(rng, size))
            outputs = outputs_of(ask(inputs))
            draws = [outputs_of(ask(inputs)) for _ in range(DRAWS)] if kind.stochastic else []
            parsed = kind.parse(inputs[""]) if kind.parse else {}
            calls.append(Call(inputs=inputs, outputs=outputs, draws=draws, parsed=parsed))
        return calls


def by_name(sample: Any) -> dict[str, Array]:
    """The arrays of a sample by name."""
    return {name: np.asarray(value) for name, value in (sample if isinstance(sample, dict) else {"": sample}).items()}


def source_call(kind: Kind, model: Any) -> Callable[[Mapping[str, Array]], Any]:
    """How a model is called with arrays by name."""
    function, specs = function_of(kind, model)
    if isinstance(model, keras.Model):
        # As model.predict calls it: some layers of Keras, Resizing of uint8 among them, answer differently outside.
        function = tf.function(function, reduce_retracing=True)
    names = [spec.name for spec in specs]

    def ask(inputs: Mapping[str, Array]) -> Any:
        arrays = [inputs[name] if name in inputs else inputs[""] for name in names]
        tensors = [tf.constant(each.tolist() if each.dtype == object else each, spec.dtype)
                   for each, spec in zip(arrays, specs, strict=True)]  # fmt: skip
        return function(*tensors)

    return ask


def function_of(kind: Kind, model: Any) -> tuple[Callable[..., Any], list[Any]]:
    """A function of flat tensors, and what it takes."""
    if isinstance(model, Path):
        loaded = tf.saved_model.load(str(model))
        signature = loaded.signatures["serving_default"]
        specs = [
            tf.TensorSpec(s.shape, s.dtype, name=n) for n, s in sorted(signature.structured_input_signature[1].items())
        ]

        def call(*tensors: Any, keep: Any = loaded) -> Any:
            return signature(**{spec.name: tensor for spec, tensor in zip(specs, tensors, strict=True)})

        return call, specs
    if isinstance(model, keras.Model) and kind.signatures:
        return partial(model, training=False), [_declared(text) for text in kind.signatures]
    if isinstance(model, keras.Sequential):
        specs = [tf.TensorSpec(each.shape, each.dtype, name=each.name) for each in model.inputs]
        return partial(model, training=False), specs
    if isinstance(model, keras.Model) and getattr(model, "inputs", None):
        specs = [tf.TensorSpec(each.shape, each.dtype, name=each.name) for each in model.inputs]
        return lambda *tensors: model(keras.tree.pack_sequence_as(model.input, list(tensors)), training=False), specs
    if isinstance(model, keras.Model):
        sample = np.asarray(kind.sample(np.random.default_rng(0), 2))
        return partial(model, training=False), [tf.TensorSpec([None, *sample.shape[1:]], sample.dtype, name="x")]
    function = module_function(model)
    return function, list(tf.nest.flatten(function.get_concrete_function().structured_input_signature))


def module_function(model: Any) -> Any:
    """The function of a ``tf.Module`` that is served."""
    return model.serve if hasattr(model, "serve") else type(model).__call__.__get__(model, type(model))


def _declared(text: str) -> Any:
    name, _, rest = text.partition(":")
    dtype, _, sizes = rest.rstrip("]").partition("[")
    return tf.TensorSpec([None if int(size) < 0 else int(size) for size in sizes.split(",")], dtype, name=name)


def outputs_of(result: Any) -> Outputs:
    """The arrays of an answer, by name where it is a dictionary of tensors."""
    named = isinstance(result, dict) and not any(isinstance(each, (dict, list, tuple)) for each in result.values())
    pairs = sorted(result.items()) if named else [("", each) for each in tf.nest.flatten(result)]
    return Outputs(
        arrays=tuple(
            np.asarray(keras.ops.convert_to_numpy(each))
            if not tf.is_tensor(each)
            else each.numpy()
            if hasattr(each, "numpy")
            else each
            for _, each in pairs
        ),
        names=tuple(name for name, _ in pairs) if named else (),
    )


@contextmanager
def _restored(model: Any) -> Iterator[None]:
    """Puts variables back: a call may move them on."""
    variables = list(getattr(model, "variables", ()))
    if isinstance(model, keras.Model):
        # Keras does not count the states of recurrent layers among the variables.
        recurrent = [each for each in model._flatten_layers() if isinstance(each, keras.layers.RNN) and each.stateful]
        variables += keras.tree.flatten([each.states for each in recurrent])
    before = [np.array(each) for each in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
