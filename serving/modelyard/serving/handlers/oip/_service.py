"""The Open Inference Protocol on the data plane, with no transport in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version as installed_version
from typing import Any, TypeVar

import numpy.typing as npt

from modelyard.artifact import DEFAULT_SIGNATURE, TensorSpec
from modelyard.errors import InvalidInputError, InvalidRequestError, ModelNotFoundError, UnsupportedError
from modelyard.serving.handlers.oip._arrays import classify
from modelyard.serving.handlers.oip._datatypes import datatype_of
from modelyard.serving.handlers.oip._logging import Setting, change_log_settings, log_settings
from modelyard.serving.handlers.oip._model_config import model_config
from modelyard.serving.handlers.oip._parameters import echoed, signature_of
from modelyard.serving.handlers.oip._types import (
    IndexEntry,
    InferOutput,
    InferRequest,
    InferResult,
    OipModelMetadata,
    RequestedOutput,
    TensorMetadata,
)
from modelyard.serving.metrics import VersionStatistics
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
    """Answers the protocol's requests; REST and gRPC only translate.

    Args:
        manager: The models.
        predictor: The data plane.
        admin: Loads and unloads.
    """

    def __init__(self, manager: ModelManager, predictor: Predictor, admin: Admin) -> None:
        self._manager = manager
        self._predictor = predictor
        self._admin = admin

    @property
    def version(self) -> str:
        """The server's version."""
        return installed_version("modelyard")

    def ready(self) -> bool:
        """Whether every model that is meant to be loaded can answer."""
        return self._manager.all_ready()

    def model_ready(self, name: str, version: str) -> bool:
        """Whether a model, or one version of it, can answer.

        Args:
            name: The model; one that is not configured is not ready.
            version: A version; empty for any.

        Raises:
            InvalidRequestError: The version is not a number.
        """
        number = parse_version(version)
        available = self._available(name)
        return not self._manager.leaving and any(number in (None, status.version) for status in available)

    def model_metadata(self, name: str, version: str, signature: str = "") -> OipModelMetadata:
        """Describes a model.

        Args:
            name: The model.
            version: A version; empty for the newest.
            signature: A signature; empty for ``serving_default``.

        Raises:
            InvalidRequestError: The version is not a number.
            ModelNotFoundError: Unknown model or version.
            SignatureNotFoundError: Unknown signature.
            UnavailableError: The model was not loaded yet.
            UnsupportedError: A tensor's dtype has no name in the protocol.
        """
        with self._manager.acquire(ModelSpec(name=name, version=parse_version(version))) as servable:
            described = servable.signature(signature or DEFAULT_SIGNATURE)
            platform = _PLATFORMS.get(servable.backend.name, servable.backend.name)
        return OipModelMetadata(
            name=name,
            versions=tuple(str(status.version) for status in reversed(self._available(name))),
            platform=platform,
            inputs=_describe(described.inputs),
            outputs=_describe(described.outputs),
        )

    def model_config(self, name: str, version: str, signature: str = "") -> inference_pb2.ModelConfig:
        """A model's configuration in Triton's form; raises as :meth:`model_metadata` does.

        Args:
            name: The model.
            version: A version; empty for the newest.
            signature: A signature; empty for ``serving_default``.
        """
        with self._manager.acquire(ModelSpec(name=name, version=parse_version(version))) as servable:
            described = servable.signature(signature or DEFAULT_SIGNATURE)
            # A model that was just taken out of the configuration may still answer.
            configured = next((config for config in self._manager.configs if config.name == name), None)
            if configured is None:
                raise ModelNotFoundError(f"Model {name!r} is not configured any more.")
            return model_config(servable, described, configured, max_rows=self._predictor.max_batch_rows)

    async def infer(self, request: InferRequest, encode: Callable[[InferResult], _T]) -> _T:
        """Computes one inference, off the event loop.

        Args:
            request: The request.
            encode: Turns the result into what the transport sends, on the worker thread.

        Raises:
            InvalidRequestError: A parameter, the version or an input makes no sense.
            ModelNotFoundError: Unknown model or version.
            PredictionError: The model failed.
            SignatureNotFoundError: Unknown signature.
            UnavailableError: The model was not loaded yet.
            UnsupportedError: An output's dtype has no name in the protocol.
        """
        return await self._predictor.submit(
            predict_request(request),
            lambda prediction: encode(infer_result(request, prediction)),
        )

    def index(self, *, repository: str = "", ready: bool = False) -> tuple[IndexEntry, ...]:
        """Lists the models.

        Args:
            repository: Name of a repository; there is only the one without a name.
            ready: Only versions that can answer.

        Raises:
            UnsupportedError: A repository was named.
        """
        _check_repository(repository)
        entries: list[IndexEntry] = []
        for name in sorted(self._manager.names):
            statuses = self._statuses(name)
            entries += [_index_entry(name, status) for status in reversed(statuses)]
            if not statuses:
                entries.append(IndexEntry(name=name, version="", state="UNAVAILABLE", reason="not loaded"))
        return tuple(entry for entry in entries if entry.state == "READY" or not ready)

    async def load(self, name: str, parameters: Iterable[str], *, repository: str = "") -> None:
        """Loads a model, and returns when it is loaded.

        Args:
            name: The model.
            parameters: Names of the request's parameters.
            repository: As for :meth:`index`.

        Raises:
            LoadError: A version cannot be loaded, or there is none.
            ModelNotFoundError: The model is not configured.
            UnsupportedError: Not in explicit mode, a repository was named, or a parameter that is not supported.
        """
        _check_control(parameters, repository)
        await self._admin.load(name)

    async def unload(self, name: str, parameters: Iterable[str], *, repository: str = "") -> None:
        """Unloads a model, and returns when it is unloaded; raises as :meth:`load` does.

        Args:
            name: The model.
            parameters: Names of the request's parameters.
            repository: As for :meth:`index`.
        """
        _check_control((key for key in parameters if key != _NO_EFFECT_ON_UNLOAD), repository)
        await self._admin.unload(name)

    def log_settings(self, changes: Mapping[str, object]) -> dict[str, Setting]:
        """What the log tells, after a change.

        Args:
            changes: Settings by Triton's names; none to change nothing.

        Raises:
            InvalidRequestError: A setting makes no sense.
            UnsupportedError: It cannot be changed.
        """
        return change_log_settings(changes) if changes else log_settings()

    def statistics(self, name: str, version: str) -> tuple[VersionStatistics, ...]:
        """What was measured for the versions that can answer.

        Args:
            name: A model; empty for all.
            version: One version; empty for all.

        Raises:
            InvalidRequestError: The version is not a number.
            ModelNotFoundError: Unknown model or version, or one that cannot answer.
        """
        number = parse_version(version)
        names = [name] if name else sorted(self._manager.names)
        found = tuple(
            self._predictor.statistics.of(model, status.version)
            for model in names
            for status in reversed(self._available(model))
            if number is None or status.version == number
        )
        if name and not found:
            raise ModelNotFoundError(f"Model {name!r}" + (f" version {version}" if version else "") + " is not loaded.")
        return found

    def _statuses(self, name: str) -> tuple[VersionStatus, ...]:
        try:
            return self._manager.status(name)
        except ModelNotFoundError:
            return ()

    def _available(self, name: str) -> tuple[VersionStatus, ...]:
        """The versions that can answer, newest first; retired models have none."""
        return tuple(status for status in self._statuses(name) if status.state is VersionState.AVAILABLE)


