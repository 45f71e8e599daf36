"""Operators that tf2onnx lacks or writes wrongly: what onnxruntime computes is what TensorFlow computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf

from modelyard.export.formats import convert_function, freeze

RNG = np.random.default_rng(0)
ROWS = 6
WEIGHTS = RNG.normal(size=(4, 4)).astype(np.float32)


def floats(*shape: int) -> Any:
    return RNG.normal(size=(ROWS, *shape)).astype(np.float32)


def whole(dtype: str, low: int = -50, high: int = 50) -> Any:
    return RNG.integers(low, high, (ROWS, 3)).astype(dtype)


def table(keys: list[Any], values: list[Any], key_dtype: Any, default: Any) -> Any:
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(keys, key_dtype), tf.constant(values))
    return tf.lookup.StaticHashTable(initializer, default)


def converted(function: Callable[[Any], Any], tensor: Any) -> tuple[Any, Any]:
    """A function in TensorFlow and in onnxruntime."""
    spec = tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype, name="x")
    traced = tf.function(lambda x: {"y": function(x)}, input_signature=[spec])
    model = convert_function(freeze(traced, target="onnx"), opset=18)
    return traced, onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def check(function: Callable[[Any], Any], values: Any, tolerance: float = 0.0) -> None:
    """Converts a function, and compares at the values' batch and at a batch of one."""
    tensor = tf.constant(values.tolist() if values.dtype == object else values)
    traced, session = converted(function, tensor)
    for rows in (values, values[:1]):
        expected = traced(tensor[: len(rows)])["y"].numpy()
        feed = rows if rows.dtype != object else np.vectorize(bytes.decode, otypes=[object])(rows)
        (found,) = session.run(["y"], {"x": feed})
        assert found.shape == expected.shape
        if expected.dtype == object:
            assert [item.encode() for item in found.ravel()] == expected.ravel().tolist()
        else:
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("operation", [lambda x, y: x // y, lambda x, y: x % y, tf.truncatediv, tf.truncatemod])
def test_the_least_integer_by_minus_one(operation: Callable[[Any, Any], Any], dtype: str) -> None:
    """onnxruntime ends the process on it."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    pairs = np.array([[least, -1], [7, -1], [-7, 2], [most, -1], [0, -1]], dtype)
    check(lambda pair: operation(pair[:, 0], pair[:, 1]), pairs)
    check(lambda pair: operation(pair, tf.constant([1, -1], pair.dtype)), pairs)


@pytest.mark.parametrize("divisor", [7, -7])
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_division_of_negative_numbers(dtype: str, divisor: int) -> None:
    values = whole(dtype)
    assert values.min() < 0
    check(lambda x: x // divisor, values)
    check(lambda x: x % divisor, values, 0 if dtype != "float32" else 1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.where(x > 0, tf.math.log(x), 0.0),
        lambda x: tf.where(x[:, 0] > 0, x[:, 0] / x[:, 1], -1.0),
        lambda x: tf.compat.v1.where(x[:, 0] > 0, tf.sqrt(x), x),
        tf.math.expm1,
        keras.activations.celu,
        tf.math.lgamma,
    ],
    ids=["log", "quotient", "rows", "expm1", "celu", "lgamma"],
)
def test_what_is_not_chosen_does_not_count_where_it_is_infinite_or_nan(function: Any) -> None:
    check(function, np.array([[2, 0], [0, 0], [-120, 3], [1, 4], [-3.5, 7]], np.float32), 1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda k: tf.gather(WEIGHTS, k),
        lambda k: tf.gather(WEIGHTS, tf.cast(k, tf.int32)[:, :2], axis=1),
        lambda k: tf.nn.embedding_lookup(WEIGHTS, tf.reshape(k, [-1, 1])),
        lambda k: tf.gather_nd(WEIGHTS, k[..., tf.newaxis]),
        lambda k: tf.gather(tf.tile(WEIGHTS[tf.newaxis], [tf.shape(k)[0], 1, 1]), k, batch_dims=1),
    ],
    ids=["rows", "columns", "embedding", "nd", "batch"],
)
def test_an_index_below_zero_is_an_error(function: Any) -> None:
    values = whole("int64", 0, 4)
    check(function, values)
    _, session = converted(function, tf.constant(values))
    with pytest.raises(Exception, match="out of data bounds|[Ii]nvalid ind"):
        session.run(["y"], {"x": -1 - values})


@pytest.mark.parametrize(
    "part",
    [
        lambda x, n: tf.slice(x, [n, 0], [-1, 2]),
        lambda x, n: tf.slice(x, [0, 2], [n, -1]),
        lambda x, n: tf.slice(x, [n, 2], [2, -1]),
    ],
)
def test_a_slice_of_all_that_is_left(part: Callable[[Any, Any], Any]) -> None:
    values = whole("int32")
    traced, session = converted(lambda x: part(x, x[0, 0]), tf.constant(values))
    for first in range(ROWS - 1):
        values[0, 0] = first
        expected = traced(tf.constant(values))["y"].numpy()
        (found,) = session.run(["y"], {"x": values})
        assert found.shape == expected.shape and found.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "float32", "float64"])
def test_order_of_numbers_that_float32_does_not_hold(dtype: str) -> None:
    first = {"uint8": 250, "float32": 2**23, "int32": 2**30}.get(dtype, 2**50)
    values = (first + RNG.permuted(np.tile(np.arange(5), (ROWS, 1)), axis=1)).astype(dtype)
    check(lambda x: tf.sort(x, 1), values)
    check(lambda x: tf.math.top_k(x, 3)[0], values)
    check(lambda x: tf.math.top_k(x, tf.shape(x)[1] - 2)[1], values)


@pytest.mark.parametrize(
    ("keys", "values", "key_dtype", "default", "asked"),
    [
        (["a", "b", "ä"], [1, 2, 3], tf.string, -1, np.array([[b"a"], [b"q"], ["ä".encode()]], object)),
        ([1, 5, 9], [0.5, 1.5, 2.5], tf.int64, -1.0, np.array([[1], [2], [9]])),
        ([1, 5, 9], ["one", "five", "nine"], tf.int64, "none", np.array([[5], [2]])),
    ],
)
def test_lookup_tables(keys: Any, values: Any, key_dtype: Any, default: Any, asked: Any) -> None:
    static = table(keys, values, key_dtype, default)
    check(static.lookup, asked)


def test_layers_that_look_up() -> None:
    words = keras.layers.StringLookup(vocabulary=["x", "y", "z"])
    check(words, np.array([[b"z"], [b"q"], [b"x"]], object))
    numbers = keras.layers.IntegerLookup(vocabulary=[10, 20, 30], output_mode="one_hot")
    check(numbers, np.array([[30], [7], [10]]))


def test_discretization() -> None:
    values = np.array([[-2.0], [-1.0], [0.5], [9.0], [np.nan]], np.float32)
    check(keras.layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0]), values)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(5, 7), (20, 11)])
def test_antialiased_resize(method: str, size: tuple[int, int]) -> None:
    check(lambda x: tf.image.resize(x, size, method=method, antialias=True), floats(16, 12, 3), 1e-5)


def test_einsum_with_an_ellipsis() -> None:
    weight = tf.constant(floats(2)[:3])
    check(lambda x: tf.einsum("...i,ij->...j", x, weight), floats(4, 3), 1e-6)


def test_spectra() -> None:
    check(lambda x: tf.abs(tf.signal.stft(x, 16, 8)), floats(64), 1e-5)
    check(lambda x: tf.math.real(tf.signal.rfft(x)) - tf.math.imag(tf.signal.rfft(x)), floats(16), 1e-5)
