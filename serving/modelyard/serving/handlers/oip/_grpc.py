"""The protocol over gRPC: Triton's GRPCInferenceService."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import numpy.typing as npt
from google.protobuf.message import DecodeError

from modelyard.errors import InvalidInputError, InvalidRequestError, ModelyardError
from modelyard.serving.access import Access, Scope, admitted
from modelyard.serving.handlers.grpc import caller_of
from modelyard.serving.handlers.oip._arrays import array_to_raw, check_shape, contents_to_array, raw_to_array
from modelyard.serving.handlers.oip._parameters import (
    FINAL_RESPONSE_PARAMETER,
    classification_of,
    flag_of,
    refuse_shared_memory,
)
from modelyard.serving.handlers.oip._service import EXTENSIONS, SERVER_NAME, OipService, collect_inputs
from modelyard.serving.handlers.oip._types import InferRequest, InferResult, Parameter, RequestedOutput
from modelyard.serving.metrics import ExecutionStatistics, Metrics, VersionStatistics
from modelyard.serving.prediction import SMALL_BYTES
from modelyard.serving.transports.grpc import Context, Guard, Handler, failure_of, unary
from modelyard.wire import INFERENCE_SERVICE, inference_pb2

_STREAM = "ModelStreamInfer"
_FINAL = "triton_final_response"


def _model_name(message: Any) -> str:
    return str(message.model_name)


def _name(message: Any) -> str:
    return str(message.name)


#: What callers of each method need, and the model that it is about.
_NEEDS: Mapping[str, tuple[Scope | None, Callable[[Any], str] | None]] = {
    "LogSettings": ("admin", None),
    "ModelConfig": ("metadata", _name),
    "ModelInfer": ("predict", _model_name),
    "ModelMetadata": ("metadata", _name),
    "ModelReady": (None, None),
    "ModelStatistics": ("metrics", _name),
    _STREAM: ("predict", _model_name),
    "RepositoryIndex": ("metadata", None),
    "RepositoryModelLoad": ("admin", _model_name),
    "RepositoryModelUnload": ("admin", _model_name),
    "ServerLive": (None, None),
    "ServerMetadata": ("metadata", None),
    "ServerReady": (None, None),
}


class OipGrpc:
    """GRPCInferenceService on the data plane.

    Args:
        service: The protocol on the data plane.
        metrics: Where requests are counted.
        access: Who may do what.
    """

    def __init__(self, service: OipService, metrics: Metrics, access: Access) -> None:
        self._service = service
        self._metrics = metrics
        self._guards = {name: Guard(access=access, scope=scope, model=model) for name, (scope, model) in _NEEDS.items()}

    def services(self) -> dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]]:
        """The method handlers, by service and method."""
        handlers: dict[str, Handler] = {
            "LogSettings": self._log_settings,
            "ModelConfig": self._model_config,
            "ModelInfer": self._infer,
            "ModelMetadata": self._model_metadata,
            "ModelReady": self._model_ready,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            "ServerLive": self._live,
            "ServerMetadata": self._server_metadata,
            "ServerReady": self._ready,
        }
        methods = {
            name: unary(method, handlers[name], self._metrics, self._guards[name])
            for name, method in INFERENCE_SERVICE.items()
        }
        methods[_STREAM] = grpc.stream_stream_rpc_method_handler(self._stream)
        return {next(iter(INFERENCE_SERVICE.values())).service: methods}

    async def _live(self, _: inference_pb2.ServerLiveRequest, __: Context) -> bytes:
        return inference_pb2.ServerLiveResponse(live=True).SerializeToString()

    async def _ready(self, _: inference_pb2.ServerReadyRequest, __: Context) -> bytes:
        return inference_pb2.ServerReadyResponse(ready=self._service.ready()).SerializeToString()

    async def _model_ready(self, message: inference_pb2.ModelReadyRequest, _: Context) -> bytes:
        ready = self._service.model_ready(message.name, message.version)
        return inference_pb2.ModelReadyResponse(ready=ready).SerializeToString()

    async def _server_metadata(self, _: inference_pb2.ServerMetadataRequest, __: Context) -> bytes:
        return inference_pb2.ServerMetadataResponse(
            name=SERVER_NAME, version=self._service.version, extensions=EXTENSIONS
        ).SerializeToString()

    async def _model_metadata(self, message: inference_pb2.ModelMetadataRequest, _: Context) -> bytes:
        metadata = self._service.model_metadata(message.name, message.version)
        response = inference_pb2.ModelMetadataResponse(
            name=metadata.name, versions=metadata.versions, platform=metadata.platform
        )
        for tensors, field in ((metadata.inputs, response.inputs), (metadata.outputs, response.outputs)):
            for item in tensors:
                field.add(name=item.name, datatype=item.datatype, shape=item.shape)
        return response.SerializeToString()

    async def _model_config(self, message: inference_pb2.ModelConfigRequest, _: Context) -> bytes:
        config = self._service.model_config(message.name, message.version)
        return inference_pb2.ModelConfigResponse(config=config).SerializeToString()

    async def _infer(self, message: inference_pb2.ModelInferRequest, context: Context) -> bytes:
        return await self._service.infer(
            _request_of(message, context), lambda result: infer_response(result).SerializeToString()
        )

    async def _stream(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Answers one request after the other; an error ends its request, not the stream."""
        async for data in requests:
            yield (await self._stream_answer(data, context)).SerializeToString()

    async def _stream_answer(self, data: bytes, context: Context) -> inference_pb2.ModelStreamInferResponse:
        answer = inference_pb2.ModelStreamInferResponse()
        try:
            guard = self._guards[_STREAM]
            caller = guard.identify(context)
            message = inference_pb2.ModelInferRequest.FromString(data)
            answer.infer_response.id = message.id
            with guard.admit(caller, message) as ticket:
                admitted.set(ticket)
                answer.infer_response.CopyFrom(await self._service.infer(_request_of(message, context), infer_response))
            if FINAL_RESPONSE_PARAMETER in message.parameters:
                answer.infer_response.parameters[_FINAL].bool_param = True
        except DecodeError as exc:
            answer.error_message = f"The message is not an inference.ModelInferRequest: {exc}"
        except ModelyardError as exc:
            answer.error_message = exc.message
        # Whatever escapes is a bug of ours; its text may hold what strangers must not read.
        except Exception as exc:
            _, answer.error_message = failure_of(exc, _STREAM)
        return answer

    async def _statistics(self, message: inference_pb2.ModelStatisticsRequest, _: Context) -> bytes:
        response = inference_pb2.ModelStatisticsResponse()
        for row in self._service.statistics(message.name, message.version):
            _fill_statistics(response.model_stats.add(), row)
        return response.SerializeToString()

    async def _index(self, message: inference_pb2.RepositoryIndexRequest, _: Context) -> bytes:
        response = inference_pb2.RepositoryIndexResponse()
        for entry in self._service.index(repository=message.repository_name, ready=message.ready):
            response.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
        return response.SerializeToString()

    async def _load(self, message: inference_pb2.RepositoryModelLoadRequest, _: Context) -> bytes:
        await self._service.load(message.model_name, list(message.parameters), repository=message.repository_name)
        return inference_pb2.RepositoryModelLoadResponse().SerializeToString()

    async def _unload(self, message: inference_pb2.RepositoryModelUnloadRequest, _: Context) -> bytes:
        await self._service.unload(message.model_name, list(message.parameters), repository=message.repository_name)
        return inference_pb2.RepositoryModelUnloadResponse().SerializeToString()

    async def _log_settings(self, message: inference_pb2.LogSettingsRequest, _: Context) -> bytes:
        changes = {
            name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param")
            for name, value in message.settings.items()
        }
        response = inference_pb2.LogSettingsResponse()
        for name, value in self._service.log_settings(changes).items():
            # A bool is an int, too.
            kind = (
                "bool_param"
                if isinstance(value, bool)
                else "uint32_param"
                if isinstance(value, int)
                else "string_param"
            )
            setattr(response.settings[name], kind, value)
        return response.SerializeToString()


