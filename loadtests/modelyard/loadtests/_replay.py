"""Recorded traffic: a PredictionLog file, sent again when it was sent then, faster, or at another rate."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from modelyard.errors import ConfigurationError
from modelyard.loadtests._decode import decode
from modelyard.loadtests._requests import Request
from modelyard.wire import PREDICTION_SERVICE, serving_pb2

_METHODS = {
    "predict_log": "Predict",
    "classify_log": "Classify",
    "regress_log": "Regress",
    "multi_inference_log": "MultiInference",
}
#: Castagnoli's polynomial, reversed.
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """What was recorded.

    Attributes:
        requests: In the order of the file; their answers are expected where the file has them.
        seconds: When each was sent, in seconds since the first, float64 ``[n]``;
            None where the file does not say.
    """

    requests: tuple[Request, ...]
    seconds: npt.NDArray[np.float64] | None

    def arrivals(self, speed: float) -> npt.NDArray[np.float64]:
        """When each request is due.

        Args:
            speed: 1 for as recorded, 2 for twice as fast.

        Raises:
            ConfigurationError: The file has no times.
        """
        if self.seconds is None:
            raise ConfigurationError(
                "The recording has no times (log_metadata.timestamp_secs): give a rate with --rate."
            )
        found: npt.NDArray[np.float64] = self.seconds / speed
        return found


def read_recording(path: Path) -> Recording:
    """Reads a TFRecord file of ``PredictionLog`` messages.

    Times are whole seconds: the requests of a second are spread over it evenly.

    Args:
        path: The file, such as a server's request log or a warm-up file.

    Raises:
        ConfigurationError: It cannot be read, is damaged, or holds no request.
    """
    requests, stamps = [], []
    for record in _records(path):
        try:
            message = serving_pb2.PredictionLog.FromString(record)
        except DecodeError as exc:
            raise ConfigurationError(f"{path} does not hold PredictionLog messages: {exc}.") from exc
        kind = message.WhichOneof("log_type")
        if kind is None:
            continue
        requests.append(_request(getattr(message, kind), _METHODS[kind]))
        stamps.append(message.log_metadata.timestamp_secs)
    if not requests:
        raise ConfigurationError(f"{path} holds no request.")
    return Recording(requests=tuple(requests), seconds=_spread(stamps) if min(stamps) > 0 else None)


def _request(entry: Any, method: str) -> Request:
    spec = entry.request.tasks[0].model_spec if method == "MultiInference" else entry.request.model_spec
    request = Request(
        kind=f"grpc {method.lower()}",
        api="grpc",
        path=PREDICTION_SERVICE[method].path,
        body=entry.request.SerializeToString(),
        target=(spec.name, spec.signature_name),
    )
    if not entry.response.ByteSize():
        return request
    return Request(
        kind=request.kind,
        api=request.api,
        path=request.path,
        body=request.body,
        target=request.target,
        expected=decode(request, entry.response.SerializeToString()),
    )


def _spread(stamps: list[int]) -> npt.NDArray[np.float64]:
    counts, seen = Counter(stamps), Counter[int]()
    found = []
    for stamp in stamps:
        found.append(stamp - min(stamps) + seen[stamp] / counts[stamp])
        seen[stamp] += 1
    return np.sort(np.array(found))


def _records(path: Path) -> Iterator[bytes]:
    table = _table()
    try:
        with path.open("rb") as file:
            while head := file.read(12):
                if len(head) < 12 or _masked(head[:8], table) != struct.unpack("<I", head[8:])[0]:
                    raise ConfigurationError(
                        f"{path} is damaged at byte {file.tell() - len(head)}: is it a TFRecord file?"
                    )
                data, tail = file.read(int.from_bytes(head[:8], "little")), file.read(4)
                if len(tail) < 4 or _masked(data, table) != struct.unpack("<I", tail)[0]:
                    raise ConfigurationError(f"{path} is damaged: a record of {len(data)} bytes has another checksum.")
                yield data
    except OSError as exc:
        raise ConfigurationError(f"Cannot read {path}: {exc.strerror}.") from exc


def _table() -> list[int]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        found.append(byte)
    return found


def _masked(data: bytes, table: list[int]) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
