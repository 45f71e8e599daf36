"""The methods of PredictionService and ModelService, each a translation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from modelyard.serving.access import Access, Scope, admitted
from modelyard.serving.prediction import (
    InferenceTask,
    Predictor,
    check_metadata_fields,
    examples_of,
    fill_classification,
    fill_multi_inference,
    fill_regression,
    fill_spec,
    metadata_response,
    predict_writer,
    spec_from_message,
    spec_of,
    status_response,
)
from modelyard.serving.repository import Admin
from modelyard.serving.requests import PRIORITY_KEY, Caller, PredictRequest, current_request
from modelyard.serving.transports.grpc import Context, Guard, Handler
from modelyard.wire import MODEL_SERVICE, PREDICTION_SERVICE, serving_pb2


class Handlers:
    """TensorFlow Serving's methods on the data plane."""

    def __init__(self, predictor: Predictor, admin: Admin, *, tensor_content: bool) -> None:
        self._predictor = predictor
        self._admin = admin
        self._write = predict_writer(as_content=tensor_content)

    def methods(self, access: Access) -> Mapping[str, tuple[Handler, Guard]]:
        """By method path, the handler and what callers need."""

        def guard(scope: Scope, model: Callable[[Any], str] | None = lambda message: message.model_spec.name) -> Guard:
            return Guard(access=access, scope=scope, model=model)

        return {
            PREDICTION_SERVICE["Predict"].path: (self._predict, guard("predict", lambda request: request.spec.name)),
            PREDICTION_SERVICE["Classify"].path: (self._classify, guard("predict")),
            PREDICTION_SERVICE["Regress"].path: (self._regress, guard("predict")),
            PREDICTION_SERVICE["MultiInference"].path: (self._multi_inference, guard("predict", _model_of_tasks)),
            PREDICTION_SERVICE["GetModelMetadata"].path: (self._metadata, guard("metadata")),
            MODEL_SERVICE["GetModelStatus"].path: (self._status, guard("metadata")),
            MODEL_SERVICE["HandleReloadConfigRequest"].path: (self._reload, guard("admin", None)),
        }

    async def _predict(self, request: PredictRequest, context: Context) -> bytes:
        caller = caller_of(context)
        return await self._predictor.submit(replace(request, caller=caller), self._write)

    async def _classify(self, message: serving_pb2.ClassificationRequest, context: Context) -> bytes:
        return await self._infer(
            message, context, self._predictor.classify, serving_pb2.ClassificationResponse(), fill_classification
        )

    async def _regress(self, message: serving_pb2.RegressionRequest, context: Context) -> bytes:
        return await self._infer(
            message, context, self._predictor.regress, serving_pb2.RegressionResponse(), fill_regression
        )

    async def _infer(
        self, message: Any, context: Context, infer: Callable[..., Any], response: Any, fill: Callable[..., None]
    ) -> bytes:
        spec = spec_from_message(message)

        def work() -> bytes:
            answer = infer(spec, examples_of(message.input))
            fill(response.result, answer)
            fill_spec(response.model_spec, answer.spec)
            data: bytes = response.SerializeToString()
            return data

        return await self._predictor.offload(work, caller_of(context), model=spec.name)

    async def _multi_inference(self, message: serving_pb2.MultiInferenceRequest, context: Context) -> bytes:
        tasks = [InferenceTask(spec=spec_of(task.model_spec), method=task.method_name) for task in message.tasks]

        def work() -> bytes:
            response = serving_pb2.MultiInferenceResponse()
            fill_multi_inference(response, self._predictor.multi_inference(tasks, examples_of(message.input)))
            return response.SerializeToString()

        name = tasks[0].spec.name if tasks else ""
        return await self._predictor.offload(work, caller_of(context), model=name)

    async def _metadata(self, message: serving_pb2.GetModelMetadataRequest, _: Context) -> bytes:
        spec = spec_from_message(message)
        check_metadata_fields(message.metadata_field)
        return metadata_response(self._predictor.metadata(spec)).SerializeToString()

    async def _status(self, message: serving_pb2.GetModelStatusRequest, _: Context) -> bytes:
        spec = spec_from_message(message)
        return status_response(self._predictor.status(spec.name, spec.version)).SerializeToString()

    async def _reload(self, message: serving_pb2.ReloadConfigRequest, _: Context) -> bytes:
        await self._admin.reload_message(message.config)
        response = serving_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        return response.SerializeToString()


def _model_of_tasks(message: serving_pb2.MultiInferenceRequest) -> str:
    # All tasks are of one model, or it is an error.
    return message.tasks[0].model_spec.name if message.tasks else ""


def caller_of(context: Context) -> Caller:
    remaining = context.time_remaining()
    metadata = context.invocation_metadata() or ()
    low = any(key == PRIORITY_KEY and value == "low" for key, value in metadata)
    deadline = None if remaining is None else time.monotonic() + remaining

    def header(name: str) -> str:
        return ",".join(value for key, value in metadata if key == name and isinstance(value, str))

    ticket, request = admitted.get(), current_request.get()
    return Caller(
        deadline=deadline,
        low_priority=low,
        request_id=request.request_id,
        facts=request.facts,
        # Of the native core's contexts alone.
        logged=getattr(context, "logged", None),
        drawn=getattr(context, "drawn", None),
        header=header,
        principal="" if ticket is None else ticket.principal,
        charge=None if ticket is None else ticket.charge,
    )
