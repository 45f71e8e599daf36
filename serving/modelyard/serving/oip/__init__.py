"""The Open Inference Protocol (KServe's v2) with Triton's extensions, on the same data plane and ports.

REST below /v2 and gRPC ``inference.GRPCInferenceService``; the specification is
KServe's open-inference-protocol repository and Triton's protocol extensions.
"""

from modelyard.serving.oip._grpc import OipGrpc
from modelyard.serving.oip._rest import OipRest
from modelyard.serving.oip._service import OipService
from modelyard.serving.oip._types import (
    IndexEntry,
    InferOutput,
    InferRequest,
    InferResult,
    OipModelMetadata,
    RequestedOutput,
    TensorMetadata,
)

__all__ = [
    "IndexEntry",
    "InferOutput",
    "InferRequest",
    "InferResult",
    "OipGrpc",
    "OipModelMetadata",
    "OipRest",
    "OipService",
    "RequestedOutput",
    "TensorMetadata",
]
