"""Checks of a request against a signature, in TensorFlow Serving's words where it has some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import InvalidInputError
from modelyard.serving.requests._requests import Arrays
from modelyard.wire import dtype_by_numpy

#: The largest version of a model.
MAX_VERSION = (1 << 63) - 1
#: TensorFlow's C++ names where they differ from the Python ones.
_CPP_NAMES = {"float32": "float", "float64": "double", "float16": "half"}


def cpp_dtype_name(name: str) -> str:
    """TensorFlow's C++ name of a dtype, as its error messages use it."""
    return _CPP_NAMES.get(name, name)


def whole_number(text: str, most: int) -> int | None:
    """Reads digits, however many; None for anything else, and for more than allowed."""
    if not (text.isascii() and text.isdecimal()):
        return None
    digits = text.lstrip("0") or "0"
    # Python does not read thousands of digits.
    number = int(digits) if len(digits) <= len(str(most)) else most + 1
    return number if number <= most else None


def complete_inputs(
    signature: Signature,
    inputs: Arrays,
    *,
    check_shapes: bool,
    defaults: Arrays,
    feed_name: Callable[[str], str],
) -> Arrays:
    """Checks names, dtypes and, where asked, shapes; and fills in the signature's defaults.

    TensorFlow's own runtime does not insist on shapes, the others do. ``feed_name`` has the graph's name of an input,
    for error messages.
    """
    expected = {spec.name: spec for spec in signature.inputs}
    if expected.keys() != inputs.keys():
        _check_names(expected, inputs, defaults, feed_name)
        inputs = {name: inputs[name] if name in inputs else defaults[name] for name in expected}
    for index, name in enumerate(sorted(expected)):
        spec, array = expected[name], inputs[name]
        received = dtype_by_numpy(array.dtype).name
        if received != spec.dtype:
            raise InvalidInputError(
                f"Expects arg[{index}] to be {cpp_dtype_name(spec.dtype)} but {cpp_dtype_name(received)} is provided: "
                f"input {name!r} must be {spec.dtype} {format_shape(spec.shape)}."
            )
        if check_shapes and not shape_fits(array.shape, spec.shape):
            one = (1, *array.shape)
            hint = f" One row alone is a batch of one, {format_shape(one)}." if shape_fits(one, spec.shape) else ""
            raise InvalidInputError(
                f"Input {name!r} has shape {format_shape(array.shape)}; expected {spec.dtype} "
                f"{format_shape(spec.shape)} (-1 is any size).{hint}"
            )
    return inputs


def _check_names(
    expected: Mapping[str, TensorSpec],
    received: Mapping[str, object],
    defaults: Mapping[str, object],
    feed_name: Callable[[str], str],
) -> None:
    """Checks that what was sent, completed by defaults, is exactly the signature's inputs."""
    missing = sorted(expected.keys() - received.keys())
    extra = sorted(received.keys() - expected.keys())
    if len(received) > len(expected) or (len(received) < len(expected) and not defaults):
        raise InvalidInputError(
            f"input size does not match signature: {len(received)}!={len(expected)} len({_set(received)}) != "
            f"len({_set(expected)}). Sent extra: {_set(extra)}. Missing but required: {_set(missing)}."
        )
    for name in missing:
        if name not in defaults:
            raise InvalidInputError(
                f"Signature input alias: {name}(feed name: {feed_name(name)}) not found in request and no "
                f"default value provided. Inputs expected to be in the set {_set(expected)}; received {_set(received)}."
            )
    if extra:
        raise InvalidInputError(
            f"Inputs contains invalid name. Used request inputs: {_set(received)}; expected {_set(expected)}."
        )


def other_signature(names: Iterable[str], signature: Signature, signatures: Mapping[str, Signature]) -> str:
    """A sentence about the first input that belongs to another signature; empty where there is none."""
    known = {spec.name for spec in signature.inputs}
    for name in sorted(set(names) - known):
        owners = sorted(key for key, other in signatures.items() if any(spec.name == name for spec in other.inputs))
        if owners:
            several = "s" if len(owners) > 1 else ""
            return (
                f"Input {name!r} belongs to signature{several} {', '.join(map(repr, owners))}; select it with "
                f'signature_name: "{owners[0]}" (in model_spec over gRPC, in the body over REST, in the parameters of '
                "the Open Inference Protocol)."
            )
    return ""


def check_output_filter(signature: Signature, output_filter: Sequence[str]) -> tuple[str, ...]:
    """The outputs to compute: those of the filter, or all where it is empty."""
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
    """Whether a shape is one that a signature allows: ``-1`` is any size, None any rank."""
    if expected is None:
        return True
    return len(shape) == len(expected) and all(want in (-1, have) for have, want in zip(shape, expected, strict=True))


def format_shape(shape: Sequence[int] | None) -> str:
    """A shape as messages show it: ``[-1,28,28,1]``, or ``[?]`` for an unknown rank."""
    return "[?]" if shape is None else f"[{','.join(map(str, shape))}]"


def _set(names: Mapping[str, object] | Sequence[str]) -> str:
    return "{" + ",".join(sorted(names)) + "}"
