"""The Open Inference Protocol's names of dtypes beside TensorFlow's."""

from __future__ import annotations

from collections.abc import Mapping

#: By the protocol's name; BF16 is Triton's addition.
OIP_DTYPES: Mapping[str, str] = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BYTES": "string", "BF16": "bfloat16",
}  # fmt: skip
#: By TensorFlow's name.
OIP_DATATYPES: Mapping[str, str] = {dtype: datatype for datatype, dtype in OIP_DTYPES.items()}
