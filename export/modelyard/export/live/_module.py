"""Modules whose functions have an ``input_signature``: they say what they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, AnyFunction, SignatureFunction
from modelyard.errors import ConfigurationError, ConversionError
from modelyard.export.live._specs import named_outputs
from modelyard.export.sources import as_spec

if TYPE_CHECKING:
    from tensorflow.python.types.core import PolymorphicFunction

_CALL = "__call__"


def module_signatures(root: tf.Module, names: Sequence[str] = ()) -> dict[str, AnyFunction]:
    """The functions of a module that have an ``input_signature``, as signatures.

    ``__call__`` is ``serving_default``, and so is a function that is the only one;
    others have the names of their methods.
    """
    functions = _functions(root)
    wanted = [_CALL if name == DEFAULT_SIGNATURE and name not in functions else name for name in names]
    unknown = [name for name in wanted if name not in functions]
    if functions and unknown:
        raise ConfigurationError(
            f"The {type(root).__name__} has no function {unknown[0]!r} with an input_signature; it has "
            f"{', '.join(functions)}."
        )
    chosen = {name: functions[name] for name in wanted or functions} if functions else {}
    return {
        DEFAULT_SIGNATURE if name == _CALL or len(chosen) == 1 else name: _signature(name, function)
        for name, function in chosen.items()
    }


def _functions(root: tf.Module) -> dict[str, PolymorphicFunction]:
    kind = tf.types.experimental.PolymorphicFunction
    # Looked up in the classes: to ask an object for all its attributes may run properties.
    members = {name: each for base in reversed(type(root).__mro__) for name, each in vars(base).items()}
    members |= getattr(root, "__dict__", {})
    found = {name: getattr(root, name) for name in sorted(members) if isinstance(members[name], kind)}
    return {name: function for name, function in found.items() if function.input_signature is not None}


def _signature(name: str, function: PolymorphicFunction) -> SignatureFunction:
    try:
        arguments = function.get_concrete_function().structured_input_signature
    # The function may raise anything while it is traced: this is the boundary that maps it.
    except Exception as exc:
        raise ConversionError(f"The function {name!r} cannot be traced: {exc}") from exc
    specs = tf.nest.flatten(arguments)
    for spec in specs:
        if not isinstance(spec, tf.TensorSpec):
            raise ConversionError(f"The function {name!r} takes {spec}, which no request can send.")
    # TensorFlow has named each after its parameter by now.
    inputs = tuple(as_spec(spec.name, spec) for spec in specs)

    def call(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        positional, keyword = tf.nest.pack_sequence_as(arguments, [tensors[spec.name] for spec in inputs])
        return named_outputs(function(*positional, **keyword))

    return SignatureFunction(inputs=inputs, function=call)
