"""Tables: categories, numbers and what Keras' preprocessing layers do with them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, module, named, spec, texts, weights

layers = keras.layers
COLOURS = ("red", "green", "blue", "mauve")


@kind(named(numbers=floats(3), category=integers(9, 1)))
def wide_and_deep() -> Any:
    """Wide and deep: numbers beside an embedded category."""
    numbers, category = keras.Input((3,), name="numbers"), keras.Input((1,), dtype="int32", name="category")
    deep = layers.Concatenate()([numbers, layers.Flatten()(layers.Embedding(9, 4)(category))])
    return keras.Model([numbers, category], layers.Dense(1, activation="sigmoid")(layers.Dense(6)(deep)))


@kind(floats(4))
def normalization() -> Any:
    """Normalization with adapted statistics."""
    scale = layers.Normalization()
    scale.adapt(np.random.default_rng(0).normal(3.0, 2.0, (50, 4)))
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(2)(scale(x)))


@kind(floats(1))
def discretization() -> Any:
    """Discretization into buckets."""
    x = keras.Input((1,), name="x")
    return keras.Model(x, layers.Embedding(4, 2)(layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0])(x)))


@kind(integers(5, 1, dtype=np.int64))
def category_encoding() -> Any:
    """CategoryEncoding, one-hot."""
    x = keras.Input((1,), dtype="int64", name="code")
    return keras.Model(x, layers.Dense(2)(layers.CategoryEncoding(5, output_mode="one_hot")(x)))


@kind(integers(5, 3, dtype=np.int64))
def multi_hot() -> Any:
    """CategoryEncoding, several codes in one row."""
    x = keras.Input((3,), dtype="int64", name="codes")
    return keras.Model(x, layers.Dense(2)(layers.CategoryEncoding(5, output_mode="multi_hot")(x)))


@kind(lambda rng, n: rng.choice([10, 20, 30, 7], (n, 1)))
def integer_lookup() -> Any:
    """IntegerLookup before an embedding."""
    x = keras.Input((1,), dtype="int64", name="code")
    return keras.Model(x, layers.Embedding(4, 2)(layers.IntegerLookup(vocabulary=[10, 20, 30])(x)))


@kind(texts(*COLOURS, shape=(1,)))
def string_lookup() -> Any:
    """StringLookup before an embedding."""
    x = keras.Input((1,), dtype="string", name="colour")
    return keras.Model(x, layers.Embedding(4, 2)(layers.StringLookup(vocabulary=COLOURS[:3])(x)))


@kind(texts(*COLOURS, shape=(1,)))
def hashing() -> Any:
    """Hashing of strings before an embedding."""
    x = keras.Input((1,), dtype="string", name="colour")
    return keras.Model(x, layers.Embedding(8, 2)(layers.Hashing(8)(x)))


@kind(integers(1000, 1, dtype=np.int64))
def hashing_integers() -> Any:
    """Hashing of integers before an embedding."""
    x = keras.Input((1,), dtype="int64", name="id")
    return keras.Model(x, layers.Embedding(8, 2)(layers.Hashing(8)(x)))


@kind(named(colour=texts(*COLOURS), shape=texts("round", "square")))
def hashed_crossing() -> Any:
    """HashedCrossing of two categories."""
    inputs = [keras.Input((), dtype="string", name=name) for name in ("colour", "shape")]
    return keras.Model(inputs, layers.Dense(2)(layers.HashedCrossing(8, output_mode="one_hot")(inputs)))


@kind(integers(5, dtype=np.int64))
def static_hash_table() -> Any:
    """StaticHashTable from integers to floats."""
    keys, values = tf.constant([1, 2, 3], tf.int64), tf.constant([0.1, 0.2, 0.3])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), -1.0)
    return module(lambda k: {"value": table.lookup(k)}, spec(None, dtype=tf.int64), table=table)


@kind(
    named(
        age=lambda rng, n: rng.integers(18, 90, (n,)).astype(np.float32),
        colour=texts(*COLOURS),
        visits=integers(40, dtype=np.int64),
    )
)
def mixed_table() -> Any:
    """Table of numbers, strings and counts, all preprocessing inside."""
    age, colour = keras.Input((), name="age"), keras.Input((), dtype="string", name="colour")
    visits = keras.Input((), dtype="int64", name="visits")
    parts = [
        layers.Reshape((1,))((age - 50.0) / 20.0),
        layers.StringLookup(vocabulary=COLOURS[:3], output_mode="one_hot")(colour),
        layers.Embedding(4, 3)(layers.Discretization(bin_boundaries=[5.0, 10.0, 20.0])(visits)),
    ]
    return keras.Model([age, colour, visits], layers.Dense(1, activation="sigmoid")(layers.Concatenate()(parts)))


@kind(lambda rng, n: np.where(rng.random((n, 3)) < 0.3, np.nan, rng.normal(size=(n, 3))).astype(np.float32))
def missing_values() -> Any:
    """Imputation: NaN replaced, with an indicator."""
    w = weights(6, 2)

    def serve(x: Any) -> Any:
        missing = tf.math.is_nan(x)
        return tf.concat([tf.where(missing, 0.5, x), tf.cast(missing, tf.float32)], 1) @ w

    return module(serve, spec(None, 3), w=w)


@kind(named(user=integers(30, 1), seen=integers(40, 6)))
def recommender() -> Any:
    """Two-tower recommender: best three of a catalogue."""
    user, seen = keras.Input((1,), dtype="int32", name="user"), keras.Input((6,), dtype="int32", name="seen")
    history = layers.GlobalAveragePooling1D()(layers.Embedding(40, 8, mask_zero=True)(seen))
    query = layers.Dense(8)(layers.Concatenate()([layers.Flatten()(layers.Embedding(30, 8)(user)), history]))
    scores = layers.Dense(40, use_bias=False)(query)
    best, items = keras.ops.top_k(scores, 3)
    return keras.Model([user, seen], {"score": best, "item": items})


def _records(rng: Any, n: int) -> Any:
    def record() -> bytes:
        feature = {
            "x": tf.train.Feature(float_list=tf.train.FloatList(value=rng.normal(size=3))),
            "k": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(rng.integers(5))])),
        }
        serialized: bytes = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
        return serialized

    return np.array([record() for _ in range(n)], object)


def _parse(records: Any) -> Any:
    features = [tf.train.Example.FromString(each).features.feature for each in records]
    return {
        "x": np.array([each["x"].float_list.value for each in features], np.float32),
        "k": np.array([each["k"].int64_list.value[0] for each in features], np.int64),
    }


@kind(_records, parse=_parse)
def tf_example() -> Any:
    """Serialized tf.Example, parsed inside."""
    w = weights(3, 2)
    features = {"x": tf.io.FixedLenFeature([3], tf.float32), "k": tf.io.FixedLenFeature([], tf.int64)}

    def serve(examples: Any) -> Any:
        parsed = tf.io.parse_example(examples, features)
        return parsed["x"] @ w + tf.cast(parsed["k"], tf.float32)[:, None]

    return module(serve, spec(None, dtype=tf.string), w=w)
