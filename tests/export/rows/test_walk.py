"""The operations of a model say whether the rows of a batch depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import pytest
import tensorflow as tf

from modelyard.export.rows import walk_rows

Outputs = Mapping[str, Any]


def traced(function: Callable[..., Outputs], *shapes: tuple[int | None, ...], dtype: Any = tf.float32) -> Any:
    signature = [tf.TensorSpec(shape, dtype, name=f"x{index}") for index, shape in enumerate(shapes)]
    return tf.function(function, input_signature=signature, autograph=False)


def layers(*parts: Any) -> Callable[[Any], Outputs]:
    model = keras.Sequential(parts)
    return lambda x: {"y": model(x, training=False)}


WEIGHTS = tf.constant([[1.0] * 3] * 4)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: {"y": tf.nn.softmax(x @ WEIGHTS), "class": tf.argmax(x @ WEIGHTS, -1)}, (None, 4)),
        (lambda x: {"y": tf.concat([x[:, 1:], x[..., :1]], 1), "s": tf.reduce_sum(x, -1)}, (None, 4)),
        (lambda x: {"y": tf.tensordot(x, WEIGHTS, 1)}, (None, None, 4)),
        (lambda x: {"y": tf.einsum("bte,ef->btf", x, WEIGHTS)}, (None, None, 4)),
        (lambda x: {"y": tf.transpose(tf.cumsum(tf.transpose(x), axis=0))}, (None, 4)),
        (lambda x: {"y": tf.sort(x, -1), "k": tf.math.top_k(x, 2)[1]}, (None, 4)),
        (lambda x: {"y": x + tf.zeros(tf.shape(x)), "z": tf.gather(x, [1, 0], axis=1)}, (None, 4)),
        (lambda x: {"y": tf.function(lambda each: each @ WEIGHTS)(x)}, (None, 4)),
    ],
    ids=["dense", "slices", "tensordot", "einsum", "transposed", "sorted", "shapes", "nested"],
)
def test_what_is_computed_row_by_row_is_independent(function: Callable[..., Outputs], shape: tuple[int | None]) -> None:
    found = walk_rows(traced(function, shape))
    assert (found.verdict, found.reason) == ("independent", "every operation carries the rows one by one")


@pytest.mark.parametrize(
    ("parts", "shape"),
    [
        ("Conv2D(2, 3), BatchNormalization(), MaxPool2D(), Flatten(), LayerNormalization(), Dense(2)", (None, 6, 6, 3)),
        ("LSTM(2), Dense(2)", (None, None, 3)),
        ("Bidirectional(GRU(2, return_sequences=True)), GlobalMaxPooling1D()", (None, 4, 3)),
    ],
    ids=["convolutions", "lstm", "gru"],
)
def test_usual_layers_are_independent(parts: str, shape: tuple[int | None, ...]) -> None:
    made = eval(f"[{parts}]", vars(keras.layers))
    found = walk_rows(traced(layers(*made), shape))
    assert found.verdict == "independent", found.reason


def test_attention_over_free_lengths_is_independent() -> None:
    layer = keras.layers.MultiHeadAttention(2, 4)
    layer.build((None, None, 8), (None, None, 8))
    found = walk_rows(traced(lambda x: {"y": layer(x, x)}, (None, None, 8)))
    assert found.verdict == "independent", found.reason


def trained(x: Any) -> Outputs:
    mean, variance = tf.nn.moments(x, axes=[0])
    return {"y": tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)}


def newton(x: Any) -> Outputs:
    """Square roots, until all of them have converged."""
    (root,) = tf.while_loop(
        lambda root: tf.reduce_max(tf.abs(root * root - tf.abs(x))) > 1e-4,
        lambda root: (0.5 * (root + tf.abs(x) / root),),
        (tf.ones_like(x),),
    )
    return {"y": root}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: {"y": tf.cumsum(x, axis=0)}, "goes along the rows"),
        (trained, "reduces over the rows"),
        (lambda x: {"y": x / tf.reduce_max(x)}, "reduces over the rows"),
        (lambda x: {"y": x / tf.cast(tf.shape(x)[0], tf.float32)}, "computes with the number of rows"),
        (lambda x: {"y": x + tf.random.uniform(tf.shape(x))}, "draws random numbers"),
        (lambda x: {"y": tf.reverse(x, [0])}, "goes along the rows"),
        (lambda x: {"y": tf.matmul(x, tf.matmul(x, x, transpose_a=True))}, "sums over the rows"),
        (lambda x: {"y": tf.cond(tf.reduce_any(x > 3), lambda: x, lambda: 2 * x)}, "reduces over the rows"),
        (lambda x: {"y": tf.einsum("ni,nj->ij", x, x)}, "sums over the rows"),
        (lambda x: {"y": tf.pad(x, [[1, 0], [0, 0]])[1:]}, "adds rows"),
        (newton, "a loop whose end depends on the rows' numbers"),
    ],
)
def test_what_mixes_rows_is_dependent(function: Callable[..., Outputs], reason: str) -> None:
    found = walk_rows(traced(function, (None, 4)))
    assert found.verdict == "dependent"
    assert reason in found.reason


def test_batch_normalization_in_training_mode_is_dependent() -> None:
    def function(x: Any) -> Outputs:
        return {"y": tf.compat.v1.nn.fused_batch_norm(x, [1.0] * 3, [0.0] * 3, is_training=True)[0]}

    found = walk_rows(traced(function, (None, 4, 4, 3)))
    assert (found.verdict, "mean and variance of the batch" in found.reason) == ("dependent", True)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: {"y": tf.nn.softmax(x, axis=0)}, "a parameter that is computed"),
        (lambda x: {"y": tf.sort(x, axis=0)}, "sort"),
        (lambda x: {"y": tf.reshape(tf.transpose(x), [-1, 4])}, "whose rows are not first"),
        (lambda x: {"y": x[:, None, :] + x}, "over another axis"),
        (lambda x: {"y": x - x[0]}, "takes some of the rows"),
        (lambda x: {"y": tf.concat([x[:1], x], 0)[:-1]}, "takes some of the rows"),
        (lambda x: {"y": tf.matmul(x, x, transpose_b=True)}, "multiplies the rows with each other"),
        (lambda x: {"y": tf.gather(*tf.unique(x[:, 0]))}, "nothing is known of"),
        (lambda x: {"y": x + tf.cast(tf.range(tf.shape(x)[0]), tf.float32)[:, None]}, "numbers the rows"),
        (lambda x: {"y": x + tf.constant([[1.0], [2.0]])}, "a constant with a size for the rows"),
        (lambda x: {"y": 2 * x, "weights": tf.constant([1.0, 2.0])}, "has no row for each of the batch"),
        (lambda x: {"y": tf.map_fn(lambda row: 2 * row, x)}, "depends on the batch"),
    ],
)
def test_what_no_rule_covers_is_unknown(function: Callable[..., Outputs], reason: str) -> None:
    found = walk_rows(traced(function, (None, 4)))
    assert found.verdict == "unknown"
    assert reason in found.reason


def test_a_fixed_batch_is_unknown() -> None:
    found = walk_rows(traced(lambda x: {"y": 2 * x}, (3, 4)))
    assert (found.verdict, "no batch dimension" in found.reason) == ("unknown", True)


def test_a_function_that_training_has_differentiated_is_read_as_it_is_called() -> None:
    """TensorFlow puts what its gradient needs behind the outputs of a function's graph."""
    weights = tf.Variable(WEIGHTS)

    @tf.function
    def network(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(tf.sigmoid(x @ weights))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(network(x)[:, 0])
        return tape.gradient(loss, weights)

    serving = traced(lambda x: {"y": network(x)}, (None, 4))
    assert step(tf.ones([5, 4])).shape == (4, 3)
    assert step.get_concrete_function(tf.TensorSpec((None, 4), tf.float32)) is not None
    found = walk_rows(serving)
    assert (found.verdict, found.reason) == ("independent", "every operation carries the rows one by one")
