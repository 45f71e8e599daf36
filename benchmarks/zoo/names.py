"""Names that are no identifiers, that clash, that are long."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from benchmarks.zoo._kind import floats, kind, module, named, spec, weights

layers = keras.layers


@kind(lambda rng, n: {"été 1": floats(4)(rng, n)})
def accents_and_spaces() -> Any:
    """Accents, spaces and slashes in names."""
    x = keras.Input((4,), name="été 1")
    return keras.Model(x, {"sor tie/ü": layers.Dense(2)(x)})


@kind(floats(3))
def output_named_as_input() -> Any:
    """An output named like an input, another value."""
    w = weights(3, 3)
    return module(lambda x: {"x": x @ w}, spec(None, 3), w=w)


@kind(named(a=floats(2), b=floats(2)))
def inputs_passed_on() -> Any:
    """Inputs passed on, under their own and each other's names."""
    return module(lambda a, b: {"a": b, "b": a + 1.0, "same": a}, spec(None, 2), spec(None, 2))


@kind(lambda rng, n: {"class": floats(3)(rng, n), "0": floats(3)(rng, n), "x:0": floats(3)(rng, n)})
def keywords_and_numbers() -> Any:
    """Names that are keywords, numbers, or end in a colon and a number."""
    x, y, z = (keras.Input((3,), name=name) for name in ("class", "0", "x:0"))
    return keras.Model({"class": x, "0": y, "x:0": z}, {"lambda": layers.Dense(2)(x + y), "1": layers.Dense(2)(z - x)})


@kind(lambda rng, n: {"in" * 80: floats(3)(rng, n)})
def long_names() -> Any:
    """Names of 160 letters."""
    x = keras.Input((3,), name="in" * 80)
    return keras.Model(x, {"out" * 53: layers.Dense(2)(x)})


@kind(named(b=floats(3), a=floats(2)))
def unsorted_names() -> Any:
    """Names that are not in the order of the alphabet."""
    w = weights(2, 3)
    return module(lambda b, a: {"z": b + a @ w, "y": b - a @ w}, spec(None, 3), spec(None, 2), w=w)


@kind(floats(3))
def tuple_outputs() -> Any:
    """Outputs without names: a tuple of twelve."""
    return module(lambda x: tuple(x * float(index + 1) for index in range(12)), spec(None, 3))


@kind(lambda rng, n: {"a b": floats(3)(rng, n), "a_b": floats(3)(rng, n)})
def names_alike() -> Any:
    """Names that become the same when they are made safe."""
    x, y = keras.Input((3,), name="a b"), keras.Input((3,), name="a_b")
    return keras.Model({"a b": x, "a_b": y}, {"o p": layers.Dense(2)(x), "o_p": layers.Dense(2)(y)})


class Methods(tf.Module):
    """Scores and embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.w = weights(3, 2)

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="features")])
    def __call__(self, features: Any) -> Any:
        return {"scores": tf.nn.softmax(features @ self.w)}

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="features")])
    def embed(self, features: Any) -> Any:
        return {"embedding": tf.tanh(features @ self.w)}


@kind(named(features=floats(3)))
def two_functions() -> Any:
    """tf.Module with two functions, called by the first."""
    return Methods()


class _Private(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.scale = self.add_weight(shape=(3,), initializer="ones")

    def call(self, x: Any) -> Any:
        return x * self.scale


@kind(floats(3))
def private_class() -> Any:
    """Layer whose class begins with an underscore."""
    x = keras.Input((3,), name="x")
    return keras.Model(x, layers.Dense(2)(_Private()(x)))
