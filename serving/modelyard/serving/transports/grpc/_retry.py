"""When a refused call may be tried again, as gRPC's clients understand it."""

from __future__ import annotations

import math
from functools import lru_cache

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

from modelyard.errors import OverloadedError
from modelyard.serving.transports.grpc._types import Metadata
from modelyard.wire import varint

_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


def retry_metadata(error: BaseException, text: str) -> Metadata:
    """Trailing metadata of a failed call.

    ``grpc-retry-pushback-ms`` is gRPC's own (proposal A6); ``google.rpc.RetryInfo``
    in ``grpc-status-details-bin`` is what Google's client libraries look for.

    Args:
        error: Why the call failed.
        text: The status message.
    """
    if not isinstance(error, OverloadedError) or error.retry_after_s is None:
        return ()
    return _metadata(math.ceil(error.retry_after_s * 1000), text)


# A server with too much to do refuses many calls in the same words.
@lru_cache(maxsize=256)
def _metadata(milliseconds: int, text: str) -> Metadata:
    pause = Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)
    # The messages google.rpc.Status and RetryInfo are not among protobuf's own, and small enough to be written here.
    detail = AnyMessage(type_url=_RETRY_INFO, value=_field(1, pause.SerializeToString()))
    code: int = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    status = b"\x08" + varint(code) + _field(2, text.encode()) + _field(3, detail.SerializeToString())
    return (("grpc-retry-pushback-ms", str(milliseconds)), ("grpc-status-details-bin", status))


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data
