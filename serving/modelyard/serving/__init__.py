"""The serving room: a drop-in for TensorFlow Serving that needs no TensorFlow."""

from modelyard.serving.config import LoadOptions, ModelConfig, ServerOptions, VersionPolicy, WatchOptions, parse_flags
from modelyard.serving.prediction import ModelMetadata, Predictor
from modelyard.serving.repository import ModelManager, VersionState, VersionStatus
from modelyard.serving.requests import ModelSpec, Prediction, PredictRequest
from modelyard.serving.runtime import Server, run
from modelyard.serving.servables import Servable, load_servable

__all__ = [
    "LoadOptions",
    "ModelConfig",
    "ModelManager",
    "ModelMetadata",
    "ModelSpec",
    "PredictRequest",
    "Prediction",
    "Predictor",
    "Servable",
    "Server",
    "ServerOptions",
    "VersionPolicy",
    "VersionState",
    "VersionStatus",
    "WatchOptions",
    "load_servable",
    "parse_flags",
    "run",
]
