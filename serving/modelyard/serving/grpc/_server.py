"""The gRPC transport: TensorFlow Serving's services as an adapter on the predictor."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from modelyard.errors import ConfigurationError, InvalidRequestError, ModelyardError, UnsupportedError
from modelyard.serving._inference import Classification, InferenceTask
from modelyard.serving._predictor import Predictor
from modelyard.serving.grpc import _codec
from modelyard.wire import MODEL_SERVICE, PREDICTION_SERVICE, Method, grpc_status_of, serving_pb2

_LOG = logging.getLogger("modelyard.serving.grpc")

#: Upstream cuts messages there, because some proxies refuse long trailers.
MAX_STATUS_MESSAGE = 1024
_TRUNCATED = "...TRUNCATED"
_INT32_MAX = (1 << 31) - 1

Handler = Callable[[Any], Awaitable[bytes]]


@dataclass(frozen=True, kw_only=True)
class GrpcOptions:
    """How the gRPC server listens.

    Attributes:
        address: Such as ``0.0.0.0:8500``.
        tensor_content: Answers carry ``tensor_content`` instead of typed fields.
    """

    address: str
    tensor_content: bool = False


class GrpcServer:
    """TensorFlow Serving's gRPC services.

    Args:
        predictor: The data plane.
        options: How to listen.
    """

    def __init__(self, predictor: Predictor, options: GrpcOptions) -> None:
        self._predictor = predictor
        self._options = options
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _INT32_MAX),
                ("grpc.max_send_message_length", _INT32_MAX),
                # Two servers that share a port by accident would each get half of the requests.
                ("grpc.so_reuseport", 0),
            ]
        )
        handlers: dict[str, Handler] = {
            PREDICTION_SERVICE["Predict"].path: self._predict,
            PREDICTION_SERVICE["Classify"].path: self._classify,
            PREDICTION_SERVICE["Regress"].path: self._regress,
            PREDICTION_SERVICE["MultiInference"].path: self._multi_inference,
            PREDICTION_SERVICE["GetModelMetadata"].path: self._metadata,
            MODEL_SERVICE["GetModelStatus"].path: self._status,
        }
        for service in (PREDICTION_SERVICE, MODEL_SERVICE):
            methods = list(service.values())
            self._server.add_generic_rpc_handlers(
                [
                    grpc.method_handlers_generic_handler(
                        methods[0].service,
                        {method.name: _unary(method, handlers.get(method.path)) for method in methods},
                    )
                ]
            )

    async def start(self) -> None:
        """Opens the port.

        Raises:
            ConfigurationError: The address cannot be listened on.
        """
        try:
            self._server.add_insecure_port(self._options.address)
        except RuntimeError as exc:
            raise ConfigurationError(
                f"gRPC cannot listen on {self._options.address}: {exc}. Is the port in use? Choose another with --port."
            ) from exc
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls, and waits for the running ones.

        Args:
            grace_s: Seconds to wait before running calls are cancelled.
        """
        await self._server.stop(grace_s)

    async def _predict(self, message: serving_pb2.PredictRequest) -> bytes:
        as_content = self._options.tensor_content
        return await self._predictor.submit(
            _codec.predict_request(message),
            lambda prediction: _codec.predict_response(prediction, as_content=as_content).SerializeToString(),
        )

    async def _classify(self, message: serving_pb2.ClassificationRequest) -> bytes:
        spec = _codec.spec_from_message(message)

        def work() -> bytes:
            answer = self._predictor.classify(spec, _codec.examples_of(message.input))
            response = serving_pb2.ClassificationResponse()
            _codec.fill_classification(response.result, answer)
            _codec.fill_spec(response.model_spec, answer.spec)
            return response.SerializeToString()

        return await self._predictor.offload(work)

    async def _regress(self, message: serving_pb2.RegressionRequest) -> bytes:
        spec = _codec.spec_from_message(message)

        def work() -> bytes:
            answer = self._predictor.regress(spec, _codec.examples_of(message.input))
            response = serving_pb2.RegressionResponse()
            _codec.fill_regression(response.result, answer)
            _codec.fill_spec(response.model_spec, answer.spec)
            return response.SerializeToString()

        return await self._predictor.offload(work)

    async def _multi_inference(self, message: serving_pb2.MultiInferenceRequest) -> bytes:
        tasks = [InferenceTask(spec=_codec.spec_of(task.model_spec), method=task.method_name) for task in message.tasks]

        def work() -> bytes:
            response = serving_pb2.MultiInferenceResponse()
            for answer in self._predictor.multi_inference(tasks, _codec.examples_of(message.input)):
                result = response.results.add()
                _codec.fill_spec(result.model_spec, answer.spec)
                if isinstance(answer, Classification):
                    _codec.fill_classification(result.classification_result, answer)
                else:
                    _codec.fill_regression(result.regression_result, answer)
            return response.SerializeToString()

        return await self._predictor.offload(work)

    async def _metadata(self, message: serving_pb2.GetModelMetadataRequest) -> bytes:
        spec = _codec.spec_from_message(message)
        _codec.check_metadata_fields(message.metadata_field)
        return _codec.metadata_response(self._predictor.metadata(spec)).SerializeToString()

    async def _status(self, message: serving_pb2.GetModelStatusRequest) -> bytes:
        spec = _codec.spec_from_message(message)
        return _codec.status_response(self._predictor.status(spec.name, spec.version)).SerializeToString()


def _unary(method: Method, handler: Handler | None) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Wraps a handler: bytes in, bytes out, every error mapped."""

    async def call(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            if handler is None:
                raise UnsupportedError(f"{method.path} is not implemented by this server.")
            try:
                message = method.request.FromString(data)
            except DecodeError as exc:
                raise InvalidRequestError(
                    f"The body of {method.path} is not a {method.request.DESCRIPTOR.full_name}: {exc}"
                ) from exc
            return await handler(message)
        except ModelyardError as exc:
            code, text = grpc_status_of(exc), exc.message
        # Whatever escapes is a bug of ours; its text may hold what strangers must not read.
        except Exception:
            request_id = uuid.uuid4().hex
            _LOG.exception("request %s: %s failed unexpectedly", request_id, method.path)
            code, text = "INTERNAL", f"Internal error. The server's log has the details under request {request_id}."
        await context.abort(grpc.StatusCode[code], _truncate(text))

    return grpc.unary_unary_rpc_method_handler(call)


def _truncate(text: str) -> str:
    data = text.encode()
    if len(data) <= MAX_STATUS_MESSAGE:
        return text
    return data[: MAX_STATUS_MESSAGE - len(_TRUNCATED)].decode(errors="ignore") + _TRUNCATED
