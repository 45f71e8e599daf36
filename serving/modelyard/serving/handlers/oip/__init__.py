"""The Open Inference Protocol (KServe's v2) with Triton's extensions, on the same data plane and ports.

REST below /v2 and gRPC ``inference.GRPCInferenceService``; the specification is
KServe's open-inference-protocol repository and Triton's protocol extensions.
"""

from modelyard.serving.handlers.oip._grpc import OipGrpc
from modelyard.serving.handlers.oip._rest import ROUTES, OipRest
from modelyard.serving.handlers.oip._service import OipService
from modelyard.serving.handlers.oip._types import InferOutput, InferRequest, InferResult, RequestedOutput

__all__ = [
    "InferOutput",
    "InferRequest",
    "InferResult",
    "OipGrpc",
    "OipRest",
    "OipService",
    "ROUTES",
    "RequestedOutput",
]
