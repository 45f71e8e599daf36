"""The Open Inference Protocol's names of dtypes beside TensorFlow's, and its two forms of tensors in messages."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

#: By the protocol's name; BF16 is Triton's addition.
OIP_DTYPES: Mapping[str, str] = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BYTES": "string", "BF16": "bfloat16",
}  # fmt: skip
#: By TensorFlow's name.
OIP_DATATYPES: Mapping[str, str] = {dtype: datatype for datatype, dtype in OIP_DTYPES.items()}
#: The field of ``InferTensorContents`` by TensorFlow's name. FP16 and BF16 have none.
OIP_CONTENTS: Mapping[str, str] = {
    "bool": "bool_contents", "int8": "int_contents", "int16": "int_contents", "int32": "int_contents",
    "int64": "int64_contents", "uint8": "uint_contents", "uint16": "uint_contents", "uint32": "uint_contents",
    "uint64": "uint64_contents", "float32": "fp32_contents", "float64": "fp64_contents", "string": "bytes_contents",
}  # fmt: skip

_LENGTH = struct.Struct("<I")


def array_to_raw(array: npt.NDArray[Any]) -> bytes:
    """Raw bytes: little-endian in row-major order; an element of BYTES is its length (uint32) and its bytes.

    Args:
        array: Numbers, booleans, or text and bytes.
    """
    if array.dtype.kind in "SUOT":
        parts: list[bytes] = []
        for value in array.ravel().tolist():
            data = value if isinstance(value, bytes) else str(value).encode()
            parts += (_LENGTH.pack(len(data)), data)
        return b"".join(parts)
    if array.dtype.kind == "V":
        # bfloat16 is a dtype of ml_dtypes, which has no byte orders: its bits have.
        array = np.ascontiguousarray(array).view(np.uint16)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
