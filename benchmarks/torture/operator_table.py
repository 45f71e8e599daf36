"""Operators whose indices, sizes, axes, lengths and divisors come from a request, and extremes of each.

Runtimes trust such numbers in places: what is here has ended their processes, or was answered with other memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

INT, FLOAT = np.int32, np.float32
X = np.arange(1, 25, dtype=FLOAT).reshape(4, 6)
EXTREMES = (2**31 - 1, -(2**31), 10**9, -(10**9), 10**5, -(10**5), 100, -100, 17, -1, -2, 7, 6, 5, -7, 0)
#: Of sizes that the request asks for: whoever asks for a billion rows gets them, from TensorFlow too.
SIZES = tuple(each for each in EXTREMES if each <= 100)
#: Rows and columns of a second matrix beside X.
SHAPES = [(rows, columns) for rows in (0, 1, 4, 5) for columns in (0, 1, 6, 7)]

_MATRIX, _VECTOR, _PAIR = tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32), tf.TensorSpec([2], tf.int32)
_MATRIX_OF_INTS, _SCALAR = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([], tf.int32)
_FLOATS, _LONGS = tf.TensorSpec([None]), tf.TensorSpec([None], tf.int64)
_PLACES, _PAIRS = tf.TensorSpec([None, 2], tf.int32), tf.TensorSpec([2, 2], tf.int32)

Inputs = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A model of one operator.

    Attributes:
        function: Of the tensors that the specs describe.
        specs: Dtypes and shapes of its inputs.
        good: Inputs that every runtime must answer as TensorFlow does, whatever came before.
        bad: The extremes.
    """

    function: Callable[..., Any]
    specs: Sequence[tf.TensorSpec]
    good: Inputs
    bad: Sequence[Inputs]


def numbers(values: Sequence[int] = EXTREMES) -> list[Any]:
    """Each as a scalar."""
    return [INT(each) for each in values]


def vectors(length: int, values: Sequence[int] = EXTREMES) -> list[Any]:
    """Each everywhere, and each in the last place behind zeros."""
    everywhere = [np.full(length, each, INT) for each in values]
    return everywhere + [np.array([0] * (length - 1) + [each], INT) for each in values]


def matrices() -> list[Any]:
    """Ones of all shapes."""
    return [np.ones(shape, FLOAT) for shape in SHAPES]


def of_x(function: Any, spec: Any, good: Any, bad: Sequence[Any]) -> Operator:
    """An operator of X and one more."""
    return Operator(function=function, specs=(_MATRIX, spec), good=(X, good), bad=[(X, each) for each in bad])


def of_ints(function: Any, spec: Any = _VECTOR) -> Operator:
    """An operator of two vectors of integers."""
    kind = spec.dtype.as_numpy_dtype
    least = np.iinfo(kind).min
    bad = [(np.full(1, 7, kind), np.full(1, each, kind)) for each in EXTREMES]
    bad += [(np.full(1, each, kind), np.full(1, -1, kind)) for each in (least, least + 1, -(2**31), 0)]
    good = (np.array([9, -9, 4], kind), np.array([4, 4, 3], kind))
    return Operator(function=function, specs=(spec, spec), good=good, bad=bad)


def ints(*values: int) -> Any:
    """A vector."""
    return np.array(values, INT)


def _windows(x: Any) -> Any:
    return tf.reshape(x, [4, 2, 3, 1])


def _image(x: Any) -> Any:
    return tf.reshape(x, [1, 4, 6, 1])


def _looped(x: Any, first: Any) -> Any:
    return tf.while_loop(
        lambda step, _: step < 3, lambda step, sum_: (step + 1, sum_ + tf.gather(x, first + step)),
        [0, tf.zeros_like(x[0])],
    )[1]  # fmt: skip


def _boxes() -> list[Any]:
    starts, ends = (0.0, -1e9, 1e9, np.nan, np.inf), (1.0, 1e9, -1e9, np.nan, np.inf)
    return [np.array([[start, start, end, end]], FLOAT) for start in starts for end in ends]


def _sparse(indices: Any, sizes: Any, values: Any) -> Any:
    return tf.raw_ops.SparseToDense(
        sparse_indices=indices, output_shape=sizes, sparse_values=values, default_value=0.0, validate_indices=False
    )


