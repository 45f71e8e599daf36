"""The Open Inference Protocol on the data plane, with no transport in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from importlib.metadata import version as installed_version
from typing import Any, TypeVar

import numpy.typing as npt
from google.protobuf.message import Message

from modelyard.artifact import DEFAULT_SIGNATURE
from modelyard.errors import InvalidInputError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from modelyard.serving.handlers.oip._arrays import classify
from modelyard.serving.handlers.oip._datatypes import datatype_of
from modelyard.serving.handlers.oip._model_config import model_config
from modelyard.serving.handlers.oip._parameters import echoed, signature_of
from modelyard.serving.handlers.oip._types import (
    InferOutput,
    InferRequest,
    InferResult,
    RequestedOutput,
)
from modelyard.serving.handlers.rest import statuses_of
from modelyard.serving.metrics import ExecutionStatistics, VersionStatistics
from modelyard.serving.prediction import Predictor
from modelyard.serving.repository import Admin, ModelManager, VersionState, VersionStatus
from modelyard.serving.requests import MAX_VERSION, Arrays, ModelSpec, Prediction, PredictRequest, whole_number
from modelyard.wire import dtype_by_numpy, inference_pb2

_T = TypeVar("_T")

SERVER_NAME = "modelyard"
#: What is offered beyond the protocol's core, in Triton's words.
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
#: There are no ensembles, so no model has dependents.
_NO_EFFECT_ON_UNLOAD = "unload_dependents"
#: Names of backends to the protocol's ``<project>_<format>``.
_PLATFORMS = {
    "tensorflow": "tensorflow_savedmodel",
    "onnxruntime": "onnx_onnxv1",
    "litert": "tensorflow_tflite",
}
_INDEX_STATES = {
    VersionState.AVAILABLE: "READY",
    VersionState.UNLOADING: "UNLOADING",
    VersionState.START: "LOADING",
    VersionState.LOADING: "LOADING",
}


class OipService:
    """Answers the protocol's requests; REST and gRPC only translate."""

    def __init__(self, manager: ModelManager, predictor: Predictor, admin: Admin) -> None:
        self._manager = manager
        self._predictor = predictor
        self._admin = admin

    @property
    def version(self) -> str:
        return installed_version("modelyard")

    def ready(self) -> bool:
        """Whether every model that is meant to be loaded can answer."""
        return self._manager.all_ready()

    def model_ready(self, name: str, version: str) -> bool:
        """Whether a model, or one version of it, can answer."""
        number = parse_version(version)
        available = self._available(name)
        return not self._manager.leaving and any(number in (None, status.version) for status in available)

    def model_metadata(self, name: str, version: str, signature: str = "") -> inference_pb2.ModelMetadataResponse:
        with self._manager.acquire(ModelSpec(name=name, version=parse_version(version))) as servable:
            described = servable.signature(signature or DEFAULT_SIGNATURE)
            platform = _PLATFORMS.get(servable.backend.name, servable.backend.name)
        versions = [str(status.version) for status in reversed(self._available(name))]
        response = inference_pb2.ModelMetadataResponse(name=name, versions=versions, platform=platform)
        for specs, field in ((described.inputs, response.inputs), (described.outputs, response.outputs)):
            for spec in specs:
                # The protocol has no unknown rank: it shows as a single -1.
                shape = (-1,) if spec.shape is None else spec.shape
                field.add(name=spec.name, datatype=datatype_of(spec.dtype, tensor=spec.name), shape=shape)
        return response

    def model_config(self, name: str, version: str, signature: str = "") -> inference_pb2.ModelConfig:
        """A model's configuration in Triton's form; raises as :meth:`model_metadata` does."""
        with self._manager.acquire(ModelSpec(name=name, version=parse_version(version))) as servable:
            described = servable.signature(signature or DEFAULT_SIGNATURE)
            # A model that was just taken out of the configuration may still answer.
            configured = next((config for config in self._manager.configs if config.name == name), None)
            if configured is None:
                raise ModelNotFoundError(f"Model {name!r} is not configured any more.")
            return model_config(servable, described, configured, max_rows=self._predictor.max_batch_rows)

    async def infer(self, request: InferRequest, encode: Callable[[InferResult], _T]) -> _T:
        return await self._predictor.submit(
            predict_request(request),
            lambda prediction: encode(infer_result(request, prediction)),
        )

    def index(self, *, repository: str = "", ready: bool = False) -> inference_pb2.RepositoryIndexResponse:
        """Lists the models, or only versions that can answer; there is only the repository without a name."""
        _check_repository(repository)
        response = inference_pb2.RepositoryIndexResponse()
        for name in sorted(self._manager.names):
            statuses = statuses_of(self._manager, name)
            for status in reversed(statuses):
                state = _INDEX_STATES.get(status.state, "UNAVAILABLE")
                if ready and state != "READY":
                    continue
                reason = "" if state != "UNAVAILABLE" else "unloaded" if status.error is None else status.error.message
                response.models.add(name=name, version=str(status.version), state=state, reason=reason)
            if not statuses and not ready:
                response.models.add(name=name, state="UNAVAILABLE", reason="not loaded")
        return response

    async def load(self, name: str, parameters: Iterable[str], *, repository: str = "") -> None:
        """Loads a model, and returns when it is loaded."""
        _check_control(parameters, repository)
        await self._admin.load(name)

    async def unload(self, name: str, parameters: Iterable[str], *, repository: str = "") -> None:
        """Unloads a model, and returns when it is unloaded; raises as :meth:`load` does."""
        _check_control((key for key in parameters if key != _NO_EFFECT_ON_UNLOAD), repository)
        await self._admin.unload(name)

    def statistics(self, name: str, version: str) -> inference_pb2.ModelStatisticsResponse:
        """What was measured for the versions that can answer, of one model or all."""
        number = parse_version(version)
        response = inference_pb2.ModelStatisticsResponse()
        for model in [name] if name else sorted(self._manager.names):
            for status in reversed(self._available(model)):
                if number in (None, status.version):
                    _fill_statistics(response.model_stats.add(), self._predictor.statistics.of(model, status.version))
        if name and not response.model_stats:
            raise ModelNotFoundError(f"Model {name!r}" + (f" version {version}" if version else "") + " is not loaded.")
        return response

    def _available(self, name: str) -> tuple[VersionStatus, ...]:
        """The versions that can answer, newest first; retired models have none."""
        return tuple(status for status in statuses_of(self._manager, name) if status.state is VersionState.AVAILABLE)


