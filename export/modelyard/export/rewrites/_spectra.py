"""Complex numbers as pairs of real ones, and all Fourier transforms by the one that takes real numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from modelyard.export.rewrites._replay import Rule, emit
from modelyard.export.rewrites._values import Complex, constant

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

#: Values that a transform takes at most where it is a product with a matrix.
_LONGEST = 2048


def pair(value: tf.Tensor) -> Complex:
    """Complex numbers as a pair."""
    if isinstance(value, Complex):
        return value
    if value.dtype.is_complex:
        known = constant(value)
        if known is not None:
            return Complex(tf.constant(known.real, tf.float32), tf.constant(known.imag, tf.float32))
        return Complex(tf.math.real(value), tf.math.imag(value))
    return Complex(tf.cast(value, tf.float32), tf.zeros_like(value, tf.float32))


def _times(x: Complex, y: Complex) -> Complex:
    return Complex(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _over(x: Complex, y: Complex) -> Complex:
    size = tf.square(y.real) + tf.square(y.imag)
    over = _times(x, Complex(y.real, -y.imag))
    return Complex(over.real / size, over.imag / size)


def _exp(x: Complex) -> Complex:
    size = tf.exp(x.real)
    return Complex(size * tf.cos(x.imag), size * tf.sin(x.imag))


_FUNCTIONS: dict[str, Callable[..., Complex | tf.Tensor]] = {
    "AddV2": lambda x, y: Complex(x.real + y.real, x.imag + y.imag),
    "Angle": lambda x: tf.atan2(x.imag, x.real),
    "ComplexAbs": lambda x: tf.sqrt(tf.square(x.real) + tf.square(x.imag)),
    "Conj": lambda x: Complex(x.real, -x.imag),
    "Exp": _exp,
    "Imag": lambda x: x.imag,
    "Mul": _times,
    "Neg": lambda x: Complex(-x.real, -x.imag),
    "Real": lambda x: x.real,
    "RealDiv": _over,
    "Square": lambda x: _times(x, x),
    "Sub": lambda x, y: Complex(x.real - y.real, x.imag - y.imag),
}
_FUNCTIONS["Add"] = _FUNCTIONS["AddV2"]
#: Operators that move elements, or add them up: they do the same to both parts.
_MOVING = (
    "BroadcastTo", "ConcatV2", "ExpandDims", "Fill", "GatherNd", "GatherV2", "Identity", "Mean", "Pack", "Pad", "PadV2",
    "Reshape", "ReverseV2", "Roll", "Select", "SelectV2", "Slice", "Split", "SplitV", "Squeeze", "StridedSlice", "Sum",
    "Tile", "Transpose", "Unpack", "ZerosLike",
)  # fmt: skip


def _function(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    if not any(_is_complex(each) for each in inputs):
        return None
    return _FUNCTIONS[node.op](*(pair(each) for each in inputs))


def _is_complex(value: tf.Tensor) -> bool:
    return isinstance(value, Complex) or value.dtype.is_complex


def _moved(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    if not any(_is_complex(each) for each in inputs):
        return None
    parts = [pair(each) if _is_complex(each) else each for each in inputs]
    kinds = {name: tf.float32 for name, value in node.attr.items() if value.type == tf.complex64.as_datatype_enum}
    outputs = [
        emit(node, [getattr(each, part) if isinstance(each, Complex) else each for each in parts], **kinds).outputs
        for part in ("real", "imag")
    ]
    return [Complex(*each) for each in zip(*outputs, strict=True)]


def _cast(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    source, target = (tf.as_dtype(node.attr[name].type) for name in ("SrcT", "DstT"))
    if target.is_complex:
        return pair(inputs[0])
    return tf.cast(pair(inputs[0]).real, target) if source.is_complex else None


def _shape(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.shape(inputs[0].real, tf.as_dtype(node.attr["out_type"].type)) if isinstance(inputs[0], Complex) else None


def _rfft_last(x: tf.Tensor, length: int) -> Complex:
    """The spectrum of the last axis, which has that length."""
    if length & (length - 1) == 0 and length > 1:
        spectrum = tf.signal.rfft(x)
        return Complex(tf.math.real(spectrum), tf.math.imag(spectrum))
    if length > _LONGEST:
        raise ValueError(f"a Fourier transform of {length} values, no power of two; up to {_LONGEST} are written out")
    angles = 2 * np.pi * np.outer(np.arange(length), np.arange(length // 2 + 1)) / length
    return Complex(*(tf.linalg.matmul(x, tf.constant(part, tf.float32)) for part in (np.cos(angles), -np.sin(angles))))


def _fft_last(x: Complex, *, inverse: bool = False) -> Complex:
    length = x.real.shape[-1]
    # The inverse is the transform of the conjugate, conjugated.
    sign = -1.0 if inverse else 1.0
    if length is None:
        return _fft_of_any_length(x, sign)
    first, second = _whole(_rfft_last(x.real, length), length), _whole(_rfft_last(x.imag * sign, length), length)
    real, imag = first.real - second.imag, (first.imag + second.real) * sign
    return Complex(real / length, imag / length) if inverse else Complex(real, imag)


def _fft_of_any_length(x: Complex, sign: float) -> Complex:
    """A transform whose length is known when it is called: as a product with a matrix that is made then."""
    length = tf.shape(x.real)[-1]
    turns = tf.math.floormod(tf.range(length)[:, tf.newaxis] * tf.range(length), length)
    angles = tf.cast(turns, tf.float32) * (2 * np.pi / tf.cast(length, tf.float32))
    cosine, sine, imag = tf.cos(angles), tf.sin(angles), x.imag * sign
    scale = 1.0 if sign > 0 else 1.0 / tf.cast(length, tf.float32)
    real = tf.linalg.matmul(x.real, cosine) + tf.linalg.matmul(imag, sine)
    return Complex(real * scale, (tf.linalg.matmul(imag, cosine) - tf.linalg.matmul(x.real, sine)) * (sign * scale))


def _whole(half: Complex, length: int) -> Complex:
    """All of a spectrum of real numbers, whose second half mirrors the first."""
    others = list(range((length - 1) // 2, 0, -1))
    if not others:
        return half
    real, imag = (tf.gather(part, others, axis=-1) for part in (half.real, half.imag))
    return Complex(tf.concat([half.real, real], -1), tf.concat([half.imag, -imag], -1))


def _along(rank: int, axis: int, function: Callable[[Complex], Complex], x: Complex) -> Complex:
    if axis == -1:
        return function(x)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    turned = function(Complex(tf.transpose(x.real, order), tf.transpose(x.imag, order)))
    return Complex(tf.transpose(turned.real, order), tf.transpose(turned.imag, order))


def _fft(axes: int, inverse: bool, node: NodeDef, inputs: Sequence[tf.Tensor]) -> Complex:
    x = pair(inputs[0])
    for axis in range(-1, -axes - 1, -1):
        x = _along(x.real.shape.rank, axis, partial(_fft_last, inverse=inverse), x)
    return x


def _lengths(node: NodeDef, tensor: tf.Tensor) -> list[int]:
    lengths = constant(tensor)
    if lengths is None:
        raise ValueError(f"the length of {node.op} ({node.name}) is no constant")
    return [int(each) for each in lengths]


def _fitted(x: tf.Tensor, axis: int, length: int) -> tf.Tensor:
    """With zeros at the end of an axis, or without its end."""
    known = x.shape[axis]
    if known == length:
        return x
    rank = x.shape.rank
    if known is None:
        raise ValueError("the length of a Fourier transform's input is no constant")
    if known < length:
        return tf.pad(x, [[0, length - known if i == rank + axis else 0] for i in range(rank)])
    return tf.slice(x, [0] * rank, [length if i == rank + axis else -1 for i in range(rank)])


def _rfft_of_any_length(x: tf.Tensor, length: tf.Tensor) -> Complex:
    x = _fitted_to(x, length)
    whole, half = _fft_of_any_length(Complex(x, tf.zeros_like(x)), 1.0), length // 2 + 1
    return Complex(whole.real[..., :half], whole.imag[..., :half])


def _irfft_of_any_length(x: Complex, length: tf.Tensor) -> tf.Tensor:
    columns, whole = tf.range(length // 2 + 1)[:, tf.newaxis], tf.cast(length, tf.float32)
    angles = tf.cast(tf.math.floormod(columns * tf.range(length), length), tf.float32) * (2 * np.pi / whole)
    # The first value, and the last of an even length, have no mirror image.
    alone = tf.logical_or(tf.equal(columns, 0), tf.equal(columns * 2, length))
    weights = tf.where(alone, 1.0 / whole, 2.0 / whole)
    real, imag = (_fitted_to(part, length // 2 + 1) for part in (x.real, x.imag))
    return tf.linalg.matmul(real, tf.cos(angles) * weights) - tf.linalg.matmul(imag, tf.sin(angles) * weights)


def _fitted_to(x: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """With zeros at the end of the last axis, or without its end."""
    ends = tf.stack([*[tf.zeros([2], tf.int32)] * (x.shape.rank - 1), tf.stack([0, length])])
    return tf.pad(x, ends)[..., :length]


def _rfft(axes: int, node: NodeDef, inputs: Sequence[tf.Tensor]) -> Complex:
    if axes == 1 and constant(inputs[1]) is None:
        return _rfft_of_any_length(inputs[0], inputs[1][0])
    lengths, x = _lengths(node, inputs[1]), inputs[0]
    for axis in range(-1, -axes - 1, -1):
        x = _fitted(x, axis, lengths[axis])
    spectrum = _rfft_last(x, lengths[-1])
    for axis in range(-2, -axes - 1, -1):
        spectrum = _along(x.shape.rank, axis, _fft_last, spectrum)
    return spectrum


def _irfft(axes: int, node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    if axes == 1 and constant(inputs[1]) is None:
        return _irfft_of_any_length(pair(inputs[0]), inputs[1][0])
    lengths, x = _lengths(node, inputs[1]), pair(inputs[0])
    sizes = [*lengths[:-1], lengths[-1] // 2 + 1]
    for axis in range(-1, -axes - 1, -1):
        x = Complex(_fitted(x.real, axis, sizes[axis]), _fitted(x.imag, axis, sizes[axis]))
    for axis in range(-axes, -1):
        x = _along(x.real.shape.rank, axis, partial(_fft_last, inverse=True), x)
    # The first value, and the last of an even length, are real: their imaginary parts do not count.
    length = lengths[-1]
    weights = np.full(sizes[-1], 2.0)
    weights[0] = 1.0
    weights[-1] = 1.0 if length % 2 == 0 or length == 1 else 2.0
    if length > _LONGEST:
        raise ValueError(f"an inverse Fourier transform to {length} values; up to {_LONGEST} are written out")
    angles = 2 * np.pi * np.outer(np.arange(sizes[-1]), np.arange(length)) / length
    bases = [tf.constant(weights[:, None] * part / length, tf.float32) for part in (np.cos(angles), -np.sin(angles))]
    return tf.linalg.matmul(x.real, bases[0]) + tf.linalg.matmul(x.imag, bases[1])


def is_complex(node: NodeDef) -> bool:
    """Whether a node takes or gives complex numbers."""
    kind = tf.complex64.as_datatype_enum
    return any(value.type == kind for value in node.attr.values())


RULES = {
    **{op: Rule(_function, is_complex) for op in _FUNCTIONS},
    **{op: Rule(_moved, is_complex) for op in _MOVING},
    "Cast": Rule(_cast, is_complex),
    "Complex": Rule(lambda node, inputs: Complex(*inputs)),
    "Shape": Rule(_shape, is_complex),
    **{
        f"{prefix}FFT{suffix}": Rule(partial(_fft, axes, bool(prefix)))
        for prefix in ("", "I")
        for axes, suffix in ((1, ""), (2, "2D"), (3, "3D"))
    },
    **{f"RFFT{suffix}": Rule(partial(_rfft, axes)) for axes, suffix in ((1, ""), (2, "2D"), (3, "3D"))},
    **{f"IRFFT{suffix}": Rule(partial(_irfft, axes)) for axes, suffix in ((1, ""), (2, "2D"), (3, "3D"))},
}
