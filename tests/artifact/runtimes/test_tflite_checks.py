"""Operators that LiteRT lets read other memory answer with an error, and what they answer else stays the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from modelyard.artifact.runtimes import TfliteModel, prepare_tflite

Call = Callable[..., npt.NDArray[Any]]
X = np.arange(1, 25, dtype=np.float32).reshape(4, 6)
MATRIX = tf.TensorSpec([None, None], tf.float32)
INDEX, INDICES, PAIRS = tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.int32), tf.TensorSpec([2, 2], tf.int32)
LONGS, TWO = tf.TensorSpec([None], tf.int64), tf.TensorSpec([2], tf.int32)


def convert(function: Callable[..., Any], *specs: tf.TensorSpec) -> bytes:
    module = tf.Module()
    module.call = tf.function(function, input_signature=[
        tf.TensorSpec(spec.shape, spec.dtype, name=f"x{place}") for place, spec in enumerate(specs)
    ])  # fmt: skip
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.call.get_concrete_function()], module)
    content: bytes = converter.convert()
    return content


def load(content: bytes) -> Call:
    model = TfliteModel(Interpreter(model_content=content), content)

    def call(*arrays: Any) -> npt.NDArray[Any]:
        feed = {f"x{place}": np.asarray(array) for place, array in enumerate(arrays)}
        (value,) = model.run("serving_default", feed).values()
        return value

    return call


def ints(*values: Any) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)


#: A function, what it takes, inputs that TensorFlow answers, and such that it refuses.
CASES: dict[str, tuple[Callable[..., Any], tuple[tf.TensorSpec, ...], list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "a row": (
        lambda x, i: x[i], (MATRIX, INDEX),
        [(X, np.int32(each)) for each in (0, 3, -1, -4)],
        [(X, np.int32(each)) for each in (4, -5, 10**9, 2**31 - 1, -(2**31))],
    ),
    "a number between others": (
        lambda x, i: x[1:3, i], (MATRIX, INDEX),
        [(X, np.int32(each)) for each in (0, 5, -6)], [(X, np.int32(each)) for each in (6, -7)],
    ),
    "behind an ellipsis": (
        lambda x, i: tf.stack([x, x])[1, ..., i], (MATRIX, INDEX),
        [(X, np.int32(each)) for each in (0, 5, -6)], [(X, np.int32(each)) for each in (6, -7)],
    ),
    "a known column": (lambda x: x[:, 3], (MATRIX,), [(X,), (X[:, :4],)], [(X[:, :3],), (X[:, :0],)]),
    "the last row, and a part": (lambda x: x[-2, 1:3], (MATRIX,), [(X,), (X[:2],)], [(X[:1],), (X[:0],)]),
    "two known axes": (lambda x: x[1, -1], (MATRIX,), [(X,), (X[:, :1],)], [(X[:1],), (X[:, :0],)]),
    "a text": (
        lambda x: x[:, 1], (tf.TensorSpec([None, None], tf.string),),
        [(np.array([[b"a", b"bc"], [b"d", b""]], object),)], [(np.array([[b"a"]], object),)],
    ),
    "lengths": (
        lambda x, n: tf.reverse_sequence(x, n, seq_axis=1), (MATRIX, INDICES),
        [(X, ints(0, 1, 5, 6))], [(X, ints(0, 0, 0, 7)), (X, ints(-1, 0, 0, 0)), (X, ints(0, 10, 0, 0))],
    ),
    "long lengths": (
        lambda x, n: tf.reverse_sequence(x, n, seq_axis=1), (MATRIX, LONGS),
        [(X, np.array([0, 1, 5, 6]))], [(X, np.array([0, 0, 0, 7])), (X, np.array([2**32 + 1, 0, 0, 0]))],
    ),
    "axes": (
        lambda x, order: tf.transpose(x, order), (MATRIX, TWO),
        [(X, ints(0, 1)), (X, ints(1, 0)), (X, ints(-1, 0))],
        [(X, ints(0, 0)), (X, ints(1, -1)), (X, ints(0, 2))],
    ),
    "crops": (
        lambda x, crops: tf.batch_to_space(tf.reshape(x, [4, 2, 3, 1]), [2, 2], crops), (MATRIX, PAIRS),
        [(X, ints([0, 0], [1, 2]))], [(X, ints([2**31 - 1] * 2, [2**31 - 1] * 2)), (X, ints([0, -1], [0, 0]))],
    ),
    "borders": (
        lambda x, borders: tf.space_to_batch(tf.reshape(x, [4, 2, 3, 1]), [2, 2], borders), (MATRIX, PAIRS),
        [(X, ints([0, 0], [1, 0]))], [(X, ints([-(2**31)] * 2, [-(2**31), 1 - 2**31])), (X, ints([-1, 1], [0, 1]))],
    ),
    "remainders": (
        lambda x, y: x % y, (INDICES, INDICES),
        [(ints(-(2**31), 7, -7, -7, 2**31 - 1), ints(-1, -1, 3, -3, -(2**31)))], [(ints(1), ints(0))],
    ),
    "long remainders": (
        lambda x, y: x % y, (LONGS, LONGS),
        [(np.array([-(2**63), 7, -7, -7]), np.array([-1, -1, 3, -3]))], [(np.array([1]), np.array([0]))],
    ),
    "remainders by a known number": (
        lambda x: x % -1, (INDICES,), [(ints(-(2**31), 5),)], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operator_keeps_to_its_tensor(name: str) -> None:
    function, specs, fine, refused = CASES[name]
    content = convert(function, *specs)
    changed = prepare_tflite(content)
    assert changed != content
    call = load(changed)
    for arrays in fine:
        expected = np.asarray(function(*(tf.constant(array) for array in arrays)))
        np.testing.assert_array_equal(call(*arrays), expected)
    for arrays in refused:
        with pytest.raises(RuntimeError):
            call(*arrays)
    # What was refused leaves nothing behind.
    for arrays in fine:
        np.testing.assert_array_equal(call(*arrays), np.asarray(function(*(tf.constant(each) for each in arrays))))


def test_what_is_within_whatever_a_request_holds_stays_as_it_is() -> None:
    def call(x: Any) -> Any:
        rows = tf.shape(x)[0]
        return tf.reshape(tf.transpose(x[:, 1:3]), [rows * 2]) + tf.cast(rows % 7, tf.float32)

    content = convert(call, MATRIX)
    assert prepare_tflite(content) is content


def test_an_index_in_a_loop_is_checked() -> None:
    def call(x: Any, i: Any) -> Any:
        return tf.while_loop(lambda k, _: k < 3, lambda k, total: (k + 1, total + x[i + k]), [0, x[0]])[1]

    run = load(prepare_tflite(convert(call, MATRIX, INDEX)))
    np.testing.assert_array_equal(run(X, np.int32(1)), X[0] + X[1] + X[2] + X[3])
    with pytest.raises(RuntimeError, match="index out of bounds"):
        run(X, np.int32(2))


def test_sizes_are_those_of_the_file_but_for_the_rows() -> None:
    run = load(convert(lambda x: tf.reduce_sum(x, [1, 2]), tf.TensorSpec([1, None, 6], tf.float32)))
    for x in (X[np.newaxis], np.stack([X[:2]] * 3), np.zeros((0, 4, 6), np.float32)):
        np.testing.assert_allclose(run(x), x.sum((1, 2)))
    for x in (X, X[0], X[np.newaxis, :, :5], X[np.newaxis, :, :0], X[np.newaxis, np.newaxis]):
        with pytest.raises(ValueError, match=r"input 'x0' has the shape \[.*\]; expected \[-1, -1, 6\]"):
            run(x)