def predict_request(request: InferRequest) -> PredictRequest:
    signature = signature_of(request.parameters)
    return PredictRequest(
        spec=ModelSpec(name=request.model, version=parse_version(request.version), signature=signature),
        inputs=request.inputs,
        output_filter=tuple(output.name for output in request.outputs),
        small=request.small,
        caller=request.caller,
        size=request.size,
    )


def parse_version(text: str) -> int | None:
    if not text:
        return None
    version = whole_number(text, MAX_VERSION)
    if version is None:
        raise InvalidRequestError(
            f"failed to get model version from specified version string {text!r}; version should be an integer > 0."
        )
    return version


def collect_inputs(tensors: Iterable[tuple[str, Callable[[], npt.NDArray[Any]]]]) -> Arrays:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, decode in tensors:
        if name in arrays:
            raise InvalidInputError(f"Input {name!r} is in the request more than once; expected it once.")
        arrays[name] = decode()
    return arrays


def _check_control(parameters: Iterable[str], repository: str) -> None:
    _check_repository(repository)
    for key in parameters:
        raise UnsupportedError(
            f"Parameter {key!r} is not supported: what a model is comes from its base path, and how it is served "
            "from the server's flags and --model_config_file."
        )


def _check_repository(name: str) -> None:
    if name:
        raise UnsupportedError(f"Repository {name!r}: 'repository_name' specification is not supported.")


#: Durations that requests and executions have.
_EXECUTION_PARTS = ("compute_input", "compute_infer", "compute_output")


def _fill_statistics(message: inference_pb2.ModelStatistics, row: VersionStatistics) -> None:
    message.name = row.name
    message.version = str(row.version)
    message.last_inference = row.last_inference_ms
    message.inference_count = row.inference_count
    message.execution_count = row.execution_count
    _fill_durations(message.inference_stats, row, ("success", "fail", "queue", *_EXECUTION_PARTS))
    message.inference_stats.cache_hit.SetInParent()
    message.inference_stats.cache_miss.SetInParent()
    for rows, execution in row.batches.items():
        _fill_durations(message.batch_stats.add(batch_size=rows), execution, _EXECUTION_PARTS)


def _fill_durations(
    message: Message, statistics: VersionStatistics | ExecutionStatistics, names: Sequence[str]
) -> None:
    for name in names:
        part, target = getattr(statistics, name), getattr(message, name)
        target.count, target.ns = part.count, part.ns
        target.SetInParent()


def document_of(message: Message) -> dict[str, Any]:
    """A message as JSON values: protobuf's own JSON has whole numbers as text, and Triton's has not."""
    document: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, MutableSequence):
            document[field.name] = [document_of(item) if isinstance(item, Message) else item for item in value]
        elif not field.has_presence or message.HasField(field.name):
            enum = field.enum_type
            plain = value if enum is None else enum.values_by_number[value].name
            document[field.name] = document_of(plain) if isinstance(plain, Message) else plain
    return document


def infer_result(request: InferRequest, prediction: Prediction) -> InferResult:
    wanted = request.outputs or tuple(RequestedOutput(name=name, binary=request.binary) for name in prediction.outputs)
    outputs = []
    for output in wanted:
        array = prediction.outputs[output.name]
        if output.classification:
            array = classify(array, output.classification, tensor=output.name)
        datatype = datatype_of(dtype_by_numpy(array.dtype).name, tensor=output.name)
        outputs.append(InferOutput(name=output.name, datatype=datatype, array=array, binary=output.binary))
    return InferResult(
        model=request.model,
        version=str(prediction.spec.version),
        id=request.id,
        parameters=echoed(request.parameters),
        outputs=tuple(outputs),
    )
