"""Steps of TensorFlow's own functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from benchmarks.programs.draw import Draw, Step, step


def _first(x: Any) -> Any:
    """A number for each row."""
    return tf.reshape(x, [tf.shape(x)[0], -1])[:, 0]


def _places(i: Any, size: int) -> Any:
    return tf.cast(tf.math.floormod(i, tf.cast(size, i.dtype)), tf.int32)


def _pad(d: Draw, x: Any) -> Any:
    mode = d.one("CONSTANT", "REFLECT", "SYMMETRIC")
    most = {"CONSTANT": 2, "SYMMETRIC": 1, "REFLECT": 0}[mode]
    edges = [
        [0, 0],
        *d.each(x, lambda size: [d.whole(0, min(2, size - 1 + most)), d.whole(0, min(2, size - 1 + most))]),
    ]
    return tf.pad(x, edges, mode, constant_values=d.one(0, 1, -2))


def _convolve(d: Draw, x: Any) -> Any:
    high, wide = (min(d.whole(1, 3), size) for size in x.shape[1:3])
    filters, padding = d.weights(high, wide, x.shape[3], d.whole(1, 3)), d.one("SAME", "VALID")
    if d.yes():
        return tf.nn.conv2d(x, filters, [d.whole(1, 3), d.whole(1, 2)], padding)
    return tf.nn.conv2d(x, filters, 1, "SAME", dilations=[d.whole(1, 2), d.whole(1, 2)])


def _enlarge(d: Draw, x: Any) -> Any:
    by, padding = d.whole(1, 3), d.one("SAME", "VALID")
    kernel = [max(by, d.whole(1, 3)) for _ in range(2)]
    more = [0, 0] if padding == "SAME" else [size - by for size in kernel]
    sizes = [size * by + rest for size, rest in zip(x.shape[1:3], more, strict=True)]
    filters = d.weights(*kernel, d.whole(1, 3), x.shape[3])
    return tf.nn.conv2d_transpose(x, filters, [tf.shape(x)[0], *sizes, filters.shape[2]], by, padding)


def _resize(d: Draw, x: Any) -> Any:
    kind = d.one("bilinear", "nearest", "bicubic", "area", "lanczos3", "gaussian", "mitchellcubic")
    return tf.image.resize(x, [d.whole(1, 9), d.whole(1, 9)], kind, antialias=d.yes())


def _patches(d: Draw, x: Any) -> Any:
    sizes = [1, min(d.whole(1, 3), x.shape[1]), min(d.whole(1, 3), x.shape[2]), 1]
    return tf.image.extract_patches(
        x, sizes, [1, d.whole(1, 2), d.whole(1, 2), 1], [1, 1, 1, 1], d.one("SAME", "VALID")
    )


def _reduced(d: Draw, x: Any) -> Any:
    names = ["sum", "max", "min"]
    if x.dtype.is_floating:
        names += ["mean", "prod", "std", "variance", "logsumexp", "euclidean_norm"]
    axes = [d.axis(x)] if d.yes() else list(range(1, len(x.shape)))
    return getattr(tf.math, f"reduce_{d.one(*names)}")(x, axes, keepdims=d.yes())


def _taken(d: Draw, x: Any, i: Any) -> Any:
    axis = d.axis(x)
    return tf.gather(x, _places(i, x.shape[axis]), axis=axis, batch_dims=1)


def _looped(d: Draw, x: Any) -> Any:
    count = d.whole(0, 4)
    return tf.while_loop(lambda done, _: done < count, lambda done, a: (done + 1, a * 0.5 + 1), [0, x])[1]


def _integers(d: Draw, x: Any, y: Any) -> Any:
    """By what is no zero."""
    y = tf.abs(tf.cast(y, x.dtype)) + 1
    return d.one(tf.add, tf.multiply, tf.maximum, tf.math.floordiv, tf.math.floormod, tf.truncatediv, tf.less)(x, y)


def _deep(d: Draw, x: Any) -> Any:
    filters = d.weights(min(3, x.shape[1]), min(2, x.shape[2]), x.shape[3], d.whole(1, 2))
    return tf.nn.depthwise_conv2d(x, filters, [1, 1, 1, 1], d.one("SAME", "VALID"))


def _pooled(d: Draw, x: Any) -> Any:
    padding = d.one("SAME", "VALID") if min(x.shape[1:3]) > 1 else "SAME"
    return d.one(tf.nn.max_pool2d, tf.nn.avg_pool2d)(x, d.whole(1, 2), d.whole(1, 2), padding)


def _cumulative(d: Draw, x: Any) -> Any:
    function = d.one(tf.cumsum, tf.math.cumprod, tf.math.cumulative_logsumexp)
    return function(x, d.axis(x), exclusive=d.yes(), reverse=d.yes())


def _squares(d: Draw, x: Any) -> Any:
    first = d.yes()
    return tf.matmul(x, x, transpose_a=first, transpose_b=not first)


def _product(d: Draw, x: Any) -> Any:
    equations = ("bij,bkj->bik", "bij,bij->bi", "bij,bik->bjk", "bij,bij->b", "bij,bij->bij")
    return tf.einsum(d.one(*equations), x, x)


def _near_one(d: Draw, x: Any) -> Any:
    return d.one(tf.sqrt, tf.math.rsqrt, tf.math.log, tf.math.lgamma, tf.math.digamma)(tf.abs(x) + 0.1)


def _segments(d: Draw, x: Any, i: Any) -> Any:
    return getattr(tf.math, f"unsorted_segment_{d.one('sum', 'max', 'min', 'mean')}")(x, _places(_first(i), 4), 4)


def _cut(d: Draw, x: Any) -> Any:
    axis = d.axis(x)
    return tf.split(x, [1, -1] if x.shape[axis] > 1 else 1, axis)[0]


# Not softplus, of which OpenVINO has 7 digits behind the point: what is sorted then is in another order.
_ONE = """abs negative square exp sin cos tan tanh sigmoid floor ceil rint sign erf erfc atan asinh sinh cosh
log1p expm1""".split()
_NEAR = ("elu", "gelu", "leaky_relu", "relu", "relu6", "selu", "silu", "softsign", "crelu", "log_softmax")
_TWO = """add subtract multiply divide maximum minimum squared_difference divide_no_nan atan2 less greater_equal equal
floordiv floormod""".split()

#: By name.
STEPS: Mapping[str, Step] = {
    "one": step("f1", lambda d, x: getattr(tf.math, d.one(*_ONE))(x)),
    "activation": step("f2", lambda d, x: getattr(tf.nn, d.one(*_NEAR))(x)),
    "root": step("f1", _near_one),
    "inside": step("f1", lambda d, x: d.one(tf.math.erfinv, tf.atanh, tf.acos, tf.asin)(tf.tanh(x) * 0.9)),
    "two": step("f1 f1", lambda d, x, y: getattr(tf.math, d.one(*_TWO))(x, y)),
    "with_constant": step("f1", lambda d, x: getattr(tf.math, d.one(*_TWO))(x, d.one(0.5, 2.0, -1.5))),
    "power": step("f1", lambda d, x: tf.pow(x, d.one(2.0, 3.0)) + tf.pow(tf.abs(x) + 0.1, d.one(0.5, -1.0))),
    "logarithms": step(
        "f1 f1", lambda d, x, y: d.one(tf.math.xlogy, tf.math.xlog1py, tf.math.xdivy)(x, tf.abs(y) + 0.1)
    ),
    "integers": step("i1 i1", _integers),
    "bits": step(
        "i1",
        lambda d, x: getattr(tf.bitwise, f"bitwise_{d.one('and', 'or', 'xor')}")(
            x, tf.constant(d.whole(-9, 9), x.dtype)
        ),
    ),
    "shifts": step(
        "i1", lambda d, x: d.one(tf.bitwise.left_shift, tf.bitwise.right_shift)(x, tf.constant(d.whole(0, 5), x.dtype))
    ),
    "cast": step("i1", lambda d, x: tf.cast(tf.cast(x, d.one(tf.int8, tf.int16, tf.int64, tf.float32)), tf.int32)),
    "to_float": step("i1", lambda d, x: tf.cast(x, tf.float32) / 7.0),
    "to_int": step("f1", lambda d, x: tf.cast(x * 3, d.one(tf.int32, tf.int64))),
    "booleans": step(
        "b1 b1", lambda d, x, y: d.one(tf.logical_and, tf.logical_or, tf.math.logical_xor)(x, tf.logical_not(y))
    ),
    "chosen": step("b1 f1", lambda d, b, x: tf.where(b, x, d.one(0.0, -1.0))),
    "any": step("b2", lambda d, b: d.one(tf.reduce_any, tf.reduce_all)(b, d.axis(b), keepdims=d.yes())),
    "reduced": step("f2", _reduced),
    "reduced_integers": step("i2", _reduced),
    "place": step("f2", lambda d, x: d.one(tf.argmax, tf.argmin)(x, d.axis(x), d.one(tf.int32, tf.int64))),
    "place_of_integers": step("i2", lambda d, x: d.one(tf.argmax, tf.argmin)(x, d.axis(x), d.one(tf.int32, tf.int64))),
    "sorted": step("f2", lambda d, x: d.one(tf.sort, tf.argsort)(x, d.axis(x), d.one("ASCENDING", "DESCENDING"))),
    "top": step("f2", lambda d, x: tf.math.top_k(x, d.whole(1, x.shape[-1]))[d.whole(0, 1)]),
    "cumulative": step("f2", _cumulative),
    "softmax": step("f2", lambda d, x: d.one(tf.nn.softmax, tf.nn.log_softmax, tf.math.l2_normalize)(x, d.axis(x))),
    "moments": step("f2", lambda d, x: tf.nn.moments(x, d.axis(x), keepdims=d.yes())[d.whole(0, 1)]),
    "clipped": step("f2", lambda d, x: tf.clip_by_value(x, d.one(-0.5, -1.0), d.one(0.5, 1.0))),
    "flat": step("f2", lambda d, x: tf.reshape(x, [tf.shape(x)[0], -1] if d.yes() else [-1, x.shape[-1]])),
    "turned": step("f2", lambda d, x: tf.transpose(x, d.order(x))),
    "more_axes": step("f1", lambda d, x: tf.expand_dims(x, d.whole(1, len(x.shape)))),
    "reversed": step("f2", lambda d, x: tf.reverse(x, [d.axis(x)])),
    "rolled": step("f2", lambda d, x: tf.roll(x, d.whole(-7, 7), d.axis(x))),
    "tiled": step("f2", lambda d, x: tf.tile(x, [1, *d.each(x, lambda _: d.whole(1, 2))])),
    "padded": step("f2", _pad),
    "repeated": step("f2", lambda d, x: tf.repeat(x, d.whole(1, 3), d.axis(x))),
    "cut": step("f2", _cut),
    "unstacked": step("i2", lambda d, x: tf.unstack(x, axis=(axis := d.axis(x)))[d.whole(0, x.shape[axis] - 1)]),
    "joined": step("f2", lambda d, x: tf.concat([x, x + 1], d.axis(x)) if d.yes() else tf.stack([x, -x], d.axis(x))),
    "indexed": step("f2", lambda d, x: x[d.slices(x)]),
    "indexed_integers": step("i2", lambda d, x: x[d.slices(x)]),
    "by_size": step("f2", lambda d, x: x[:, : tf.shape(x)[1] // 2 + 1] * tf.cast(tf.shape(x)[-1], tf.float32)),
    "taken": step("f2 i1", _taken),
    "taken_from_table": step("i1", lambda d, i: tf.gather(d.weights(5, 2), _places(i, 5))),
    "one_hot": step("i1", lambda d, i: tf.one_hot(i, d.whole(2, 6), on_value=2.5, off_value=-1.0, axis=d.one(-1, 1))),
    "masked_lengths": step("i=1", lambda d, i: tf.sequence_mask(tf.abs(i) % 6, d.whole(3, 7))),
    "reversed_lengths": step(
        "f2 i=1", lambda d, x, i: tf.reverse_sequence(x, _places(i, x.shape[1]) + 1, seq_axis=1, batch_axis=0)
    ),
    "segments": step("f2 i1", _segments),
    "triangle": step("f3", lambda d, x: tf.linalg.band_part(x, d.whole(-1, 2), d.whole(-1, 2))),
    "diagonal": step("f3", lambda d, x: tf.linalg.diag_part(x)),
    "diagonals": step("f2", lambda d, x: tf.linalg.diag(x)),
    "searched": step("f2", lambda d, x: tf.searchsorted(tf.sort(x), x, side=d.one("left", "right"))),
    "product": step("f2", lambda d, x: tf.tensordot(x, d.weights(x.shape[-1], d.whole(1, 4)), 1)),
    "squares": step("f3", _squares),
    "einsum": step("f=3", _product),
    "convolved": step("f=4", _convolve),
    "enlarged": step("f=4", _enlarge),
    "depthwise": step("f=4", _deep),
    "pooled": step("f=4", _pooled),
    "resized": step("f=4", _resize),
    "patches": step("f=4", _patches),
    "flipped": step("f=4", lambda d, x: d.one(tf.image.flip_left_right, tf.image.flip_up_down, tf.image.rot90)(x)),
    "fitted": step(
        "f=4",
        lambda d, x: d.one(tf.image.resize_with_pad, tf.image.resize_with_crop_or_pad)(x, d.whole(2, 9), d.whole(2, 9)),
    ),
    "standardized": step("f=4", lambda d, x: tf.image.per_image_standardization(x)),
    "branch": step("f1", lambda d, x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x - 1)),
    "looped": step("f1", _looped),
    "mapped": step("f2", lambda d, x: d.one(tf.map_fn, tf.vectorized_map)(lambda row: row * tf.reduce_max(row), x)),
    "scanned": step("f=2", lambda d, x: tf.scan(lambda a, b: a * 0.5 + b, tf.transpose(x))[-1]),
}
