"""What a replayed graph computes with beside tensors: complex numbers as two tensors, lists of tensors as one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Complex:
    """Complex numbers: two tensors of float32, of the same shape."""

    real: tf.Tensor
    imag: tf.Tensor


@dataclass(frozen=True)
class TensorList:
    """TensorFlow's list of tensors, with all elements in one tensor ``[length, ...]``.

    ``items`` is None as long as the size of an element is unknown.
    """

    items: tf.Tensor
    length: tf.Tensor
    dtype: tf.DType

    def empty_like(self, other: TensorList) -> TensorList:
        """This list with zeros as large as another's elements, where it has none."""
        if self.items is not None or other.items is None:
            return self
        return filled(self.length, tf.shape(other.items)[1:], other.items.shape[1:], self.dtype)


def filled(length: tf.Tensor, shape: tf.Tensor, static: tf.TensorShape | Sequence[int], dtype: tf.DType) -> TensorList:
    """A list of zeros."""
    items = tf.zeros(tf.concat([tf.reshape(length, [1]), shape], 0), dtype)
    items.set_shape(tf.TensorShape([None]).concatenate(static))
    return TensorList(items, length, dtype)


def split(values: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]]:
    """The tensors of values, and what makes such values of other tensors."""
    tensors: list[tf.Tensor] = []
    for value in values:
        if isinstance(value, Complex):
            tensors += [value.real, value.imag]
        elif isinstance(value, TensorList):
            if value.items is None:
                raise ValueError("the size of the elements of a tf.TensorArray is not known")
            tensors += [value.items, value.length]
        else:
            tensors.append(value)

    def restore(others: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        left = iter(others)
        restored: list[tf.Tensor] = []
        for value in values:
            if isinstance(value, Complex):
                restored.append(Complex(next(left), next(left)))
            elif isinstance(value, TensorList):
                restored.append(TensorList(next(left), next(left), value.dtype))
            else:
                restored.append(next(left))
        return restored

    return tensors, restore


def as_tensor(value: tf.Tensor) -> tf.Tensor:
    """A value as TensorFlow has it."""
    if isinstance(value, TensorList):
        raise ValueError("an operator on a tf.TensorArray is not supported")
    return tf.complex(value.real, value.imag) if isinstance(value, Complex) else value


def slices(x: tf.Tensor, axis: int, sizes: Sequence[int | tf.Tensor]) -> list[tf.Tensor]:
    """Parts along an axis, one behind the other."""
    parts, begin = [], 0
    for size in sizes:
        first, many = [0] * x.shape.rank, [-1] * x.shape.rank
        first[axis], many[axis] = begin, size
        parts.append(tf.slice(x, first, many))
        begin += size
    return parts


def constant(tensor: tf.Tensor) -> tf.Tensor:
    """The value of a tensor, as numpy's, where it depends on constants and known sizes only; None elsewhere."""
    value = tf.get_static_value(tensor)
    if value is not None or tensor.op.type not in _FOLDED:
        return value
    operation = tensor.op
    first = operation.inputs[0]
    if operation.type == "StridedSlice" and first.op.type == "Shape" and first.op.inputs[0].shape.rank is not None:
        sizes = [_UNKNOWN if size is None else size for size in first.op.inputs[0].shape.as_list()]
        inputs = [np.array(sizes, first.dtype.as_numpy_dtype), *map(constant, operation.inputs[1:])]
    else:
        inputs = [constant(each) for each in operation.inputs]
    if any(each is None for each in inputs):
        return None
    with tf.init_scope():
        function = getattr(tf.raw_ops, operation.type)
        wanted = inspect.signature(function).parameters
        names = [argument.name for argument in operation.op_def.input_arg]
        attributes = {name: operation.get_attr(name) for name in wanted if name not in (*names, "name")}
        arguments = {names[0]: inputs} if operation.type == "Pack" else dict(zip(names, inputs, strict=True))
        found = function(**arguments, **attributes).numpy()
    return None if (found == _UNKNOWN).any() else found


#: Operators that sizes are computed with.
_FOLDED = frozenset(
    {"AddV2", "Cast", "FloorDiv", "Identity", "Maximum", "Minimum", "Mul", "Pack", "RealDiv", "StridedSlice", "Sub"}
)
#: In place of a size that is not known.
_UNKNOWN = -(1 << 31)
