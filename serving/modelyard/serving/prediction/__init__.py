"""From a request to an answer, for whichever protocol."""

from modelyard.serving.prediction._budget import Charge
from modelyard.serving.prediction._inference import Classification, InferenceTask, Regression
from modelyard.serving.prediction._log import PredictionLogs
from modelyard.serving.prediction._messages import (
    SIGNATURE_DEF_FIELD,
    SMALL_BYTES,
    ModelMetadata,
    check_metadata_fields,
    examples_of,
    fill_classification,
    fill_multi_inference,
    fill_regression,
    fill_spec,
    metadata_response,
    predict_writer,
    read_predict,
    spec_from_message,
    spec_of,
    status_response,
)
from modelyard.serving.prediction._predictor import Predictor
from modelyard.serving.prediction._warmup import warm_up

__all__ = [
    "Charge",
    "Classification",
    "InferenceTask",
    "ModelMetadata",
    "PredictionLogs",
    "Predictor",
    "Regression",
    "SIGNATURE_DEF_FIELD",
    "SMALL_BYTES",
    "check_metadata_fields",
    "examples_of",
    "fill_classification",
    "fill_multi_inference",
    "fill_regression",
    "fill_spec",
    "metadata_response",
    "predict_writer",
    "read_predict",
    "spec_from_message",
    "spec_of",
    "status_response",
    "warm_up",
]