def predict_request(request: InferRequest) -> PredictRequest:
    """What an inference asks of the data plane.

    Args:
        request: The request.

    Raises:
        InvalidRequestError: The version or the signature makes no sense.
    """
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
    """Parses a version.

    Args:
        text: A whole number; empty for the newest.

    Raises:
        InvalidRequestError: Something else.
    """
    if not text:
        return None
    version = whole_number(text, MAX_VERSION)
    if version is None:
        raise InvalidRequestError(
            f"failed to get model version from specified version string {text!r}; version should be an integer > 0."
        )
    return version


def collect_inputs(tensors: Iterable[tuple[str, Callable[[], npt.NDArray[Any]]]]) -> Arrays:
    """Decodes the inputs of a request.

    Args:
        tensors: Names, and what decodes each.

    Raises:
        InvalidInputError: The same name twice, or what decoding raises.
    """
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


def _describe(specs: Iterable[TensorSpec]) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(
            name=spec.name,
            datatype=datatype_of(spec.dtype, tensor=spec.name),
            shape=(-1,) if spec.shape is None else spec.shape,
        )
        for spec in specs
    )


def _index_entry(name: str, status: VersionStatus) -> IndexEntry:
    state = _INDEX_STATES.get(status.state, "UNAVAILABLE")
    reason = "" if state != "UNAVAILABLE" else "unloaded" if status.error is None else status.error.message
    return IndexEntry(name=name, version=str(status.version), state=state, reason=reason)


def infer_result(request: InferRequest, prediction: Prediction) -> InferResult:
    """What the data plane's answer means in the protocol.

    Args:
        request: The request.
        prediction: The answer.

    Raises:
        UnsupportedError: An output's dtype has no name in the protocol.
    """
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
