"""The Open Inference Protocol's names of dtypes beside TensorFlow's."""

from __future__ import annotations

from collections.abc import Mapping

from modelyard.errors import InvalidInputError, UnsupportedError
from modelyard.wire import DType, dtype_by_name

#: Protocol name to TensorFlow's; BF16 is Triton's addition.
_NAMES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "string",
    "BF16": "bfloat16",
}
#: TensorFlow's names to the protocol's.
DATATYPES: Mapping[str, str] = {name: datatype for datatype, name in _NAMES.items()}


def dtype_of(datatype: str, *, tensor: str) -> DType:
    name = _NAMES.get(datatype)
    if name is None:
        raise InvalidInputError(
            f"Tensor {tensor!r} has the unknown datatype {datatype!r}; expected one of {', '.join(sorted(_NAMES))}."
        )
    return dtype_by_name(name)


def datatype_of(dtype: str, *, tensor: str) -> str:
    if dtype not in DATATYPES:
        raise UnsupportedError(
            f"Tensor {tensor!r} is {dtype}, which the Open Inference Protocol has no datatype for. "
            "TensorFlow Serving's gRPC API, on the same port, carries it."
        )
    return DATATYPES[dtype]
