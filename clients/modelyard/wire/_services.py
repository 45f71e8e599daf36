"""The gRPC methods of TensorFlow Serving, as data that both the server and the clients read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from modelyard.wire._generated import serving_pb2


@dataclass(frozen=True, kw_only=True)
class Method:
    """One unary method.

    Attributes:
        service: Full name of the service.
        name: Name of the method.
        request: Class of its request message.
        response: Class of its response message.
    """

    service: str
    name: str
    request: Any
    response: Any

    @property
    def path(self) -> str:
        """The method's path on the wire: ``/package.Service/Method``."""
        return f"/{self.service}/{self.name}"


def _service(service: str, *methods: tuple[str, Any, Any]) -> dict[str, Method]:
    return {
        name: Method(service=service, name=name, request=request, response=response)
        for name, request, response in methods
    }


PREDICTION_SERVICE = _service(
    "tensorflow.serving.PredictionService",
    ("Classify", serving_pb2.ClassificationRequest, serving_pb2.ClassificationResponse),
    ("GetModelMetadata", serving_pb2.GetModelMetadataRequest, serving_pb2.GetModelMetadataResponse),
    ("MultiInference", serving_pb2.MultiInferenceRequest, serving_pb2.MultiInferenceResponse),
    ("Predict", serving_pb2.PredictRequest, serving_pb2.PredictResponse),
    ("Regress", serving_pb2.RegressionRequest, serving_pb2.RegressionResponse),
)

MODEL_SERVICE = _service(
    "tensorflow.serving.ModelService",
    ("GetModelStatus", serving_pb2.GetModelStatusRequest, serving_pb2.GetModelStatusResponse),
    ("HandleReloadConfigRequest", serving_pb2.ReloadConfigRequest, serving_pb2.ReloadConfigResponse),
)
