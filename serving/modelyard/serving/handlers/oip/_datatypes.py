"""Dtypes of tensors by the Open Inference Protocol's names, and what has none."""

from __future__ import annotations

from modelyard.errors import InvalidInputError, UnsupportedError
from modelyard.wire import OIP_DATATYPES, OIP_DTYPES, DType, dtype_by_name


def dtype_of(datatype: str, *, tensor: str) -> DType:
    name = OIP_DTYPES.get(datatype)
    if name is None:
        raise InvalidInputError(
            f"Tensor {tensor!r} has the unknown datatype {datatype!r}; expected one of {', '.join(sorted(OIP_DTYPES))}."
        )
    return dtype_by_name(name)


def datatype_of(dtype: str, *, tensor: str) -> str:
    if dtype not in OIP_DATATYPES:
        raise UnsupportedError(
            f"Tensor {tensor!r} is {dtype}, which the Open Inference Protocol has no datatype for. "
            "TensorFlow Serving's gRPC API, on the same port, carries it."
        )
    return OIP_DATATYPES[dtype]
