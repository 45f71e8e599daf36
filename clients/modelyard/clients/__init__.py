"""The clients room: one interface to a served model, over gRPC or REST, blocking or not, without TensorFlow."""

from modelyard.clients._async_client import AsyncClient, connect_async
from modelyard.clients._client import Client, connect
from modelyard.clients._files import SourceRow, read_rows
from modelyard.clients._many import ManyOptions, RowResult
from modelyard.clients._model import AsyncModel, BoundSignature, Model, prepare_inputs
from modelyard.clients._options import BalanceOptions, ClientOptions, RetryOptions, TlsOptions
from modelyard.clients._progress import ProgressBar
from modelyard.clients._results import (
    Classification,
    ClassScore,
    InferenceTask,
    ModelConfig,
    ModelMetadata,
    ModelStatus,
    Prediction,
    Regression,
    SignatureInfo,
    TensorInfo,
    VersionState,
    VersionStatus,
)

__all__ = [
    "AsyncClient",
    "AsyncModel",
    "BalanceOptions",
    "BoundSignature",
    "ClassScore",
    "Classification",
    "Client",
    "ClientOptions",
    "InferenceTask",
    "ManyOptions",
    "Model",
    "ModelConfig",
    "ModelMetadata",
    "ModelStatus",
    "Prediction",
    "ProgressBar",
    "Regression",
    "RetryOptions",
    "RowResult",
    "SignatureInfo",
    "SourceRow",
    "TensorInfo",
    "TlsOptions",
    "VersionState",
    "VersionStatus",
    "connect",
    "connect_async",
    "prepare_inputs",
    "read_rows",
]
