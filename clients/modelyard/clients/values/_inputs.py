"""What callers give as inputs, turned into arrays that exist on the wire.

An array keeps its dtype: where the signature wants another one, that is an error and never a silent conversion.
Python's own numbers and lists of them have no dtype of their own, so they take the signature's, as far as no value
changes its kind (a float never becomes an integer, a number never a boolean).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.clients.values._images import has_files, read_all
from modelyard.clients.values._results import SignatureInfo, TensorInfo
from modelyard.errors import InvalidInputError
from modelyard.wire import as_wire_array, dtype_by_name, dtype_by_numpy

#: What numpy makes of Python's own numbers, and what they become where the signature does not say.
_DEFAULTS: dict[str, np.dtype[Any]] = {"f": np.dtype(np.float32), "i": np.dtype(np.int64), "u": np.dtype(np.uint64)}
_PYTHON_DTYPES = ("float64", "int64", "uint64", "bool", "complex128")


def needs_signature(inputs: Mapping[str, object]) -> bool:
    """Whether an input is made of Python objects that are no text, whose dtype only the signature knows."""
    return any(_is_python(value) and not _is_text(value) and not has_files(value) for value in inputs.values())


def to_arrays(inputs: Mapping[str, object], signature: SignatureInfo | None) -> dict[str, npt.NDArray[Any]]:
    """Turns a caller's inputs into arrays."""
    known = {} if signature is None else signature.inputs
    return {name: _to_array(name, value, known.get(name)) for name, value in inputs.items()}


def check_inputs(
    arrays: Mapping[str, npt.NDArray[Any]],
    signature: SignatureInfo,
    signatures: Mapping[str, SignatureInfo] | None = None,
) -> None:
    """Checks what REST itself cannot: JSON carries no dtypes, and servers ignore inputs they do not know.

    A server that names no inputs at all has not described the model, as
    MLServer does where they are not written down: then the server checks them.
    """
    if not signature.inputs:
        return
    for name, array in arrays.items():
        info = signature.inputs.get(name)
        if info is None:
            expected = ", ".join(f"{info.name} ({info.dtype})" for info in signature.inputs.values())
            owner = next((key for key, other in sorted((signatures or {}).items()) if name in other.inputs), None)
            hint = "" if owner is None else f" {name!r} belongs to signature {owner!r}: pass signature={owner!r}."
            raise InvalidInputError(
                f"input size does not match signature: received {name!r}, which signature {signature.name!r} "
                f"lacks. Expected {expected}.{hint}"
            )
        received = dtype_by_numpy(array.dtype).name
        if received != info.dtype:
            raise InvalidInputError(
                f"Expects arg[{sorted(signature.inputs).index(name)}] to be {info.dtype} but {received} is provided: "
                f"input {name!r} of signature {signature.name!r}. Convert it with .astype."
            )


def check_outputs(outputs: tuple[str, ...], signature: SignatureInfo) -> None:
    """Checks the outputs asked for, where the server names any; REST has no filter, so the server never sees them."""
    for index, name in enumerate(outputs):
        if signature.outputs and name not in signature.outputs:
            raise InvalidInputError(
                f"output tensor alias not found in signature: {name}. Signature {signature.name!r} has "
                f"{', '.join(sorted(signature.outputs))}."
            )
        if name in outputs[:index]:
            raise InvalidInputError(f"duplicate output tensor alias: {name}")


def wire_array(value: object, info: TensorInfo | None) -> npt.NDArray[Any]:
    """Turns a caller's value into an array as :func:`modelyard.wire.as_wire_array` does.

    Files and images are read. Arrays of objects are numbers where the input takes numbers; buffers are bytes where it
    does not.
    """
    if has_files(value):
        value = read_all(value)
    if info is None or info.dtype == "string":
        return as_wire_array(_with_bytes(value) if _is_text(value) else value)
    if _kind(value) == "O":
        value = np.asarray(value).tolist()
    return as_wire_array(value, expected=f"values of {info.dtype}")


def _kind(value: object) -> str:
    return str(getattr(getattr(value, "dtype", None), "kind", ""))


def _is_python(value: object) -> bool:
    """Whether a value has no dtype of its own."""
    if kind := value.dtype.kind if isinstance(value, np.ndarray) else _kind(value):
        return kind == "O"
    return isinstance(value, (bool, int, float, complex, list, tuple, str, bytes, Mapping, Set))


def _with_bytes(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_with_bytes(item) for item in value]
    # Other memory than bytes has a dtype, which numpy finds.
    is_bytes = isinstance(value, bytearray) or (isinstance(value, memoryview) and value.format == "B")
    return bytes(value) if is_bytes else value  # type: ignore[call-overload]


def _is_text(value: object) -> bool:
    if isinstance(value, np.ndarray) and value.size:
        value = value.flat[0]
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (str, bytes, bytearray, memoryview))


def _to_array(name: str, value: object, info: TensorInfo | None) -> npt.NDArray[Any]:
    if not isinstance(name, str):
        raise InvalidInputError(f"Expected the names of inputs as text; received {name!r}.")
    try:
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            return as_wire_array(value)
        array = wire_array(value, info)
        if not _is_python(value) or array.dtype.name not in _PYTHON_DTYPES:
            return array
        if info is None:
            default = _DEFAULTS.get(array.dtype.kind)
            return array if default is None else _rounded(array, default)
        return _cast(value, array, info)
    except InvalidInputError as exc:
        raise InvalidInputError(f"Input {name!r}: {exc.message}") from exc


def _cast(value: object, array: npt.NDArray[Any], info: TensorInfo) -> npt.NDArray[Any]:
    wanted = dtype_by_name(info.dtype).numpy
    if wanted is None or wanted == array.dtype:
        return array
    if array.size == 0 and wanted.kind != "O":
        return array.astype(wanted)
    floating = wanted.kind in "fcV" or info.dtype == "bfloat16"
    if floating and array.dtype.kind in "iuf" or wanted.kind == "c" and array.dtype.kind == "c":
        return _rounded(array, wanted)
    if wanted.kind in "iu" and array.dtype.kind in "iuf":
        return _integers(value, array, wanted)
    raise InvalidInputError(
        f"received Python values that numpy takes for {array.dtype}; the signature wants {info.dtype}."
    )


def _rounded(array: npt.NDArray[Any], wanted: np.dtype[Any]) -> npt.NDArray[Any]:
    with np.errstate(over="ignore", under="ignore"):
        cast = array.astype(wanted, copy=False)
    lost = np.isfinite(array) & ~np.isfinite(cast)
    if lost.any():
        raise InvalidInputError(
            f"received {array[lost][0]}, which {wanted.name} cannot hold: it would become infinite. Send numbers that "
            f"{wanted.name} holds, or float('inf') where that is what you mean."
        )
    return cast


def _integers(value: object, array: npt.NDArray[Any], wanted: np.dtype[Any]) -> npt.NDArray[Any]:
    exact = array
    if array.dtype.kind == "f":
        # Integers beyond 63 bits reach here as floats, which have already lost digits: back to the values.
        exact = np.array(value, dtype=object)
        if not all(isinstance(item, int) for item in exact.ravel().tolist()):
            raise InvalidInputError(f"received Python floats; the signature wants {wanted.name}.")
    limits = np.iinfo(wanted)
    low, high = min(exact.ravel().tolist()), max(exact.ravel().tolist())
    if low < limits.min or high > limits.max:
        raise InvalidInputError(
            f"received integers from {low} to {high}; the signature wants {wanted.name}, from {limits.min} to "
            f"{limits.max}."
        )
    return exact.astype(wanted)