def _segment(kind: str) -> Operator:
    function = getattr(tf.math, f"unsorted_segment_{kind}")
    bad = [(X, each, INT(5)) for each in [*vectors(4), ints(0, 0), np.zeros(9, INT)]]
    bad += [(X, ints(0, 0, 0, 0), each) for each in numbers(SIZES)]
    return Operator(function=function, specs=(_MATRIX, _VECTOR, _SCALAR), good=(X, ints(0, 4, 4, 1), INT(5)), bad=bad)


#: By the name of the model.
OPERATORS: dict[str, Operator] = {
    "add": of_x(lambda x, w: x + w, _MATRIX, X, matrices()),
    "argmax": of_x(tf.argmax, _SCALAR, INT(1), numbers()),
    "batch_to_space": Operator(
        function=lambda x, block, crops: tf.batch_to_space(_windows(x), block, crops),
        specs=(_MATRIX, _PAIR, _PAIRS), good=(X, ints(2, 2), np.zeros((2, 2), INT)),
        bad=[(X, each, np.zeros((2, 2), INT)) for each in vectors(2)]
        + [(X, ints(2, 2), each.reshape(2, 2)) for each in vectors(4)],
    ),
    "bincount": Operator(
        function=lambda i: tf.math.bincount(i, minlength=5, maxlength=5),
        specs=(_VECTOR,), good=(ints(1, 1, 4),), bad=[(each,) for each in vectors(3)],
    ),
    "boolean_mask": of_x(
        lambda x, mask: tf.boolean_mask(x, mask > 0), _VECTOR, ints(1, 0, 1, 1),
        [np.ones(rows, INT) for rows in (0, 1, 5, 9)],
    ),
    "broadcast_to": of_x(tf.broadcast_to, _PAIR, ints(4, 6), vectors(2, SIZES)),
    "cast": Operator(
        function=lambda x: tf.gather(tf.constant([1.0, 2.0, 3.0]), tf.cast(x, tf.int32)),
        specs=(_FLOATS,), good=(np.array([0, 2], FLOAT),),
        bad=[(np.full(2, each, FLOAT),) for each in (1e9, -1e9, 1e30, np.nan, np.inf, 3)],
    ),
    "concat": of_x(lambda x, w: tf.concat([x, w], 0), _MATRIX, X, matrices()),
    "crop_box": of_x(
        lambda x, box: tf.image.crop_and_resize(_image(x), box, [0], [2, 2]), tf.TensorSpec([1, 4]),
        np.array([[0, 0, 1, 1]], FLOAT), _boxes(),
    ),
    "crop_image": of_x(
        lambda x, i: tf.image.crop_and_resize(_image(x), tf.constant([[0.0, 0.0, 1.0, 1.0]]), i, [2, 2]),
        tf.TensorSpec([1], tf.int32), ints(0), vectors(1),
    ),
    "cumsum": of_x(tf.cumsum, _SCALAR, INT(1), numbers()),
    "dynamic_partition": of_x(
        lambda x, i: tf.dynamic_partition(x, i, 2)[1], _VECTOR, ints(0, 1, 1, 0), [*vectors(4), ints(0, 0)]
    ),
    "embedding": Operator(
        function=lambda i: tf.nn.embedding_lookup(tf.reshape(tf.range(24.0), [4, 6]), i),
        specs=(_VECTOR,), good=(ints(3, 0),), bad=[(each,) for each in vectors(3)],
    ),
    "expand_dims": of_x(tf.expand_dims, _SCALAR, INT(1), numbers()),
    "fill": Operator(
        function=lambda rows: tf.fill([rows], 1.0), specs=(_SCALAR,), good=(INT(3),),
        bad=[(each,) for each in numbers(SIZES)],
    ),
    "floor_div": of_ints(lambda a, b: a // b),
    "floor_div_64": of_ints(lambda a, b: a // b, _LONGS),
    "floor_mod": of_ints(lambda a, b: a % b),
    "floor_mod_64": of_ints(lambda a, b: a % b, _LONGS),
    "gather": of_x(tf.gather, _VECTOR, ints(3, 0, 1), vectors(3)),
    "gather_batch": of_x(
        lambda x, i: tf.gather(x, i, axis=1, batch_dims=1), _MATRIX_OF_INTS, np.array([[5], [0], [1], [2]], INT),
        [*(each.reshape(4, 1) for each in vectors(4)), np.zeros((9, 1), INT), np.zeros((2, 1), INT)],
    ),
    "gather_nd": of_x(
        tf.gather_nd, _PLACES, np.array([[3, 5]], INT), [each.reshape(1, 2) for each in vectors(2)]
    ),
    "index": of_x(lambda x, i: x[i], _SCALAR, INT(3), numbers()),
    "linspace": Operator(
        function=lambda count: tf.linspace(0.0, 1.0, count), specs=(_SCALAR,), good=(INT(3),),
        bad=[(each,) for each in numbers(SIZES)],
    ),
    "loop": of_x(_looped, _SCALAR, INT(1), numbers()),
    "matmul": of_x(tf.matmul, _MATRIX, np.ones((6, 2), FLOAT), [np.ones((n, 2), FLOAT) for n in (0, 1, 5, 7)]),
    "mirror_pad": of_x(
        lambda x, by: tf.pad(x, by, "REFLECT"), _PAIRS, np.ones((2, 2), INT),
        [each.reshape(2, 2) for each in vectors(4, SIZES)],
    ),
    "non_max_suppression": of_x(
        lambda x, most: tf.image.non_max_suppression(x[:, :4], x[:, 4], most), _SCALAR, INT(2), numbers()
    ),
    "one_hot": Operator(
        function=tf.one_hot, specs=(_VECTOR, _SCALAR), good=(ints(0, 4), INT(5)),
        bad=[(each, INT(5)) for each in vectors(3)] + [(ints(0, 1, 2), each) for each in numbers(SIZES)],
    ),
    "pad": of_x(tf.pad, _PAIRS, np.ones((2, 2), INT), [each.reshape(2, 2) for each in vectors(4, SIZES)]),
    "range": Operator(
        function=tf.range, specs=(_SCALAR, _SCALAR, _SCALAR), good=(INT(0), INT(5), INT(2)),
        bad=[(INT(0), each, INT(1)) for each in numbers(SIZES)] + [(INT(0), INT(10), each) for each in numbers()],
    ),
    "rank": of_x(tf.reshape, _VECTOR, ints(3, 8), [np.ones(k, INT) for k in (0, 1, 9, 40)]
                 + [ints(4, 6, *[1] * more) for more in (3, 6, 9, 40)]),
    "reduce_any": of_x(lambda x, axes: tf.reduce_any(x > 3, axes), _VECTOR, ints(1), vectors(2)),
    "reduce_max": of_x(tf.reduce_max, _VECTOR, ints(1), vectors(2)),
    "reduce_sum": of_x(tf.reduce_sum, _VECTOR, ints(1), vectors(2)),
    "repeat": of_x(
        lambda x, times: tf.repeat(x, times, 0), _VECTOR, ints(1, 0, 2, 1), [*vectors(4, SIZES), np.ones(3, INT)]
    ),
    "reshape": of_x(tf.reshape, _PAIR, ints(8, 3), vectors(2)),
    "resize": of_x(lambda x, size: tf.image.resize(_image(x), size), _PAIR, ints(8, 3), vectors(2, SIZES)),
    "resize_nearest": of_x(
        lambda x, size: tf.image.resize(_image(x), size, "nearest"), _PAIR, ints(8, 3), vectors(2, SIZES)
    ),
    "reverse": of_x(tf.reverse, tf.TensorSpec([1], tf.int32), ints(1), vectors(1)),
    "reverse_sequence": of_x(
        lambda x, lengths: tf.reverse_sequence(x, lengths, seq_axis=1, batch_axis=0), _VECTOR, ints(1, 2, 3, 6),
        [*vectors(4), ints(0, 0), np.zeros(9, INT)],
    ),
    "roll": of_x(lambda x, by: tf.roll(x, by, 0), _SCALAR, INT(1), numbers()),
    "scatter_nd": Operator(
        function=lambda x, i, rows: tf.scatter_nd(i, x, tf.stack([rows, 6])),
        specs=(_MATRIX, tf.TensorSpec([None, 1], tf.int32), _SCALAR), good=(X, ints(3, 0, 0, 1).reshape(4, 1), INT(4)),
        bad=[(X, each.reshape(4, 1), INT(4)) for each in vectors(4)]
        + [(X, np.zeros((4, 1), INT), each) for each in numbers(SIZES)]
        + [(X, np.zeros((rows, 1), INT), INT(4)) for rows in (2, 9)],
    ),
    "segment_sum": of_x(
        tf.math.segment_sum, _VECTOR, ints(0, 0, 1, 2), [*vectors(4, SIZES), ints(3, 2, 1, 0), ints(0, 0)]
    ),
    "sequence_mask": Operator(
        function=lambda lengths: tf.sequence_mask(lengths, 5), specs=(_VECTOR,), good=(ints(1, 5),),
        bad=[(each,) for each in vectors(2)],
    ),
    "shift_right": of_ints(tf.bitwise.right_shift),
    "slice": Operator(
        function=tf.slice, specs=(_MATRIX, _PAIR, _PAIR), good=(X, ints(1, 2), ints(2, 3)),
        bad=[(X, each, ints(1, 1)) for each in vectors(2)] + [(X, ints(3, 3), each) for each in vectors(2)],
    ),
    "space_to_batch": Operator(
        function=lambda x, block, by: tf.space_to_batch(_windows(x), block, by),
        specs=(_MATRIX, _PAIR, _PAIRS), good=(X, ints(2, 3), np.zeros((2, 2), INT)),
        bad=[(X, each, np.zeros((2, 2), INT)) for each in vectors(2)]
        + [(X, ints(2, 3), each.reshape(2, 2)) for each in vectors(4, SIZES)],
    ),
    "sparse_to_dense": Operator(
        function=_sparse, specs=(_PLACES, _PAIR, _FLOATS),
        good=(np.array([[3, 5]], INT), ints(4, 6), np.ones(1, FLOAT)),
        bad=[(each.reshape(1, 2), ints(4, 6), np.ones(1, FLOAT)) for each in vectors(2)]
        + [(np.zeros((1, 2), INT), each, np.ones(1, FLOAT)) for each in vectors(2, SIZES)],
    ),
    "split": of_x(lambda x, sizes: tf.split(x, sizes, axis=1)[0], _PAIR, ints(2, 4), vectors(2)),
    "strided_slice": Operator(
        function=lambda x, begin, end: x[begin:end], specs=(_MATRIX, _SCALAR, _SCALAR), good=(X, INT(1), INT(3)),
        bad=[(X, begin, end) for begin in numbers() for end in numbers()],
    ),
    "strided_slice_by": of_x(lambda x, step: x[::step], _SCALAR, INT(2), numbers()),
    "tensor_scatter_add": Operator(
        function=tf.tensor_scatter_nd_add, specs=(_MATRIX, _PLACES, _FLOATS),
        good=(X, np.array([[3, 5], [3, 5]], INT), np.ones(2, FLOAT)),
        bad=[(X, each.reshape(1, 2), np.ones(1, FLOAT)) for each in vectors(2)]
        + [(X, np.zeros((3, 2), INT), np.ones(count, FLOAT)) for count in (0, 2, 9)],
    ),
    "tensor_scatter_update": Operator(
        function=tf.tensor_scatter_nd_update, specs=(_MATRIX, _PLACES, _FLOATS),
        good=(X, np.array([[3, 5]], INT), np.ones(1, FLOAT)),
        bad=[(X, each.reshape(1, 2), np.ones(1, FLOAT)) for each in vectors(2)],
    ),
    "tile": of_x(tf.tile, _PAIR, ints(2, 1), vectors(2, SIZES)),
    "top_k": of_x(lambda x, k: tf.math.top_k(x, k)[0], _SCALAR, INT(2), numbers()),
    "transpose": of_x(tf.transpose, _PAIR, ints(1, 0), vectors(2)),
    "truncate_div": of_ints(lambda a, b: tf.raw_ops.TruncateDiv(x=a, y=b)),
    "truncate_div_64": of_ints(lambda a, b: tf.raw_ops.TruncateDiv(x=a, y=b), _LONGS),
    "truncate_mod": of_ints(lambda a, b: tf.raw_ops.TruncateMod(x=a, y=b)),
    "unique": Operator(
        function=lambda i: tf.unique(i)[0], specs=(_VECTOR,), good=(ints(3, 3, -1, 5),), bad=[(ints(*EXTREMES),)]
    ),
    "unsorted_segment_max": _segment("max"),
    "unsorted_segment_sum": _segment("sum"),
    "where": of_x(lambda x, w: tf.where(x > 3, x, w), _MATRIX, X, matrices()),
}  # fmt: skip
