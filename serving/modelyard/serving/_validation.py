"""Checks of a request against a signature, in TensorFlow Serving's words where it has some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError
from modelyard.wire import dtype_by_numpy

#: TensorFlow's C++ names where they differ from the Python ones.
_CPP_NAMES = {"float32": "float", "float64": "double", "float16": "half"}


def cpp_dtype_name(name: str) -> str:
    """TensorFlow's C++ name of a dtype, as its error messages use it.

    Args:
        name: The Python name, such as ``float32``.
    """
    return _CPP_NAMES.get(name, name)


def check_inputs(signature: Signature, inputs: Mapping[str, npt.NDArray[Any]], *, check_shapes: bool) -> None:
    """Checks names, dtypes and, where asked, shapes.

    Args:
        signature: What the servable expects.
        inputs: What was received.
        check_shapes: Whether shapes must fit the signature. TensorFlow's own
            runtime does not insist on that, the others do.

    Raises:
        InvalidInputError: The first thing that does not fit.
    """
    expected = {spec.name: spec for spec in signature.inputs}
    check_names(expected, inputs)
    for index, name in enumerate(sorted(expected)):
        spec, array = expected[name], inputs[name]
        received = dtype_by_numpy(array.dtype).name
        if received != spec.dtype:
            raise InvalidInputError(
                f"Expects arg[{index}] to be {cpp_dtype_name(spec.dtype)} but {cpp_dtype_name(received)} is provided: "
                f"input {name!r} must be {spec.dtype} {format_shape(spec.shape)}."
            )
        if check_shapes and not shape_fits(array.shape, spec.shape):
            raise InvalidInputError(
                f"Input {name!r} has shape {format_shape(array.shape)}; expected {spec.dtype} "
                f"{format_shape(spec.shape)} (-1 is any size)."
            )


def check_names(expected: Mapping[str, TensorSpec], received: Mapping[str, Any]) -> None:
    """Checks that exactly the signature's inputs were sent.

    Args:
        expected: The signature's inputs by name.
        received: The request's inputs by name.

    Raises:
        InvalidInputError: An input is missing or unknown.
    """
    if expected.keys() == received.keys():
        return
    missing = sorted(expected.keys() - received.keys())
    extra = sorted(received.keys() - expected.keys())
    if len(expected) == len(received):
        raise InvalidInputError(
            f"Signature input alias: {missing[0]}(feed name: {missing[0]}) not found in request and no default value "
            f"provided. Inputs expected to be in the set {_set(expected)}; received {_set(received)}."
        )
    raise InvalidInputError(
        f"input size does not match signature: {len(received)}!={len(expected)} len({_set(received)}) != "
        f"len({_set(expected)}). Sent extra: {_set(extra)}. Missing but required: {_set(missing)}."
    )


def check_output_filter(signature: Signature, output_filter: Sequence[str]) -> tuple[str, ...]:
    """Resolves an output filter.

    Args:
        signature: What the servable offers.
        output_filter: Outputs asked for; empty means all.

    Returns:
        The outputs to compute.

    Raises:
        InvalidInputError: An output is unknown or asked for twice.
    """
    names = [spec.name for spec in signature.outputs]
    seen: set[str] = set()
    for name in output_filter:
        if name not in names:
            raise InvalidInputError(
                f"output tensor alias not found in signature: {name} Outputs expected to be in the set {_set(names)}."
            )
        if name in seen:
            raise InvalidInputError(f"duplicate output tensor alias: {name}")
        seen.add(name)
    return tuple(output_filter) or tuple(names)


def shape_fits(shape: Sequence[int], expected: Sequence[int] | None) -> bool:
    """Whether a shape is one that a signature allows.

    Args:
        shape: Sizes of an array.
        expected: Sizes of the signature, ``-1`` for any; None for unknown rank.
    """
    if expected is None:
        return True
    return len(shape) == len(expected) and all(want in (-1, have) for have, want in zip(shape, expected, strict=True))


def format_shape(shape: Sequence[int] | None) -> str:
    """A shape as messages show it: ``[-1,28,28,1]``, or ``[?]`` for an unknown rank.

    Args:
        shape: The sizes.
    """
    return "[?]" if shape is None else f"[{','.join(map(str, shape))}]"


def _set(names: Mapping[str, Any] | Sequence[str]) -> str:
    return "{" + ",".join(sorted(names)) + "}"
