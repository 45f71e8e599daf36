"""Messages of TensorFlow Serving to requests of the data plane, and answers back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from modelyard.artifact import Signature
from modelyard.errors import InvalidModelSpecError, InvalidRequestError
from modelyard.serving.prediction._inference import Classification, Regression
from modelyard.serving.repository import VersionStatus
from modelyard.serving.requests import Arrays, ModelSpec, Prediction, PredictRequest
from modelyard.wire import array_to_tensor, error_code_of, serving_pb2, tensorflow_pb2, tensors_to_arrays

#: Bodies up to this size are decoded on the event loop where the model is fast: a hop to a thread would cost more.
SMALL_BYTES = 1 << 16
SIGNATURE_DEF_FIELD = "signature_def"


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """What a metadata request is answered with.

    Attributes:
        spec: The request's spec with the version filled in.
        definitions: SignatureDefs by signature name.
    """

    spec: ModelSpec
    definitions: Mapping[str, tensorflow_pb2.SignatureDef]


def spec_from_message(message: Any) -> ModelSpec:
    if not message.HasField("model_spec"):
        raise InvalidModelSpecError("Missing ModelSpec")
    spec = message.model_spec
    return spec_of(spec)


def spec_of(spec: serving_pb2.ModelSpec) -> ModelSpec:
    """Decodes a model spec; whether its name is known is the data plane's to say."""
    choice = spec.WhichOneof("version_choice")
    return ModelSpec(
        name=spec.name,
        version=spec.version.value if choice == "version" else None,
        label=spec.version_label if choice == "version_label" else None,
        signature=spec.signature_name,
    )


def predict_request(message: serving_pb2.PredictRequest, *, size: int | None = None) -> PredictRequest:
    """Decodes a Predict request; its tensors are decoded later, on a worker thread."""
    if size is None:
        size = message.ByteSize()

    def inputs(signature: Signature) -> Arrays:
        return tensors_to_arrays(message.inputs)

    return PredictRequest(
        spec=spec_from_message(message),
        inputs=inputs,
        output_filter=tuple(message.output_filter),
        small=size <= SMALL_BYTES,
        size=size,
    )


def read_predict(data: bytes) -> PredictRequest:
    return predict_request(serving_pb2.PredictRequest.FromString(data), size=len(data))


def predict_writer(*, as_content: bool) -> Callable[[Prediction], bytes]:
    def write(prediction: Prediction) -> bytes:
        parts = []
        # One by one, since protobuf writes the entries of a map in any order: the native core keeps the signature's.
        for name, array in prediction.outputs.items():
            output = serving_pb2.PredictResponse()
            output.outputs[name].CopyFrom(array_to_tensor(array, as_content=as_content))
            parts.append(output.SerializeToString())
        rest = serving_pb2.PredictResponse()
        fill_spec(rest.model_spec, prediction.spec)
        return b"".join([*parts, rest.SerializeToString()])

    return write


def examples_of(message: serving_pb2.Input) -> list[bytes]:
    """The serialized examples of an ``Input``; a context is merged into each.

    Merging is concatenation, so that a feature of the example overrides the context's.
    """
    if message.WhichOneof("kind") == "example_list_with_context":
        both = message.example_list_with_context
        context = both.context.SerializeToString()
        return [context + example.SerializeToString() for example in both.examples]
    return [example.SerializeToString() for example in message.example_list.examples]


def fill_classification(message: serving_pb2.ClassificationResult, answer: Classification) -> None:
    shape = next(array.shape for array in (answer.labels, answer.scores) if array is not None)
    for row in range(shape[0]):
        classes = message.classifications.add().classes
        for column in range(shape[1]):
            item = classes.add()
            if answer.labels is not None:
                item.label = answer.labels[row, column].decode("utf-8", "replace")
            if answer.scores is not None:
                item.score = answer.scores[row, column]


def fill_regression(message: serving_pb2.RegressionResult, answer: Regression) -> None:
    for value in answer.values.tolist():
        message.regressions.add().value = value


def fill_multi_inference(
    message: serving_pb2.MultiInferenceResponse, answers: Iterable[Classification | Regression]
) -> None:
    for answer in answers:
        result = message.results.add()
        fill_spec(result.model_spec, answer.spec)
        if isinstance(answer, Classification):
            fill_classification(result.classification_result, answer)
        else:
            fill_regression(result.regression_result, answer)


def fill_spec(message: serving_pb2.ModelSpec, spec: ModelSpec) -> None:
    message.name = spec.name
    message.signature_name = spec.signature
    if spec.version is not None:
        message.version.value = spec.version


def check_metadata_fields(fields: Iterable[str]) -> None:
    names = list(fields)
    if not names:
        raise InvalidRequestError("GetModelMetadataRequest must specify at least one metadata_field")
    for name in names:
        if name != SIGNATURE_DEF_FIELD:
            raise InvalidRequestError(f"Metadata field {name} is not supported; expected {SIGNATURE_DEF_FIELD!r}.")


def metadata_response(metadata: ModelMetadata) -> serving_pb2.GetModelMetadataResponse:
    response = serving_pb2.GetModelMetadataResponse()
    definitions = serving_pb2.SignatureDefMap()
    for name, definition in metadata.definitions.items():
        definitions.signature_def[name].CopyFrom(definition)
    response.metadata[SIGNATURE_DEF_FIELD].Pack(definitions)
    fill_spec(response.model_spec, metadata.spec)
    return response


def status_response(statuses: Iterable[VersionStatus]) -> serving_pb2.GetModelStatusResponse:
    response = serving_pb2.GetModelStatusResponse()
    for status in statuses:
        row = response.model_version_status.add()
        row.version = status.version
        row.state = int(status.state)  # type: ignore[assignment]
        # An empty status is still present: upstream prints its OK.
        row.status.error_message = "" if status.error is None else status.error.message
        row.status.error_code = 0 if status.error is None else error_code_of(status.error)  # type: ignore[assignment]
        row.status.SetInParent()
    return response