def _request_of(message: inference_pb2.ModelInferRequest, context: Context) -> InferRequest:
    size = message.ByteSize()
    return replace(infer_request(message), small=size <= SMALL_BYTES, size=size, caller=caller_of(context))


def infer_request(message: inference_pb2.ModelInferRequest) -> InferRequest:
    """Decodes a request; its tensors are decoded later, on a worker thread.

    Args:
        message: The message.

    Raises:
        InvalidInputError: Raw and typed contents are mixed, or not one raw content per input.
        InvalidRequestError: A parameter makes no sense.
        UnsupportedError: Shared memory.
    """
    raw = message.raw_input_contents
    if raw:
        if any(item.HasField("contents") for item in message.inputs):
            raise InvalidInputError(
                "contents field must not be specified when using raw_input_contents; a request has one or the other."
            )
        if len(raw) != len(message.inputs):
            raise InvalidInputError(
                f"expected {len(message.inputs)} raw_input_contents, one for each input; received {len(raw)}."
            )
    tensors: list[tuple[str, Callable[[], npt.NDArray[Any]]]] = []
    for index, item in enumerate(message.inputs):
        refuse_shared_memory(_parameters(item.parameters), f"input {item.name!r}")
        sizes = check_shape(list(item.shape), tensor=item.name)
        decode = partial(raw_to_array, raw[index]) if raw else partial(contents_to_array, item.contents)
        tensors.append((item.name, partial(decode, item.datatype, sizes, tensor=item.name)))
    outputs = []
    for output in message.outputs:
        parameters = _parameters(output.parameters)
        refuse_shared_memory(parameters, f"output {output.name!r}")
        # tritonclient sends it over gRPC too, where all tensors are raw.
        flag_of(parameters, "binary_data", default=True)
        classification = classification_of(parameters, output.name)
        outputs.append(RequestedOutput(name=output.name, classification=classification))
    return InferRequest(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        parameters=_parameters(message.parameters),
        inputs=lambda _: collect_inputs(tensors),
        outputs=tuple(outputs),
    )


