"""The protocol over gRPC: Triton's GRPCInferenceService."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import numpy.typing as npt
from google.protobuf.message import DecodeError

from modelyard.errors import InvalidInputError, InvalidRequestError, ModelyardError
from modelyard.serving.access import Access, Scope, admitted
from modelyard.serving.handlers.grpc import caller_of
from modelyard.serving.handlers.oip._arrays import check_shape, contents_to_array, raw_to_array
from modelyard.serving.handlers.oip._logging import change_log_settings
from modelyard.serving.handlers.oip._parameters import classification_of, flag_of, refuse_shared_memory
from modelyard.serving.handlers.oip._pipeline import answer_in_order
from modelyard.serving.handlers.oip._service import EXTENSIONS, SERVER_NAME, OipService, collect_inputs
from modelyard.serving.handlers.oip._types import InferRequest, InferResult, Parameter, RequestedOutput
from modelyard.serving.metrics import Metrics
from modelyard.serving.prediction import SMALL_BYTES
from modelyard.serving.transports.grpc import Context, Guard, Handler, failure_of, unary
from modelyard.wire import INFERENCE_SERVICE, array_to_raw, grpc_status_of, inference_pb2

_STREAM = "ModelStreamInfer"
#: Told of every answer: clients of models that answer several times wait for it, and each request has one answer here.
_FINAL = "triton_final_response"


def _model_name(message: Any) -> str:
    return str(message.model_name)


def _name(message: Any) -> str:
    return str(message.name)


class OipGrpc:
    """GRPCInferenceService on the data plane."""

    def __init__(self, service: OipService, metrics: Metrics, access: Access) -> None:
        self._service = service
        self._metrics = metrics
        self._access = access

    def services(self) -> dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]]:
        table: dict[str, tuple[Handler, Scope | None, Callable[[Any], str] | None]] = {
            "LogSettings": (self._log_settings, "admin", None),
            "ModelConfig": (self._model_config, "metadata", _name),
            "ModelInfer": (self._infer, "predict", _model_name),
            "ModelMetadata": (self._model_metadata, "metadata", _name),
            "ModelReady": (self._model_ready, None, None),
            "ModelStatistics": (self._statistics, "metrics", _name),
            "RepositoryIndex": (self._index, "metadata", None),
            "RepositoryModelLoad": (self._load, "admin", _model_name),
            "RepositoryModelUnload": (self._unload, "admin", _model_name),
            "ServerLive": (self._live, None, None),
            "ServerMetadata": (self._server_metadata, "metadata", None),
            "ServerReady": (self._ready, None, None),
        }
        methods = {}
        for name, method in INFERENCE_SERVICE.items():
            handler, scope, model = table[name]
            guard = Guard(access=self._access, scope=scope, model=model)
            methods[name] = unary(method, handler, self._metrics, guard)
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
        return self._service.model_metadata(message.name, message.version).SerializeToString()

    async def _model_config(self, message: inference_pb2.ModelConfigRequest, _: Context) -> bytes:
        config = self._service.model_config(message.name, message.version)
        return inference_pb2.ModelConfigResponse(config=config).SerializeToString()

    async def _infer(self, message: inference_pb2.ModelInferRequest, context: Context) -> bytes:
        return await self._service.infer(
            _request_of(message, context), lambda result: infer_response(result).SerializeToString()
        )

    def _stream(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        """Answers in the order of the requests; an error ends its request, not the stream."""
        return answer_in_order(requests, lambda data: self._stream_answer(data, context))

    async def _stream_answer(self, data: bytes, context: Context) -> bytes:
        answer = inference_pb2.ModelStreamInferResponse()
        started = time.perf_counter()
        model, client, code = "", "", "OK"
        try:
            guard = Guard(access=self._access, scope="predict", model=_model_name)
            caller = guard.find(context)
            client = "" if caller is None else caller[1].name
            guard.check(caller)
            message = inference_pb2.ModelInferRequest.FromString(data)
            model, answer.infer_response.id = message.model_name, message.id
            with guard.admit(caller, message) as ticket:
                admitted.set(ticket)
                answer.infer_response.CopyFrom(await self._service.infer(_request_of(message, context), infer_response))
            answer.infer_response.parameters[_FINAL].bool_param = True
        except DecodeError as exc:
            code = "INVALID_ARGUMENT"
            answer.error_message = f"The message is not an inference.ModelInferRequest: {exc}"
        except ModelyardError as exc:
            code, answer.error_message = grpc_status_of(exc), exc.message
        except asyncio.CancelledError:
            code = "CANCELLED"
            raise
        # A bug: its text may hold secrets.
        except Exception as exc:
            code, answer.error_message = failure_of(exc, _STREAM)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.record_request(
                model, api=_STREAM, entrypoint="GRPC", status=code, seconds=seconds, client=client
            )
        return answer.SerializeToString()

    async def _statistics(self, message: inference_pb2.ModelStatisticsRequest, _: Context) -> bytes:
        return self._service.statistics(message.name, message.version).SerializeToString()

    async def _index(self, message: inference_pb2.RepositoryIndexRequest, _: Context) -> bytes:
        return self._service.index(repository=message.repository_name, ready=message.ready).SerializeToString()

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
        for name, value in change_log_settings(changes).items():
            kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(response.settings[name], kind, value)
        return response.SerializeToString()


def _request_of(message: inference_pb2.ModelInferRequest, context: Context) -> InferRequest:
    size = message.ByteSize()
    return replace(infer_request(message), small=size <= SMALL_BYTES, size=size, caller=caller_of(context))


def infer_request(message: inference_pb2.ModelInferRequest) -> InferRequest:
    """Decodes a request; its tensors are decoded later, on a worker thread."""
    for item in message.inputs:
        # First: such an input has no contents.
        refuse_shared_memory(_parameters(item.parameters), f"input {item.name!r}")
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
    """Encodes an answer; its tensors are raw, as Triton's are."""
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
