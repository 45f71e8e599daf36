"""The serving room: a drop-in for TensorFlow Serving that needs no TensorFlow."""

from modelyard.serving._config import ModelConfig, VersionPolicy
from modelyard.serving._flags import ServerOptions, parse_flags
from modelyard.serving._loader import LoadOptions, load_servable
from modelyard.serving._manager import ModelManager
from modelyard.serving._predictor import ModelMetadata, Predictor
from modelyard.serving._requests import ModelSpec, Prediction, PredictRequest
from modelyard.serving._servable import Servable
from modelyard.serving._server import Server, run
from modelyard.serving._states import VersionState, VersionStatus
from modelyard.serving._watcher import WatchOptions

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