def infer_response(result: InferResult) -> inference_pb2.ModelInferResponse:
    """Encodes an answer; its tensors are raw, as Triton's are.

    Args:
        result: The answer.
    """
    response = inference_pb2.ModelInferResponse(model_name=result.model, model_version=result.version, id=result.id)
    for key, value in result.parameters.items():
        _set_parameter(response.parameters[key], value)
    for output in result.outputs:
        response.outputs.add(name=output.name, datatype=output.datatype, shape=output.array.shape)
        response.raw_output_contents.append(array_to_raw(output.array))
    return response


def _parameters(parameters: Mapping[str, inference_pb2.InferParameter]) -> dict[str, Parameter]:
    values: dict[str, Parameter] = {}
    for key, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is None:
            raise InvalidRequestError(f"Parameter {key!r} has no value.")
        values[key] = getattr(parameter, kind)
    return values


def _set_parameter(message: inference_pb2.InferParameter, value: Parameter) -> None:
    if isinstance(value, bool):
        message.bool_param = value
    elif isinstance(value, int):
        if value < 1 << 63:
            message.int64_param = value
        else:
            message.uint64_param = value
    elif isinstance(value, float):
        message.double_param = value
    else:
        message.string_param = value


#: Durations that requests and executions have.
_EXECUTION_PARTS = ("compute_input", "compute_infer", "compute_output")


def _fill_statistics(message: inference_pb2.ModelStatistics, row: VersionStatistics) -> None:
    message.name = row.name
    message.version = str(row.version)
    message.last_inference = row.last_inference_ms
    message.inference_count = row.inference_count
    message.execution_count = row.execution_count
    _fill_durations(message.inference_stats, row, ("success", "fail", "queue", *_EXECUTION_PARTS))
    for rows, execution in row.batches.items():
        _fill_durations(message.batch_stats.add(batch_size=rows), execution, _EXECUTION_PARTS)


def _fill_durations(message: Any, statistics: VersionStatistics | ExecutionStatistics, names: Sequence[str]) -> None:
    for name in names:
        part, target = getattr(statistics, name), getattr(message, name)
        target.count, target.ns = part.count, part.ns
