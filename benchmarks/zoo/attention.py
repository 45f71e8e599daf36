"""Attention and transformers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, module, named, spec, weights
from benchmarks.zoo.sequences import _ids

layers = keras.layers


@kind(floats(6, 8))
def multi_head_attention() -> Any:
    """MultiHeadAttention of fixed length."""
    x = keras.Input((6, 8), name="x")
    return keras.Model(x, layers.MultiHeadAttention(2, 4)(x, x))


@kind(floats(6, 8))
def attention_scores() -> Any:
    """MultiHeadAttention that returns its scores."""
    x = keras.Input((6, 8), name="x")
    return keras.Model(x, layers.MultiHeadAttention(2, 4)(x, x, return_attention_scores=True))


@kind(named(query=floats(4, 6), value=floats(5, 6)))
def additive_attention() -> Any:
    """AdditiveAttention between two sequences."""
    query, value = keras.Input((4, 6), name="query"), keras.Input((5, 6), name="value")
    return keras.Model([query, value], layers.AdditiveAttention()([query, value]))


@kind(floats(6, 8))
def grouped_query_attention() -> Any:
    """GroupQueryAttention."""
    x = keras.Input((6, 8), name="x")
    return keras.Model(x, layers.GroupQueryAttention(4, 4, 2)(x, x))


@kind(_ids(40))
def causal_transformer() -> Any:
    """Causal transformer of free length, logits for each step."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    h = layers.Embedding(40, 8)(ids)
    h = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 4)(h, h, use_causal_mask=True))
    h = layers.LayerNormalization()(h + layers.Dense(8)(layers.Dense(16, activation="gelu")(h)))
    return keras.Model(ids, layers.Dense(40)(h))


@kind(named(ids=integers(40, 7), mask=lambda rng, n: (rng.random((n, 7)) > 0.3).astype(np.int32)))
def masked_encoder() -> Any:
    """Transformer encoder with a padding mask as input, BERT's shape."""
    ids, mask = keras.Input((7,), dtype="int32", name="ids"), keras.Input((7,), dtype="int32", name="mask")
    h = layers.Embedding(40, 8)(ids) + layers.Embedding(7, 8)(keras.ops.arange(7))
    allowed = keras.ops.cast(keras.ops.expand_dims(mask, 1), "bool")
    h = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 4)(h, h, attention_mask=allowed))
    return keras.Model([ids, mask], {"steps": h, "pooled": layers.Dense(8, activation="tanh")(h[:, 0])})


@kind(floats(6, 8))
def rotary_positions() -> Any:
    """Attention with rotary positions, in plain TensorFlow."""
    w = weights(8, 24)
    angle = tf.constant(np.outer(np.arange(6), 1.0 / 10.0 ** np.arange(4)).astype(np.float32))

    def turn(x: Any) -> Any:
        a, b = tf.split(x, 2, -1)
        return tf.concat([a * tf.cos(angle) - b * tf.sin(angle), a * tf.sin(angle) + b * tf.cos(angle)], -1)

    def serve(x: Any) -> Any:
        query, key, value = tf.split(tf.einsum("...ti,ij->...tj", x, w), 3, -1)
        scores = tf.matmul(turn(query), turn(key), transpose_b=True) / 8.0**0.5
        mask = tf.linalg.band_part(tf.ones([6, 6]), -1, 0)
        return tf.nn.softmax(tf.where(mask > 0, scores, -1e9)) @ value

    return module(serve, spec(None, 6, 8), w=w)


@kind(named(token=integers(20), keys=floats(5, 8), values=floats(5, 8)))
def cached_step() -> Any:
    """One decoding step with cached keys and values."""
    embed, project = weights(20, 8), weights(8, 24)

    def serve(token: Any, keys: Any, values: Any) -> Any:
        query, key, value = tf.split((tf.gather(embed, token) @ project)[:, None], 3, -1)
        keys, values = tf.concat([keys, key], 1), tf.concat([values, value], 1)
        seen = tf.nn.softmax(tf.matmul(query, keys, transpose_b=True)) @ values
        return {"logits": tf.matmul(seen[:, 0], embed, transpose_b=True), "new_keys": keys, "new_values": values}

    specs = spec(None, dtype=tf.int32), spec(None, None, 8), spec(None, None, 8)
    return module(serve, *specs, embed=embed, project=project)


@kind(floats(12, 12, 3))
def vision_transformer() -> Any:
    """Vision transformer: patches, class token, positions."""
    x = keras.Input((12, 12, 3), name="image")
    patches = layers.Reshape((9, 8))(layers.Conv2D(8, 4, 4)(x))
    h = layers.Dense(8)(patches) + layers.Embedding(9, 8)(keras.ops.arange(9))
    h = h + layers.MultiHeadAttention(2, 4)(layers.LayerNormalization()(h), layers.LayerNormalization()(h))
    return keras.Model(x, layers.Dense(5)(layers.GlobalAveragePooling1D()(h)))


@kind(floats(8, 8, 4))
def shifted_windows() -> Any:
    """Windows that are shifted by roll, Swin's shape."""
    w = weights(4, 12)

    def serve(x: Any) -> Any:
        windows = tf.reshape(tf.roll(x, [-2, -2], [1, 2]), [-1, 2, 4, 2, 4, 4])
        windows = tf.reshape(tf.transpose(windows, [0, 1, 3, 2, 4, 5]), [-1, 16, 4])
        query, key, value = tf.split(windows @ w, 3, -1)
        h = tf.nn.softmax(tf.matmul(query, key, transpose_b=True)) @ value
        h = tf.transpose(tf.reshape(h, [-1, 2, 2, 4, 4, 4]), [0, 1, 3, 2, 4, 5])
        return tf.roll(tf.reshape(h, [-1, 8, 8, 4]), [2, 2], [1, 2])

    return module(serve, spec(None, 8, 8, 4), w=w)


@kind(floats(10, 6))
def linear_attention() -> Any:
    """Linear attention and a state-space scan by cumulative sums."""
    x = keras.Input((10, 6), name="x")
    query, key = layers.Dense(6, activation="softplus")(x), layers.Dense(6, activation="softplus")(x)
    summed = keras.ops.cumsum(keras.ops.einsum("ntk,ntv->ntkv", key, x), 1)
    scale = keras.ops.einsum("ntk,ntk->nt", query, keras.ops.cumsum(key, 1))
    return keras.Model(x, keras.ops.einsum("ntk,ntkv->ntv", query, summed) / scale[..., None])
