"""Steps of Keras' functions and layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from benchmarks.programs.draw import Draw, Step, step

_ONE = """absolute ceil cos exp expm1 floor log1p negative round sign sin square tanh trunc erf exp2 signbit isfinite
celu elu gelu hard_sigmoid hard_silu hard_tanh leaky_relu log_sigmoid relu6 selu sigmoid silu soft_shrink
softsign sparse_plus squareplus tanh_shrink""".split()
_ALONG = """all any argmax argmin amax amin average count_nonzero cumprod cumsum flip logsumexp max mean median min norm
normalize prod softmax log_softmax sort argsort std sum var""".split()
_PAIRS = """add arctan2 equal greater hypot logaddexp logaddexp2 maximum minimum multiply subtract""".split()
_INTEGERS = "absolute negative square sign".split()


def _two(function: Callable[..., Any], d: Draw, x: Any) -> Any:
    return function(x, ops.ones((x.shape[-1], d.whole(1, 3))))


def _rows_of(count: int, x: Any) -> Any:
    return ops.concatenate([x[..., :1] * (number + 1.0) for number in range(count)], -1)


def _colours(d: Draw, x: Any) -> Any:
    # Not to hues, which rounding decides where an image is grey; and of no colour that is full, or none at all.
    shares = ops.sigmoid(_rows_of(3, x)) * 0.9 + 0.05
    return d.one(ops.image.rgb_to_grayscale, ops.image.hsv_to_rgb)(shares)


def _padded(d: Draw, x: Any) -> Any:
    return ops.pad(
        x, [[0, 0], *d.each(x, lambda size: [min(1, size - 1), 0])], d.one("constant", "reflect", "symmetric")
    )


def _part(d: Draw, x: Any) -> Any:
    return ops.slice(x, [0] * len(x.shape), [ops.shape(x)[0], *d.each(x, lambda size: d.whole(1, size))])


def _updated(d: Draw, x: Any) -> Any:
    begin = [0, *d.each(x, lambda size: d.whole(0, size - 1))]
    return ops.slice_update(x, begin, x[(slice(None), *(slice(at, None) for at in begin[1:]))] * 3)


def _made(kind: str, made: Callable[[Draw, Any], keras.Layer]) -> Step:
    return step(kind, lambda d, x: d.layer(partial(made, d, x), x))


def _merged(made: Callable[[Draw, Any], keras.Layer]) -> Step:
    return step("f2", lambda d, x: d.layer(partial(made, d, x), [x, x * 0.5 + 1]))


FUNCTIONS: Mapping[str, Step] = {
    "keras_one": step("f1", lambda d, x: getattr(ops, d.one(*_ONE))(x)),
    "keras_along": step("f2", lambda d, x: getattr(ops, d.one(*_ALONG))(x, axis=d.axis(x))),
    "keras_pair": step("f1 f1", lambda d, x, y: getattr(ops, d.one(*_PAIRS))(x, y)),
    "keras_integers": step("i1", lambda d, x: getattr(ops, d.one(*_INTEGERS))(x)),
    "keras_quotient": step("f1", lambda d, x: d.one(ops.floor_divide, ops.mod)(x + 0.25, d.one(0.7, -3.0))),
    "keras_quantile": step("f2", lambda d, x: ops.quantile(x, d.one(0.3, 0.5), axis=d.axis(x))),
    "keras_moved": step("f2", lambda d, x: ops.swapaxes(x, 1, d.axis(x)) if d.yes() else ops.moveaxis(x, d.axis(x), 1)),
    "keras_rolled": step("f2", lambda d, x: ops.roll(x, d.whole(-4, 4), d.axis(x))),
    "keras_triangle": step("f3", lambda d, x: d.one(ops.tril, ops.triu)(x, d.whole(-2, 2))),
    "keras_differences": step("f2", lambda d, x: ops.diff(x, 1, axis=d.axis(x)) if min(x.shape[1:]) > 1 else x),
    "keras_buckets": step("f1", lambda d, x: ops.digitize(x, np.array([-1.0, 0.0, 0.5, 2.0]))),
    "keras_one_hot": step("i1", lambda d, i: ops.one_hot(ops.abs(i), d.whole(2, 6))),
    "keras_multi_hot": step("i2", lambda d, i: ops.multi_hot(ops.abs(i), 5)),
    "keras_taken": step("f2", lambda d, x: ops.take_along_axis(x, ops.argsort(x, axis=(axis := d.axis(x))), axis)),
    "keras_repeated": step("f2", lambda d, x: ops.repeat(x, 2, d.axis(x))),
    "keras_padded": step("f2", _padded),
    "keras_part": step("f2", _part),
    "keras_updated": step("f2", _updated),
    "keras_mapped": step("f2", lambda d, x: d.one(ops.map, ops.vectorized_map)(lambda row: row - ops.mean(row), x)),
    "keras_scanned": step("f2", lambda d, x: ops.scan(
        lambda sum_, row: (sum_ + row, sum_), ops.zeros_like(x[:, 0]), ops.swapaxes(x, 0, 1))[0]),
    "keras_loop": step("f1", lambda d, x: ops.fori_loop(0, d.whole(1, 3), lambda _, v: v * 0.5 + 1, x)),
    "keras_branch": step("f1", lambda d, x: ops.cond(ops.sum(x) > 0, lambda: x, lambda: -x)),
    "keras_chosen": step("f1", lambda d, x: ops.select([x > 1, x > 0], [x, x * 2], -1.0)),
    "keras_product": step("f2", lambda d, x: _two(d.one(ops.dot, ops.matmul), d, x)),
    "keras_einsum": step("f2", lambda d, x: _two(partial(ops.einsum, "b...i,ij->b...j"), d, x)),
    "keras_cross": step("f2", lambda d, x: ops.cross(_rows_of(3, x), np.array([0.0, 1.0, 2.0], np.float32))),
    "keras_trace": step("f3", lambda d, x: ops.trace(x, axis1=1, axis2=2)),
    "keras_segments": step("f2 i=1", lambda d, x, i: d.one(ops.segment_sum, ops.segment_max)(
        x, ops.cast(ops.abs(i) % 3, "int32"), num_segments=3)),
    "keras_losses": step("f2", lambda d, x: ops.categorical_crossentropy(ops.softmax(x), ops.softmax(x * 2))),
    "keras_normalized": step("f2", lambda d, x: d.one(ops.layer_normalization, ops.rms_normalization)(x)),
    "keras_colours": step("f=4", _colours),
    "keras_resized": step("f=4", lambda d, x: ops.image.resize(
        x, (d.whole(2, 8), d.whole(2, 8)), interpolation=d.one("bilinear", "nearest"), crop_to_aspect_ratio=d.yes())),
    "keras_patches": step("f=4", lambda d, x: ops.image.extract_patches(
        x, (min(2, x.shape[1]), min(3, x.shape[2])), padding=d.one("same", "valid"))),
    "keras_blurred": step("f=4", lambda d, x: ops.image.gaussian_blur(x, (3, 3), (1.0, 1.0))),
    "keras_pooled": step("f=4", lambda d, x: d.one(ops.max_pool, ops.average_pool)(x, 2, padding="same")),
}  # fmt: skip


def _wrapped(*choices: Callable[[], keras.Layer]) -> Callable[[Draw, Any], keras.Layer]:
    return lambda d, x: d.one(*choices)()


_SEQUENCES: Sequence[Callable[[], keras.Layer]] = (
    lambda: layers.LSTM(3, return_sequences=True, go_backwards=True),
    lambda: layers.LSTM(2, activation="relu", recurrent_activation="hard_sigmoid"),
    lambda: layers.GRU(3, reset_after=False),
    lambda: layers.GRU(3, return_sequences=True),
    lambda: layers.SimpleRNN(3, return_sequences=True, activation="elu"),
    lambda: layers.Bidirectional(layers.GRU(2, return_sequences=True), merge_mode="sum"),
    lambda: layers.Bidirectional(layers.LSTM(2)),
    lambda: layers.RNN([layers.LSTMCell(2), layers.GRUCell(3)]),
    lambda: layers.Conv1D(3, 2, padding="causal", dilation_rate=2),
    lambda: layers.Conv1D(2, 2, strides=2, padding="same", activation="silu"),
    lambda: layers.Conv1DTranspose(3, 2, strides=2, padding="same"),
    lambda: layers.SeparableConv1D(3, 2, padding="same"),
    lambda: layers.MaxPooling1D(2, padding="same"),
    lambda: layers.AveragePooling1D(2, strides=1, padding="same"),
    lambda: layers.GlobalMaxPooling1D(keepdims=True),
    lambda: layers.UpSampling1D(2),
    lambda: layers.ZeroPadding1D((1, 2)),
    lambda: layers.TimeDistributed(layers.Dense(2, activation="softplus")),
    lambda: layers.EinsumDense("abc,cd->abd", output_shape=(None, 4)),
)
_IMAGES: Sequence[Callable[[], keras.Layer]] = (
    lambda: layers.Conv2D(3, 3, padding="same", strides=2),
    lambda: layers.Conv2D(2, (1, 2), padding="same", dilation_rate=(1, 2), activation="gelu"),
    lambda: layers.Conv2DTranspose(3, 3, strides=2, padding="same"),
    lambda: layers.Conv2DTranspose(2, 2, padding="valid"),
    lambda: layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2),
    lambda: layers.SeparableConv2D(3, 3, padding="same", strides=2),
    lambda: layers.MaxPooling2D(2, strides=1, padding="same"),
    lambda: layers.AveragePooling2D((3, 2), strides=2, padding="same"),
    lambda: layers.GlobalAveragePooling2D(keepdims=True),
    lambda: layers.UpSampling2D(2, interpolation="bilinear"),
    lambda: layers.ZeroPadding2D(((1, 2), (0, 1))),
    lambda: layers.Resizing(4, 5, crop_to_aspect_ratio=True),
    lambda: layers.Permute((3, 1, 2)),
    lambda: layers.PReLU(shared_axes=[1, 2]),
    lambda: layers.Softmax(axis=[1, 2]),
    lambda: layers.TimeDistributed(layers.Conv1D(2, 1)),
    lambda: layers.ConvLSTM1D(2, 2, padding="same"),
    lambda: layers.EinsumDense("abcd,dce->abe", output_shape=(None, 3)),
    lambda: layers.Normalization(axis=-1, mean=0.3, variance=2.0),
)
_VECTORS: Sequence[Callable[[], keras.Layer]] = (
    lambda: layers.Dense(3, activation="softmax"),
    lambda: layers.Dense(4, activation="hard_silu"),
    lambda: layers.Dense(2, activation="log_softmax"),
    lambda: layers.RepeatVector(3),
    lambda: layers.ReLU(max_value=1.0, negative_slope=0.1, threshold=0.2),
    lambda: layers.Activation("sparsemax"),
    lambda: layers.Reshape((1, -1)),
)
_ATTENTION: Sequence[Callable[[], keras.Layer]] = (
    lambda: layers.MultiHeadAttention(2, 3),
    lambda: layers.MultiHeadAttention(1, 4, output_shape=2),
    lambda: layers.GroupQueryAttention(2, 4, 2),
)
LAYERS: Mapping[str, Step] = {
    "layer_of_vectors": _made("f=2", _wrapped(*_VECTORS)),
    "layer_of_sequences": _made("f=3", _wrapped(*_SEQUENCES)),
    "layer_of_images": _made("f=4", _wrapped(*_IMAGES)),
    "normalization": _made("f2", lambda d, x: d.one(
        layers.BatchNormalization, layers.LayerNormalization, layers.UnitNormalization)(axis=d.axis(x))),
    "groups": _made("f=4", lambda d, x: layers.GroupNormalization(groups=1, axis=d.one(-1, -2))),
    "softmax_layer": _made("f2", lambda d, x: layers.Softmax(axis=d.axis(x))),
    "attention": step("f=3", lambda d, x: d.layer(lambda: d.one(*_ATTENTION)(), x, x * 0.5 + 1)),
    "concatenated": _merged(lambda d, x: layers.Concatenate(axis=d.axis(x))),
    "merged": _merged(lambda d, x: d.one(layers.Add, layers.Multiply, layers.Maximum, layers.Average)()),
    "dot": step("f=3", lambda d, x: d.layer(lambda: layers.Dot(axes=-1, normalize=d.yes()), [x, x * 0.5 + 1])),
    "attending": step("f=3", lambda d, x: d.layer(
        lambda: d.one(layers.Attention, layers.AdditiveAttention)(), [x, x * 0.5 + 1])),
}  # fmt: skip
