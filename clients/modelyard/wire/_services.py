"""The gRPC methods of TensorFlow Serving and the Open Inference Protocol, as data for the server and the clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from modelyard.wire._generated import inference_pb2, serving_pb2


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

#: The stream, ModelStreamInfer, is not among these: they are unary.
INFERENCE_SERVICE = _service(
    "inference.GRPCInferenceService",
    ("LogSettings", inference_pb2.LogSettingsRequest, inference_pb2.LogSettingsResponse),
    ("ModelConfig", inference_pb2.ModelConfigRequest, inference_pb2.ModelConfigResponse),
    ("ModelInfer", inference_pb2.ModelInferRequest, inference_pb2.ModelInferResponse),
    ("ModelMetadata", inference_pb2.ModelMetadataRequest, inference_pb2.ModelMetadataResponse),
    ("ModelReady", inference_pb2.ModelReadyRequest, inference_pb2.ModelReadyResponse),
    ("ModelStatistics", inference_pb2.ModelStatisticsRequest, inference_pb2.ModelStatisticsResponse),
    ("RepositoryIndex", inference_pb2.RepositoryIndexRequest, inference_pb2.RepositoryIndexResponse),
    ("RepositoryModelLoad", inference_pb2.RepositoryModelLoadRequest, inference_pb2.RepositoryModelLoadResponse),
    ("RepositoryModelUnload", inference_pb2.RepositoryModelUnloadRequest, inference_pb2.RepositoryModelUnloadResponse),
    ("ServerLive", inference_pb2.ServerLiveRequest, inference_pb2.ServerLiveResponse),
    ("ServerMetadata", inference_pb2.ServerMetadataRequest, inference_pb2.ServerMetadataResponse),
    ("ServerReady", inference_pb2.ServerReadyRequest, inference_pb2.ServerReadyResponse),
)
