"""The wire: messages of TensorFlow Serving and the Open Inference Protocol, numpy codecs, and status tables.

Nothing here imports TensorFlow, and nothing here clashes with a TensorFlow that
the same process imports before or after.
"""

from modelyard.wire._cast import cast_unchanged
from modelyard.wire._dtypes import DType, dtype_by_enum, dtype_by_name, dtype_by_numpy, dtype_names
from modelyard.wire._generated import (
    config_pb2,
    error_pb2,
    inference_pb2,
    metrics_pb2,
    serving_pb2,
    tensorflow_pb2,
    traffic_pb2,
)
from modelyard.wire._generated._pool import Default as descriptor_pool
from modelyard.wire._json import json_text
from modelyard.wire._oip import OIP_CONTENTS, OIP_DATATYPES, OIP_DTYPES, array_to_raw
from modelyard.wire._services import INFERENCE_SERVICE, MODEL_SERVICE, PREDICTION_SERVICE, Method
from modelyard.wire._status import (
    GRPC_STATUS,
    HTTP_STATUS,
    error_code_of,
    error_from_grpc,
    error_from_http,
    grpc_status_of,
    http_status_of,
)
from modelyard.wire._tensors import (
    MAX_ELEMENTS,
    MAX_RANK,
    array_to_tensor,
    as_wire_array,
    has_room,
    object_array,
    refuse_masked,
    shape_from_proto,
    shape_to_proto,
    tensor_to_array,
    tensors_to_arrays,
)
from modelyard.wire._tfrecord import MAX_MESSAGE, crc32c, frame_record, read_records
from modelyard.wire._varint import decimal, varint

__all__ = [
    "DType",
    "GRPC_STATUS",
    "HTTP_STATUS",
    "INFERENCE_SERVICE",
    "MAX_ELEMENTS",
    "MAX_MESSAGE",
    "MAX_RANK",
    "MODEL_SERVICE",
    "Method",
    "OIP_CONTENTS",
    "OIP_DATATYPES",
    "OIP_DTYPES",
    "PREDICTION_SERVICE",
    "array_to_raw",
    "array_to_tensor",
    "as_wire_array",
    "cast_unchanged",
    "config_pb2",
    "crc32c",
    "decimal",
    "descriptor_pool",
    "dtype_by_enum",
    "dtype_by_name",
    "dtype_by_numpy",
    "dtype_names",
    "error_code_of",
    "error_from_grpc",
    "error_from_http",
    "error_pb2",
    "frame_record",
    "grpc_status_of",
    "has_room",
    "http_status_of",
    "inference_pb2",
    "json_text",
    "metrics_pb2",
    "object_array",
    "read_records",
    "refuse_masked",
    "serving_pb2",
    "shape_from_proto",
    "shape_to_proto",
    "tensor_to_array",
    "tensorflow_pb2",
    "tensors_to_arrays",
    "traffic_pb2",
    "varint",
]
