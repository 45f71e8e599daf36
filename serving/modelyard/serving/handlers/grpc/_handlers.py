"""The methods of PredictionService and ModelService, each a translation."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from modelyard.serving.access import Access, admitted
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


def guards_of(access: Access) -> Mapping[str, Guard]:
    """What callers of each method need, by method path.

    Args:
        access: Decides.
    """
    predict = Guard(access=access, scope="predict", model=lambda message: str(message.model_spec.name))
    about = Guard(access=access, scope="metadata", model=lambda message: str(message.model_spec.name))
    return {
        PREDICTION_SERVICE["Predict"].path: Guard(
            access=access, scope="predict", model=lambda request: str(request.spec.name)
        ),
        PREDICTION_SERVICE["Classify"].path: predict,
        PREDICTION_SERVICE["Regress"].path: predict,
        # All tasks are of one model, or it is an error.
        PREDICTION_SERVICE["MultiInference"].path: Guard(
            access=access,
            scope="predict",
            model=lambda message: str(message.tasks[0].model_spec.name) if message.tasks else "",
        ),
        PREDICTION_SERVICE["GetModelMetadata"].path: about,
        MODEL_SERVICE["GetModelStatus"].path: about,
        MODEL_SERVICE["HandleReloadConfigRequest"].path: Guard(access=access, scope="admin"),
    }


class Handlers:
    """TensorFlow Serving's methods on the data plane.

    Args:
        predictor: The data plane.
        admin: Changes the configuration.
        tensor_content: Answers carry ``tensor_content`` instead of typed fields.
    """

    def __init__(self, predictor: Predictor, admin: Admin, *, tensor_content: bool) -> None:
        self._predictor = predictor
        self._admin = admin
        self._write = predict_writer(as_content=tensor_content)

    def by_path(self) -> Mapping[str, Handler]:
        """The handlers by method path."""
        return {
            PREDICTION_SERVICE["Predict"].path: self.predict,
            PREDICTION_SERVICE["Classify"].path: self.classify,
            PREDICTION_SERVICE["Regress"].path: self.regress,
            PREDICTION_SERVICE["MultiInference"].path: self.multi_inference,
            PREDICTION_SERVICE["GetModelMetadata"].path: self.metadata,
            MODEL_SERVICE["GetModelStatus"].path: self.status,
            MODEL_SERVICE["HandleReloadConfigRequest"].path: self.reload,
        }

    async def predict(self, request: PredictRequest, context: Context) -> bytes:
        """Answers Predict."""
        caller = caller_of(context)
        return await self._predictor.submit(replace(request, caller=caller), self._write)

    async def classify(self, message: serving_pb2.ClassificationRequest, context: Context) -> bytes:
        """Answers Classify."""
        spec = spec_from_message(message)

        def work() -> bytes:
            answer = self._predictor.classify(spec, examples_of(message.input))
            response = serving_pb2.ClassificationResponse()
            fill_classification(response.result, answer)
            fill_spec(response.model_spec, answer.spec)
            return response.SerializeToString()

        return await self._predictor.offload(work, caller_of(context), model=spec.name)

    async def regress(self, message: serving_pb2.RegressionRequest, context: Context) -> bytes:
        """Answers Regress."""
        spec = spec_from_message(message)

        def work() -> bytes:
            answer = self._predictor.regress(spec, examples_of(message.input))
            response = serving_pb2.RegressionResponse()
            fill_regression(response.result, answer)
            fill_spec(response.model_spec, answer.spec)
            return response.SerializeToString()

        return await self._predictor.offload(work, caller_of(context), model=spec.name)

    async def multi_inference(self, message: serving_pb2.MultiInferenceRequest, context: Context) -> bytes:
        """Answers MultiInference."""
        tasks = [InferenceTask(spec=spec_of(task.model_spec), method=task.method_name) for task in message.tasks]

        def work() -> bytes:
            response = serving_pb2.MultiInferenceResponse()
            fill_multi_inference(response, self._predictor.multi_inference(tasks, examples_of(message.input)))
            return response.SerializeToString()

        name = tasks[0].spec.name if tasks else ""
        return await self._predictor.offload(work, caller_of(context), model=name)

    async def metadata(self, message: serving_pb2.GetModelMetadataRequest, _: Context) -> bytes:
        """Answers GetModelMetadata."""
        spec = spec_from_message(message)
        check_metadata_fields(message.metadata_field)
        return metadata_response(self._predictor.metadata(spec)).SerializeToString()

    async def status(self, message: serving_pb2.GetModelStatusRequest, _: Context) -> bytes:
        """Answers GetModelStatus."""
        spec = spec_from_message(message)
        return status_response(self._predictor.status(spec.name, spec.version)).SerializeToString()

    async def reload(self, message: serving_pb2.ReloadConfigRequest, _: Context) -> bytes:
        """Answers HandleReloadConfigRequest."""
        await self._admin.reload_message(message.config)
        response = serving_pb2.ReloadConfigResponse()
        response.status.SetInParent()
        return response.SerializeToString()


def caller_of(context: Context) -> Caller:
    """Who waits for the answer of a call.

    Args:
        context: The call's.
    """
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
        logged=getattr(context, "logged", False),
        header=header,
        principal="" if ticket is None else ticket.principal,
        charge=None if ticket is None else ticket.charge,
    )
