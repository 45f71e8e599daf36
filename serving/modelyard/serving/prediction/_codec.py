"""Predict's messages as bytes, read and written by protobuf."""

from __future__ import annotations

from collections.abc import Callable

from modelyard.serving.prediction import _messages
from modelyard.serving.requests import Prediction, PredictRequest
from modelyard.wire import array_to_tensor, serving_pb2


def read_predict(data: bytes) -> PredictRequest:
    """Decodes a Predict request.

    Args:
        data: The message.

    Raises:
        DecodeError: It is no ``PredictRequest``.
        InvalidModelSpecError: The model spec is absent.
    """
    return _messages.predict_request(serving_pb2.PredictRequest.FromString(data), size=len(data))


def predict_writer(*, as_content: bool) -> Callable[[Prediction], bytes]:
    """What encodes the answers of Predict.

    Args:
        as_content: Numbers go to ``tensor_content`` instead of the typed fields.
    """

    def write(prediction: Prediction) -> bytes:
        parts = []
        # One by one, since protobuf writes the entries of a map in any order: the native core keeps the signature's.
        for name, array in prediction.outputs.items():
            output = serving_pb2.PredictResponse()
            output.outputs[name].CopyFrom(array_to_tensor(array, as_content=as_content))
            parts.append(output.SerializeToString())
        rest = serving_pb2.PredictResponse()
        _messages.fill_spec(rest.model_spec, prediction.spec)
        return b"".join([*parts, rest.SerializeToString()])

    return write
