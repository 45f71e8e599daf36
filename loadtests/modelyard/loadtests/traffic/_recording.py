"""Recorded traffic: a PredictionLog file, sent again when it was sent then, faster, or at another rate."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from modelyard.errors import ConfigurationError, IntegrityError
from modelyard.loadtests.traffic._decode import decode
from modelyard.loadtests.traffic._requests import Request
from modelyard.wire import PREDICTION_SERVICE, read_records, serving_pb2

#: Calls by the kind of a record.
METHODS = {
    "predict_log": "Predict",
    "classify_log": "Classify",
    "regress_log": "Regress",
    "multi_inference_log": "MultiInference",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """Recorded requests."""

    #: In the order of the file; their answers are expected where the file has them.
    requests: tuple[Request, ...]
    #: When each was sent, in seconds since the first, float64 ``[n]``; None where the file does not say.
    seconds: npt.NDArray[np.float64] | None

    def arrivals(self, speed: float) -> npt.NDArray[np.float64]:
        """When each request is due, at so many times the recorded speed."""
        if self.seconds is None:
            raise ConfigurationError(
                "The recording has no times (log_metadata.timestamp_secs): give a rate with --rate."
            )
        found: npt.NDArray[np.float64] = self.seconds / speed
        return found


def read_recording(path: Path) -> Recording:
    """Reads a TFRecord file of ``PredictionLog`` messages.

    Times are whole seconds: the requests of a second are spread over it evenly.
    """
    requests, stamps = [], []
    for message in read_log(path):
        kind = str(message.WhichOneof("log_type"))
        requests.append(recorded(getattr(message, kind), METHODS[kind]))
        stamps.append(message.log_metadata.timestamp_secs)
    if not requests:
        raise ConfigurationError(f"{path} holds no request.")
    return Recording(requests=tuple(requests), seconds=_spread(stamps) if min(stamps) > 0 else None)


def read_log(path: Path) -> Iterator[serving_pb2.PredictionLog]:
    """Reads the recorded calls of a TFRecord file of ``PredictionLog`` messages."""
    try:
        for record in read_records(path):
            message = serving_pb2.PredictionLog.FromString(record)
            if message.WhichOneof("log_type") in METHODS:
                yield message
    except IntegrityError as exc:
        raise ConfigurationError(exc.message) from exc
    except DecodeError as exc:
        raise ConfigurationError(f"{path} does not hold PredictionLog messages: {exc}.") from exc


def recorded(entry: Any, method: str, model: str = "") -> Request:
    """A call as it was recorded, for gRPC."""
    specs = (
        [task.model_spec for task in entry.request.tasks] if method == "MultiInference" else [entry.request.model_spec]
    )
    for spec in specs if model else ():
        spec.name = model
        spec.ClearField("version_choice")
    request = Request(
        kind=f"grpc {method.lower()}",
        api="grpc",
        path=PREDICTION_SERVICE[method].path,
        body=entry.request.SerializeToString(),
        target=(specs[0].name, specs[0].signature_name),
    )
    if not entry.response.ByteSize():
        return request
    return dataclasses.replace(request, expected=decode(request, entry.response.SerializeToString()))


def _spread(stamps: list[int]) -> npt.NDArray[np.float64]:
    counts, seen = Counter(stamps), Counter[int]()
    found = []
    for stamp in stamps:
        found.append(stamp - min(stamps) + seen[stamp] / counts[stamp])
        seen[stamp] += 1
    return np.sort(np.array(found))


def is_log(path: Path) -> bool:
    """Whether a TFRecord file holds recorded calls, rather than ``tf.Example`` messages."""
    try:
        first = next(read_records(path), b"")
    except IntegrityError as exc:
        raise ConfigurationError(exc.message) from exc
    try:
        # An Example can be read as a PredictionLog: all it has is a field that is none of the calls.
        return serving_pb2.PredictionLog.FromString(first).WhichOneof("log_type") is not None
    except DecodeError:
        return False
