"""TensorFlow Serving's protocols: its gRPC services, and its REST API, version 1."""

from __future__ import annotations

from collections.abc import Sequence

from modelyard.clients.protocols import (
    DEFAULT_SIGNATURE,
    Call,
    ExamplesCall,
    Flow,
    PredictCall,
    Protocol,
    Target,
    check_reload,
    chosen,
    metadata_from_json,
    metadata_from_message,
    metadata_message,
    model_path,
    predict_json,
    predict_message,
    prediction_from_json,
    prediction_from_message,
    reload_message,
    status_from_json,
    status_from_message,
    status_message,
)
from modelyard.clients.protocols.tfs import _example_messages
from modelyard.clients.protocols.tfs._examples import to_examples
from modelyard.clients.values import (
    Classification,
    InferenceTask,
    ModelConfig,
    ModelMetadata,
    ModelStatus,
    Prediction,
    Regression,
    check_inputs,
    check_outputs,
    needs_signature,
    to_arrays,
)
from modelyard.errors import ModelNotFoundError, ModelyardError, ProtocolError, UnsupportedError
from modelyard.wire import MODEL_SERVICE, PREDICTION_SERVICE

HEALTH_PATH = "/grpc.health.v1.Health/Check"
#: ``HealthCheckResponse(status=SERVING)``.
_SERVING = b"\x08\x01"


def grpc_probe() -> Flow[bool]:
    """Asks grpc.health.v1; a server without that service is healthy as soon as it answers."""
    try:
        answer = yield Call(path=HEALTH_PATH, body=b"", retry=False)
    except (UnsupportedError, ModelNotFoundError):
        return True
    return answer.body == _SERVING


class GrpcProtocol(Protocol):
    """TensorFlow Serving's gRPC services."""

    name = "TensorFlow Serving's gRPC API"

    def predict(self, call: PredictCall) -> Flow[Prediction]:
        signature = None
        if needs_signature(call.inputs):
            signature = yield from self.known_signature(call.target, call.signature)
        arrays = to_arrays(call.inputs, signature)
        body = predict_message(call.target, call.signature, arrays, call.outputs)
        answer = yield Call(path=_PREDICT, body=body)
        return chosen(prediction_from_message(answer.body, call.target, call.signature), call.outputs)

    def metadata(self, target: Target, signature: str = "") -> Flow[ModelMetadata]:
        path = PREDICTION_SERVICE["GetModelMetadata"].path
        answer = yield Call(path=path, body=metadata_message(target))
        return metadata_from_message(answer.body, target)

    def status(self, target: Target, at_most_s: float | None = None) -> Flow[ModelStatus]:
        path = MODEL_SERVICE["GetModelStatus"].path
        answer = yield Call(path=path, body=status_message(target), at_most_s=at_most_s)
        return status_from_message(answer.body, target)

    def probe(self) -> Flow[bool]:
        return grpc_probe()

    def classify(self, call: ExamplesCall) -> Flow[Classification]:
        examples = to_examples(call)
        body = _example_messages.classify_message(call.target, call.signature, examples)
        answer = yield Call(path=PREDICTION_SERVICE["Classify"].path, body=body)
        return _example_messages.one_each(_example_messages.classification_from_message(answer.body, call), examples)

    def regress(self, call: ExamplesCall) -> Flow[Regression]:
        examples = to_examples(call)
        body = _example_messages.regress_message(call.target, call.signature, examples)
        answer = yield Call(path=PREDICTION_SERVICE["Regress"].path, body=body)
        return _example_messages.one_each(_example_messages.regression_from_message(answer.body, call), examples)

    def multi_inference(
        self, call: ExamplesCall, tasks: Sequence[InferenceTask]
    ) -> Flow[tuple[Classification | Regression, ...]]:
        """Runs several signatures over the same examples, in one call and on one version."""
        examples = to_examples(call)
        body = _example_messages.multi_inference_message(call.target, tasks, examples)
        answer = yield Call(path=PREDICTION_SERVICE["MultiInference"].path, body=body)
        results = _example_messages.multi_inference_from_message(answer.body, call, tasks)
        return tuple(_example_messages.one_each(result, examples) for result in results)

    def reload_config(self, models: Sequence[ModelConfig]) -> Flow[None]:
        """Replaces the server's list of models; never sent twice."""
        path = MODEL_SERVICE["HandleReloadConfigRequest"].path
        answer = yield Call(path=path, body=reload_message(models), retry=False, fresh=True)
        check_reload(answer.body)


class RestProtocol(Protocol):
    """TensorFlow Serving's REST API, version 1."""

    name = "TensorFlow Serving's REST API"

    def predict(self, call: PredictCall) -> Flow[Prediction]:
        signature = yield from self.known_signature(call.target, call.signature)
        arrays = to_arrays(call.inputs, signature)
        if signature is not None:
            check_inputs(arrays, signature, self.known_signatures(call.target, call.signature))
            check_outputs(call.outputs, signature)
        body = predict_json(call.signature, arrays)
        answer = yield Call(path=f"{model_path(call.target)}:predict", body=body)
        if signature is not None:
            try:
                return prediction_from_json(answer.body, call.target, signature, call.outputs)
            except ProtocolError:
                if call.target.version is not None:
                    raise
        # A newer version than the one described may have answered: look once more before giving up.
        signature = yield from self.known_signature(call.target, call.signature, fresh=True)
        if signature is None:
            raise ProtocolError(
                f"The server answered for signature {call.signature or DEFAULT_SIGNATURE!r}, which its metadata lacks."
            )
        return prediction_from_json(answer.body, call.target, signature, call.outputs)

    def metadata(self, target: Target, signature: str = "") -> Flow[ModelMetadata]:
        answer = yield Call(path=f"{model_path(target)}/metadata", body=None)
        return metadata_from_json(answer.body, target)

    def status(self, target: Target, at_most_s: float | None = None) -> Flow[ModelStatus]:
        answer = yield Call(path=model_path(target), body=None, at_most_s=at_most_s)
        return status_from_json(answer.body, target)

    def probe(self) -> Flow[bool]:
        """Whether the server takes calls: the API has no health page, so any answer of its own is a yes."""
        try:
            yield Call(path=model_path(Target(model="-")), body=None, retry=False)
        except ModelyardError as exc:
            return exc.server_message is not None
        return True

    def classify(self, call: ExamplesCall) -> Flow[Classification]:
        examples = to_examples(call)
        body = _example_messages.examples_json(call.signature, examples)
        answer = yield Call(path=f"{model_path(call.target)}:classify", body=body)
        return _example_messages.one_each(_example_messages.classification_from_json(answer.body, call), examples)

    def regress(self, call: ExamplesCall) -> Flow[Regression]:
        examples = to_examples(call)
        body = _example_messages.examples_json(call.signature, examples)
        answer = yield Call(path=f"{model_path(call.target)}:regress", body=body)
        return _example_messages.one_each(_example_messages.regression_from_json(answer.body, call), examples)

    def multi_inference(
        self, call: ExamplesCall, tasks: Sequence[InferenceTask]
    ) -> Flow[tuple[Classification | Regression, ...]]:
        """Runs several signatures over the same examples: one call each, since the API has no call for all."""
        _example_messages.check_tasks(tasks)
        results: list[Classification | Regression] = []
        for task in tasks:
            one = ExamplesCall(
                target=call.target, examples=call.examples, context=call.context, signature=task.signature
            )
            if task.method == "classify":
                results.append((yield from self.classify(one)))
            else:
                results.append((yield from self.regress(one)))
        return tuple(results)


_PREDICT = PREDICTION_SERVICE["Predict"].path
